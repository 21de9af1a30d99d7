"""Measure the distance of two numbers, and decide whether rounding can cause it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

ROUNDING = 64
"""Frameworks add numbers in different orders, so norms of equal gradients can differ by this many ULP."""

GROWTH = 16
"""From one step to the next, rounding errors grow by at most this factor."""

PRODUCT = 1e-5

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


class Distance(NamedTuple):
    ulps: float  # of float32 or float64
    relative: float


def distance(a: float, b: float, *, is_float64: bool = False) -> Distance:
    """Two NaN have the distance 0. NaN or infinity has the distance inf from every other number.

    Count ULP of float64 if float32 cannot represent one of the numbers.
    """
    if a == b or (math.isnan(a) and math.isnan(b)):
        return Distance(0.0, 0.0)
    if not (math.isfinite(a) and math.isfinite(b)):
        return Distance(math.inf, math.inf)
    wide = is_float64 or needs_float64(a, b)
    ulps = abs(_place(a, wide) - _place(b, wide))
    return Distance(float(ulps), abs(a - b) / max(abs(a), abs(b)))


def same(left: object, right: object) -> bool:
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return left == right


def ulps_at(scale: float, a: float, b: float, *, is_float64: bool = False) -> float:
    """Return the difference of `a` and `b` in ULP of `scale`, for example of the total norm."""
    if a == b or not all(map(math.isfinite, (a, b, scale))) or scale == 0:
        return distance(a, b, is_float64=is_float64).ulps
    unit = 2.0**-53 if is_float64 or needs_float64(a, b) else 2.0**-24  # the smallest relative size of one ULP
    return min(distance(a, b, is_float64=is_float64).ulps, abs(a - b) / (abs(scale) * unit))


def single(value: float) -> float:
    return float(np.float32(value)) if abs(value) <= LARGEST_FLOAT32 else value


def needs_float64(*values: float) -> bool:
    return any(abs(value) > LARGEST_FLOAT32 or single(value) != value for value in values)


def _place(value: float, wide: bool) -> int:
    """Return the index of a number in the sorted list of all float32 or float64 numbers."""
    bits = int(np.float64(abs(value)).view(np.int64)) if wide else int(np.float32(abs(value)).view(np.int32))
    return bits if value >= 0 else -bits
