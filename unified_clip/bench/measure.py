"""Measure the time of two calls, the memory of a call, and the memory speed of the machine."""

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
Call = Callable[[Any], Any]


class Pair(NamedTuple):
    """The same work by unified_clip and by a framework's function. Both get the result of `prepare`."""

    native_name: str
    """The name of the framework's function; '' if it has none."""

    prepare: Callable[[], Any]
    unified: Call
    native: Call | None = None
    """None: the framework cannot do this work, and unified_clip is measured alone."""

    in_place: bool = False


def compare(pair: Pair, seconds: float, clock: Clock = time.perf_counter) -> dict[str, Any]:
    """Time both calls in turns. Return quartiles of milliseconds and of their ratio; None without a second call."""
    calls = {"unified": pair.unified} | ({"native": pair.native} if pair.native else {})
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
    unified, native = times["unified"], times.get("native")
    return {
        "native": pair.native_name,
        "repeats": repeat,
        "ours_ms": quartiles(unified),
        "native_ms": native and quartiles(native),
        "ratio": native and quartiles([n / u for n, u in zip(native, unified, strict=True)]),
    }


def _milliseconds(call: Call, inputs: Any, clock: Clock) -> float:
    start = clock()
    result = call(inputs)
    spent = 1000 * (clock() - start)
    del result  # freeing is not the call's work
    return spent


def quartiles(values: list[float]) -> list[float]:
    """Return the three quartiles with four digits. The median is the second."""
    return [float(f"{value:.4g}") for value in statistics.quantiles(values, n=4, method="inclusive")]


def limits(
    views: Sequence[Array],
    prepare: Callable[[], Any],
    threads: int,
    seconds: float,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """Measure the time in which threads read the gradients' memory, and in which they read and write it.

    Tensors that cannot be written are copied. `prepare` is called before each repeat, as before a clip.
    """
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
    """Split flat arrays into `count` parts whose numbers of elements differ by at most one."""
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
    """Return the peak memory growth of the process during a call, in bytes. None if the system does not report it."""
    if sys.platform != "linux":
        return None
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # freed memory that the process keeps would hide new memory
    (PROCESS / "clear_refs").write_text("5")  # the peak begins anew
    before = _kibibytes("VmRSS")
    result = call(inputs)
    after = _kibibytes("VmHWM")
    del result
    return 1024 * max(0, after - before)


def _kibibytes(key: str) -> int:
    status = (PROCESS / "status").read_text()
    return int(status.split(f"{key}:")[1].split()[0])
