"""Start a worker process and say how it ended: what the parity suite and the benchmarks have in common.

Frameworks live apart: importing TensorFlow before Paddle in one process is a segmentation fault.
"""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

PACKAGE = Path(__file__).parent

CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Only on the CPU does a tensor take the host path on every framework."""

STDERR_KEPT = 1 << 16
"""Bytes at the end of what a worker wrote to stderr that are looked at."""

MEANINGS = {
    "SIGKILL": ": ended from outside, often by the kernel for want of memory",
    "SIGILL": ": an instruction that this processor does not know",
    "SIGSEGV": ": it used memory that is not its own",
}
"""What a signal that ends a process commonly means."""

FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
"""A call in faulthandler's report."""

CALLS_SHOWN = 3

PATIENCE = 1.0
"""Seconds for a worker that hangs to say where."""


def search_path(python: str, directory: Path) -> str:
    """Where a worker finds this package, and not one that happens to lie in the working directory.

    Another interpreter must not find what else is installed beside it: it gets a directory with nothing else in it.
    """
    if python == sys.executable:
        return str(PACKAGE.parent)
    shutil.copytree(PACKAGE, directory / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return str(directory)


def start(
    arguments: Sequence[str],
    search: str,
    errors: IO[bytes],
    stdout: int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A worker that finds this package in the directory `search`, and writes its stderr into a file.

    It has a session of its own, so that what it has started can be ended with it.
    """
    search = os.pathsep.join([search, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        arguments,
        env={**os.environ, **CPU_ONLY, **(environment or {}), "PYTHONPATH": search, "PYTHONSAFEPATH": "1"},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=errors,
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """End a worker, and what it has started, and wait for that."""
    stop(process)
    process.wait()


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a worker, and what it has started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def tell_where_on_request() -> None:
    """To be called in a worker: `where_it_is` asks."""
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, all_threads=False)


def where_it_is(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    """The calls that a worker is in, the innermost first, where it tells; then it has to be ended."""
    if not hasattr(os, "killpg"):
        return ""
    begin, until = os.fstat(errors.fileno()).st_size, time.monotonic() + PATIENCE
    frames: list[tuple[str, str, str]] = []
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGUSR1)  # the worker may be a script that has started Python
    while not frames and time.monotonic() < until:
        time.sleep(PATIENCE / 10)
        # The worker writes where the file's position is: do not move it.
        frames = FRAME.findall(os.pread(errors.fileno(), STDERR_KEPT, begin).decode(errors="replace"))
    calls = [f"{name} ({Path(file).name}, line {line})" for file, line, name in frames[:CALLS_SHOWN]]
    return f"it was in {', called by '.join(calls)}" if calls else ""


def how_it_ended(code: int, errors: IO[bytes]) -> str:
    """The exit status or the signal, and the last lines."""
    status = f"exit status {code}"
    if code < 0:
        name = signal.Signals(-code).name
        status = f"signal {-code} ({name}){MEANINGS.get(name, '')}"
    return f"{status}; {last_lines(errors)}"


def lines_at_end(errors: IO[bytes]) -> list[str]:
    """The lines at the end of what a worker wrote to stderr."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - STDERR_KEPT))
    return [line[:300] for line in errors.read().decode(errors="replace").splitlines() if line.strip()]


def last_lines(errors: IO[bytes], count: int = 6) -> str:
    """The last of them; of faulthandler's report the beginning, where the innermost call is."""
    lines = lines_at_end(errors)
    fatal = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
    chosen = lines[fatal[-1] :][:count] if fatal else lines[-count:]
    return "its last lines: " + " | ".join(chosen) if chosen else "it wrote nothing to stderr"
