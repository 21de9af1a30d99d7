"""Measure the time and the memory of calls, and the memory speed of the machine."""

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

from .._kit import atomic_files
from .gradients import Array

WARM_UP = 2
LEAST, MOST = 7, 300

PROCESS = Path("/proc/self")

Clock = Callable[[], float]
Call = Callable[[Any], Any]


class Pair(NamedTuple):
    """A function of unified_clip and a framework's function for the same task."""

    native_name: str  # "" if the framework has no function
    prepare: Callable[[], Any]  # runs before each call, and returns the argument of the call
    unified: Call
    native: Call | None = None

    in_place: bool = False


def on_host(call: Call, inputs: Any, clock: Clock) -> float:
    start = clock()
    result = call(inputs)
    spent = 1000 * (clock() - start)
    del result  # the time to free the result does not count
    return spent


def compare(
    pair: Pair,
    seconds: float,
    clock: Clock = time.perf_counter,
    milliseconds: Callable[[Call, Any, Clock], float] = on_host,
) -> dict[str, Any]:
    """Call both functions alternately, and return an entry of bench.json."""
    calls = {"unified": pair.unified} | ({"native": pair.native} if pair.native else {})
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    for _ in range(WARM_UP):
        for call in calls.values():
            call(pair.prepare())
    begin, repeat = clock(), 0
    while repeat < LEAST or (repeat < MOST and clock() - begin < seconds):
        # change the order: the first call leaves data in the caches for the second call
        for name in sorted(calls, reverse=repeat % 2 == 0):
            times[name].append(milliseconds(calls[name], pair.prepare(), clock))
        repeat += 1
    unified, native = times["unified"], times.get("native")
    return {
        "native": pair.native_name,
        "repeats": repeat,
        "ours_ms": quartiles(unified),
        "native_ms": native and quartiles(native),
        "ratio": native and quartiles([n / u for n, u in zip(native, unified, strict=True)]),
    }


def quartiles(values: list[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in statistics.quantiles(values, n=4, method="inclusive")]


def limits(
    views: Sequence[Array], prepare: Callable[[], Any], threads: int, seconds: float, clock: Clock = time.perf_counter
) -> dict[str, Any]:
    """Measure how fast threads read the gradients, and how fast threads read and rewrite them."""
    bits = [view.reshape(-1).view(f"u{view.itemsize}") for view in views]

    def in_threads(views: Sequence[Array], work: Callable[[Array], Any]) -> Any:
        parts = shares(views, threads)
        pair = Pair("", prepare, lambda _: list(pool.map(lambda part: list(map(work, part)), parts)))
        return compare(pair, seconds, clock)["ours_ms"]

    def rewrite(view: Array) -> None:
        np.bitwise_xor(view, view.dtype.type(0), out=view)

    writable = [view if view.flags.writeable else view.copy() for view in bits]
    with ThreadPoolExecutor(threads) as pool:
        return {
            "bytes": sum(view.nbytes for view in views),
            "read_ms": in_threads(bits, np.bitwise_or.reduce),
            "read_write_ms": in_threads(writable, rewrite),
        }


def shares(views: Sequence[Array], count: int) -> list[list[Array]]:
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


def extra_memory(call: Call, inputs: Any) -> int | None:
    """Return the growth of the peak memory during a call, in bytes. Return None outside Linux."""
    if sys.platform != "linux":
        return None
    gc.collect()
    # return freed memory to the system, because the call could reuse it
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    (PROCESS / "clear_refs").write_text("5")  # reset the peak
    before = _kibibytes("VmRSS")
    result = call(inputs)
    after = _kibibytes("VmHWM")
    del result
    return 1024 * max(0, after - before)


def _kibibytes(key: str) -> int:
    status = atomic_files.read_text(PROCESS / "status")
    return int(status.split(f"{key}:")[1].split()[0])
