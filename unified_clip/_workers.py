"""Start a worker process and say how it ended: what the parity suite and the benchmarks have in common.

Frameworks live apart: importing TensorFlow before Paddle in one process is a segmentation fault.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

PACKAGE = Path(__file__).parent

CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Only on the CPU does a tensor take the host path on every framework."""

STDERR_KEPT = 1 << 16
"""Bytes at the end of what a worker wrote to stderr that are looked at."""


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
    """End a worker, and what it has started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def how_it_ended(code: int, errors: IO[bytes]) -> str:
    """The exit status or the signal, and the last lines."""
    status = f"exit status {code}" if code > 0 else f"signal {-code} ({signal.Signals(-code).name})"
    return f"{status}; {last_lines(errors)}"


def last_lines(errors: IO[bytes], count: int = 6) -> str:
    """The end of what a worker wrote to stderr; of faulthandler's report the beginning, where the innermost call is."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - STDERR_KEPT))
    lines = [line[:300] for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    fatal = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
    chosen = lines[fatal[-1] :][:count] if fatal else lines[-count:]
    return "its last lines: " + " | ".join(chosen) if chosen else "it wrote nothing to stderr"
