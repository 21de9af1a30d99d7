"""A process may end while a daemon thread clips."""

import pytest
from support.kits import Kit, in_a_new_process
from support.tiers import where

pytestmark = pytest.mark.nightly

EXIT_WHILE_CLIPPING = """
import sys
import threading
import time

import numpy as np
from support.kits import KITS

kit = KITS[{name!r}]()
gradients = [kit.tensor(np.ones(1 << 20))] * 1000  # almost all of the time goes into the kernels, not the framework
kit.namespace.get_total_norm(gradients)
started = threading.Event()


class SlowToFinalize:
    def __del__(self, sleep=time.sleep):
        sleep(4)  # meanwhile the thread comes back from the kernels, and asks for the interpreter lock


def clip_forever():
    while True:
        kit.namespace.get_total_norm(gradients)
        started.set()  # after the first call, in which a framework may compile for this thread


sys.modules["slow_to_finalize"] = SlowToFinalize()
threading.Thread(target=clip_forever, daemon=True).start()
started.wait()
time.sleep(0.1)
print("main thread ends", flush=True)
"""


@where(lambda kit: kit.exact)
def test_process_exits_cleanly_while_a_daemon_thread_clips(kit: Kit) -> None:
    assert in_a_new_process(EXIT_WHILE_CLIPPING.format(name=kit.name)) == "main thread ends\n"
