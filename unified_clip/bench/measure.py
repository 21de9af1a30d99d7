"""Time a pair of calls, the memory one takes, and what the machine could do at best."""

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
"""How often a call is repeated, however long or short it takes."""

PROCESS = Path("/proc/self")

Clock = Callable[[], float]


class Pair(NamedTuple):
    """The same work by ours and by a native: each is called with what `prepare` returns."""

    native: str
    """Its name; '' where there is none."""

    prepare: Callable[[], Any]
    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any] | None = None
    """None where the native cannot do it, and ours is measured alone."""

    in_place: bool = False


def compare(pair: Pair, seconds: float, clock: Clock = time.perf_counter) -> dict[str, Any]:
    """Quartiles of milliseconds and of native / ours; None where there is no native. In turns, for so many seconds."""
    calls = {"ours": pair.ours} | ({"native": pair.theirs} if pair.theirs else {})
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    for _ in range(WARM_UP):
        for call in calls.values():
            call(pair.prepare())
    begin, repeat = clock(), 0
    while repeat < LEAST or (repeat < MOST and clock() - begin < seconds):
        for name in sorted(calls, reverse=repeat % 2 == 0):  # whoever comes second finds other things in the caches
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
    """The quartiles, the median in the middle, to four digits."""
    return [float(f"{value:.4g}") for value in statistics.quantiles(values, n=4, method="inclusive")]


def limits(
    views: Sequence[Array],
    prepare: Callable[[], Any],
    threads: int,
    seconds: float,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """What the machine does with the gradients' own memory in so many threads: read it; read and write it.

    Where tensors cannot be written, a copy is. `prepare` is called before each, as it is before a clip.
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
    """The numbers of flat arrays in so many parts of the same length, but for one."""
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
    """By how many bytes the process grew at most during a call; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # memory that was freed and kept would hide what is taken
    (PROCESS / "clear_refs").write_text("5")  # the peak begins anew
    before = _kibibytes("VmRSS")
    result = call(given)
    after = _kibibytes("VmHWM")
    del result
    return 1024 * max(0, after - before)


def _kibibytes(key: str) -> int:
    status = (PROCESS / "status").read_text()
    return int(status.split(f"{key}:")[1].split()[0])
