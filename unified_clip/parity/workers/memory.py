"""The memory that workers may take: how a limit is split, and how much of it is used."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

LEAST = 3 * 2**29
"""Bytes with which every framework starts and compiles: where a share is less, fewer workers run side by side."""

IS_WATCHED = Path("/proc/self/statm").exists()
"""Whether it is known here how much a process uses: on Linux."""

OUT_OF_MEMORY = re.compile(
    r"MemoryError|bad_alloc|OutOfMemory|ResourceExhausted|RESOURCE_EXHAUSTED|n[o']t allocate memory"
)
"""By which Python, C++ and the frameworks say that there was no memory left."""


def split(limit: int | None, workers: int) -> tuple[int, int | None]:
    """How many of some workers run side by side, and what each may take."""
    if limit is None:
        return workers, None
    at_once = max(1, min(workers, limit // LEAST))
    return at_once, limit // at_once


def used(session: int) -> int:
    """Bytes that the processes of a session hold in memory, without the files that they map."""
    processes = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return sum(_used(process) for process in processes if _is_in(process, session))


def _is_in(process: int, session: int) -> bool:
    with suppress(OSError):  # it has just ended
        return os.getsid(process) == session
    return False


def _used(process: int) -> int:
    with suppress(OSError):
        pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
    return 0
