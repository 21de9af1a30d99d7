"""The threads that kernels share: results do not depend on them, and they survive fork() and calls at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from unified_clip._compute import kernels
from unified_clip._native import KERNELS

if KERNELS is None:
    pytest.skip("the kernels are not compiled", allow_module_level=True)

LONG = 1 << 20

CHILD = f"""
import os, sys
import numpy as np
from unified_clip._compute import kernels

array = np.ones({LONG}, np.float32)

def clip():
    norm = kernels.array_list([(array, "float32")]).norm(2, False, 4)
    out = np.empty_like(array)
    kernels.array_list([(array, "float32")]).scale(0.5, 4, [out])
    return norm, float(out[-1])

before = clip()
child = os.fork()
if child == 0:
    os._exit(0 if [clip() for _ in range(3)] == [before] * 3 else 1)
assert clip() == before == (1024.0, 0.5)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def measured(array: np.ndarray, threads: int) -> float:
    return float(kernels.array_list([(array, "float32")]).norm(2, False, threads))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork()")
def test_a_child_of_fork_starts_threads_of_its_own() -> None:
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-P", "-c", CHILD], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr


def test_calls_of_several_threads_at_the_same_time_give_the_bits_of_one() -> None:
    arrays = [np.random.default_rng(seed).standard_normal(LONG).astype(np.float32) for seed in range(6)]
    expected = [measured(array, 1) for array in arrays]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(10):
            assert list(pool.map(lambda array: measured(array, 4), arrays)) == expected
