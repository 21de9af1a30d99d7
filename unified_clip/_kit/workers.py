"""Run worker processes, and report why they ended.

Each framework has its own process, because importing TensorFlow before Paddle would crash a process.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from .scratch import Scratch

if TYPE_CHECKING:
    from typing_extensions import Self

PACKAGE = Path(__file__).parents[1]

CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}

STDERR_KEPT = 1 << 16

MEANINGS = {
    "SIGKILL": "ended from outside, often by the kernel because memory ran out",
    "SIGILL": "an instruction that this processor does not support",
    "SIGSEGV": "an access to memory that the process does not own",
}

FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)

CALLS_SHOWN = 3

LINES_SHOWN = 6

LINE_CHARACTERS = 300

REPORT_SECONDS = 1.0

POLL_SECONDS = 0.1

PARENT_CHECK = 1.0


@dataclass(frozen=True)
class Exit:
    code: int | None
    """The exit status, or the negative number of a signal, or None after a timeout."""

    stderr: Sequence[str]
    calls: str = ""
    """The worker's innermost calls at a timeout."""

    def __str__(self) -> str:
        if self.code is None:
            return self.calls or self.last_lines
        status = f"exit status {self.code}"
        if self.code < 0:
            name = signal.Signals(-self.code).name
            status = ": ".join(filter(None, [f"signal {-self.code} ({name})", MEANINGS.get(name)]))
        return f"{status}; {self.last_lines}"

    @property
    def last_lines(self) -> str:
        fatal = [number for number, line in enumerate(self.stderr) if line.startswith("Fatal Python error")]
        lines = self.stderr[fatal[-1] :][:LINES_SHOWN] if fatal else self.stderr[-LINES_SHOWN:]
        if fatal and (calls := _calls_of_fatal_error(self.stderr[fatal[-1] :])):
            lines = [lines[0], calls]
        return "the last lines of stderr: " + " | ".join(lines) if lines else "stderr is empty"


class Worker:
    """A process that can import this package. The end of the `with` block kills the process and its children."""

    def __init__(
        self,
        arguments: Sequence[str],
        scratch: Scratch | None = None,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
        *,
        sees_gpus: bool = False,
    ) -> None:
        search = os.pathsep.join(_search_path(arguments[0], scratch))
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by __exit__
        try:
            self.process = subprocess.Popen(
                arguments,
                env={
                    **os.environ,
                    **({} if sees_gpus else CPU_ONLY),
                    **(environment or {}),
                    "PYTHONPATH": search,
                    "PYTHONSAFEPATH": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=self._errors,
                start_new_session=True,
                pass_fds=[] if scratch is None or scratch.lock is None else [scratch.lock],
            )
        except BaseException:
            self._errors.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._errors.close()

    def wait(self, timeout: float, poll: Callable[[], bool] | None = None) -> Exit:
        """Wait until the worker ends, or end it after `timeout` seconds. If `poll()` is true, the timeout restarts."""
        until = time.monotonic() + timeout
        while True:
            code: int | None = None
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(POLL_SECONDS if poll else max(0.0, until - time.monotonic()))
            if poll is not None and poll():
                until = time.monotonic() + timeout
            if code is not None or time.monotonic() >= until:
                break
        calls = "" if code is not None else self._calls()
        self._end()
        return Exit(code, self._last_lines(), calls)

    def _end(self) -> None:
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def _calls(self) -> str:
        """Return the call stack that the worker prints on SIGUSR1. Without `prepare`, the signal ends the worker."""
        if not hasattr(os, "killpg"):
            return ""
        begin, until = os.fstat(self._errors.fileno()).st_size, time.monotonic() + REPORT_SECONDS
        frames: list[tuple[str, str, str]] = []
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGUSR1)  # the worker may be a script that has started Python
        while not frames and time.monotonic() < until:
            time.sleep(REPORT_SECONDS / 10)
            # The worker writes at the file's position: do not move it.
            frames = FRAME.findall(os.pread(self._errors.fileno(), STDERR_KEPT, begin).decode(errors="replace"))
        return _shown_calls(frames)

    def _last_lines(self) -> list[str]:
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - STDERR_KEPT))
        return [
            line[:LINE_CHARACTERS]
            for line in self._errors.read().decode(errors="replace").splitlines()
            if line.strip(" ^~")
        ]


def _calls_of_fatal_error(report: Sequence[str]) -> str:
    starts = [number for number, line in enumerate(report) if line.startswith("Current thread")]
    if not starts:
        return ""
    frames = takewhile(bool, map(FRAME.match, report[starts[0] + 1 :]))
    return _shown_calls([(match[1], match[2], match[3]) for match in frames if match])


def _shown_calls(frames: Sequence[tuple[str, str, str]]) -> str:
    calls = [f"{name} ({Path(file).name}, line {line})" for file, line, name in frames[:CALLS_SHOWN]]
    return f"the process was in {', called by '.join(calls)}" if calls else ""


def prepare(parent: int | None = None) -> None:
    """Make this worker print its call stack on SIGUSR1, and exit when its parent ends, or the process `parent`."""
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, all_threads=False)
    threading.Thread(target=_exit_when_orphaned, args=[parent or os.getppid()], daemon=True).start()


def _exit_when_orphaned(parent: int) -> None:
    """End this process after its parent has ended, even if the main thread of this process hangs."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK)
    os._exit(1)


def import_tensorflow() -> None:
    """Import TensorFlow without its optional packages, which saves a third of the time."""
    with hide_packages("jax", "matplotlib", "sklearn"):
        importlib.import_module("tensorflow")


@contextmanager
def hide_packages(*names: str) -> Iterator[None]:
    """Make imports of these packages fail in the `with` block, as if the packages were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None lets an import raise
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def _search_path(python: str, scratch: Scratch | None) -> list[str]:
    """Put `PACKAGE.parent` last, because its other packages must not hide the user's packages.

    Put it first if PYTHONPATH leads to a different copy of this package.
    """
    directories = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if scratch is None or python == sys.executable:
        own = str(PACKAGE.parent)
        copies = [each for each in directories if (Path(each) / PACKAGE.name).is_dir()]
        return [own, *directories] if copies and not PACKAGE.parent.samefile(copies[0]) else [*directories, own]
    # a different interpreter gets a copy of this package alone
    directory = Path(tempfile.mkdtemp(prefix="package_", dir=scratch.path))
    shutil.copytree(PACKAGE, directory / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return [str(directory), *directories]
