"""Measure the time of a pair of calls, the memory of a call, and the limits of the machine."""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .lists import Array

WARM_UP = 2
LEAST, MOST = 7, 300
"""The least and the largest number of repeats of a call."""

PROCESS = Path("/proc/self")

Clock = Callable[[], float]


class Pair(NamedTuple):
    """The same work by unified_clip and by a framework's function. Both are called with the result of `prepare`."""

    native: str
    """The name of the framework's function; '' if it has none."""

    prepare: Callable[[], Any]
    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any] | None = None
    """The framework's function. None: it cannot do this work, and unified_clip is measured alone."""

    in_place: bool = False


def compare(pair: Pair, seconds: float, clock: Clock = time.perf_counter) -> dict[str, Any]:
    """Call both in turns. Return the quartiles of milliseconds and of the ratio; None without a second function."""
    calls = {"ours": pair.ours} | ({"native": pair.theirs} if pair.theirs else {})
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    for _ in range(WARM_UP):
        for call in calls.values():
            call(pair.prepare())
    begin, repeat = clock(), 0
    while repeat < LEAST or (repeat < MOST and clock() - begin < seconds):
        for name in sorted(calls, reverse=repeat % 2 == 0):  # the second call finds other data in the caches
            times[name].append(_milliseconds(calls[name], pair.prepare(), clock))
        repeat += 1
    native = times.get("native")
    return {
        "native": pair.native,
        "repeats": repeat,
        "ours_ms": quartiles(times["ours"]),
        "native_ms": native and quartiles(native),
        "ratio": native and quartiles([theirs / ours for theirs, ours in zip(native, times["ours"], strict=True)]),
    }


def _milliseconds(call: Callable[[Any], Any], given: Any, clock: Clock) -> float:
    start = clock()
    result = call(given)
    spent = 1000 * (clock() - start)
    del result  # freeing is not the call's work
    return spent


def quartiles(values: list[float]) -> list[float]:
    """Return the quartiles with four digits. The median is the second."""
    return [float(f"{value:.4g}") for value in statistics.quantiles(values, n=4, method="inclusive")]


def limits(
    views: Sequence[Array],
    prepare: Callable[[], Any],
    threads: int,
    seconds: float,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """Measure how fast threads read the memory of gradients, and how fast they read and write it.

    For tensors that cannot be written, a copy is. `prepare` is called before each repeat, as before a clip.
    """
    bits = [view.reshape(-1).view(f"u{view.itemsize}") for view in views]

    def spread(parts: list[list[Array]], work: Callable[[Array], Any]) -> list[float]:
        def share(part: list[Array]) -> None:
            for view in part:
                work(view)

        pair = Pair("", prepare, lambda _: list(pool.map(share, parts)))
        found: list[float] = compare(pair, seconds, clock)["ours_ms"]
        return found

    written = [view if view.flags.writeable else view.copy() for view in bits]
    with ThreadPoolExecutor(threads) as pool:
        return {
            "bytes": sum(view.nbytes for view in views),
            "read_ms": spread(shares(bits, threads), np.bitwise_or.reduce),
            "read_write_ms": spread(
                shares(written, threads), lambda view: np.bitwise_xor(view, view.dtype.type(0), out=view)
            ),
        }


def shares(views: Sequence[Array], count: int) -> list[list[Array]]:
    """Split flat arrays into `count` parts of equal length, up to one element."""
    total, start = sum(view.size for view in views), 0
    parts: list[list[Array]] = [[] for _ in range(count)]
    for view in views:
        for index, part in enumerate(parts):
            begin, end = (total * (index + k) // count - start for k in (0, 1))
            piece = view[max(begin, 0) : max(end, 0)]
            if piece.size:
                part.append(piece)
        start += view.size
    return parts


def extra_memory(call: Callable[[Any], Any], given: Any) -> int | None:
    """Return by how many bytes the process grew at most during a call. None if the system does not report it."""
    if sys.platform != "linux":
        return None
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # freed memory that the process keeps would hide new memory
    (PROCESS / "clear_refs").write_text("5")  # the peak begins anew
    before = _kibibytes("VmRSS")
    result = call(given)
    after = _kibibytes("VmHWM")
    del result
    return 1024 * max(0, after - before)


def _kibibytes(key: str) -> int:
    status = (PROCESS / "status").read_text()
    return int(status.split(f"{key}:")[1].split()[0])
