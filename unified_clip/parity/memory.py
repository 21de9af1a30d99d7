"""The memory that workers may take: how a limit is written, how it is split, and how much of it is used."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

UNITS = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

LEAST = 3 * 2**29
"""Bytes with which every framework starts and compiles: where a share is less, fewer workers run side by side."""

IS_WATCHED = Path("/proc/self/statm").exists()
"""Whether it is known here how much a process uses: on Linux."""

OUT_OF_MEMORY = re.compile(
    r"MemoryError|bad_alloc|OutOfMemory|ResourceExhausted|RESOURCE_EXHAUSTED|n[o']t allocate memory"
)
"""By which Python, C++ and the frameworks say that there was no memory left."""


def read(text: str) -> int:
    """Bytes from a number and its unit, as in `8 GiB` or `512MiB`; ValueError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text)
    number = float(found[1]) * UNITS.get(found[2], 0) if found else 0.0
    if not 1 <= number < 2**63:
        raise ValueError(f"{text!r} is no amount of memory; write a number and one of {', '.join(UNITS)}, as in 8 GiB")
    return int(number)


def shown(count: int) -> str:
    """Bytes as `read` reads them."""
    unit = "GiB" if count >= UNITS["GiB"] else "MiB"
    return f"{count / UNITS[unit]:.4g} {unit}"


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
