"""How far two recorded numbers are from each other, and whether rounding alone explains it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

ROUNDING = 64
"""Units in the last place by which the same computation may come out on two frameworks."""

GROWTH = 16
"""By what factor a difference may exceed all earlier ones and still come from the same rounding."""

GREATEST = float(np.finfo(np.float32).max)


class Distance(NamedTuple):
    """How far two numbers are from each other."""

    ulps: float
    """In units in the last place of float32, or of float64 where either needs it; inf where only one is finite."""

    relative: float
    """To the greater."""


def distance(a: float, b: float) -> Distance:
    """NaN is no distance from NaN."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return Distance(0.0, 0.0)
    if not (math.isfinite(a) and math.isfinite(b)):
        return Distance(math.inf, math.inf)
    wide = needs_float64(a, b)
    ulps = abs(_place(a, wide) - _place(b, wide))
    return Distance(float(ulps), abs(a - b) / max(abs(a), abs(b)))


def same(left: object, right: object) -> bool:
    """Return whether two settings are equal. NaN equals NaN."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return left == right


def ulps_at(scale: float, a: float, b: float) -> float:
    """Return the difference of two numbers in units in the last place of `scale`, the size of what was rounded.

    A sum is rounded at the size of its terms. Where these cancel, the difference is large beside what is left of them
    and small beside the terms.
    """
    if a == b or not all(map(math.isfinite, (a, b, scale))) or scale == 0:
        return distance(a, b).ulps
    unit = 2.0**-53 if needs_float64(a, b) else 2.0**-24  # the smallest that it can be, relatively
    return min(distance(a, b).ulps, abs(a - b) / (abs(scale) * unit))


def single(value: float) -> float:
    """As float32, if that holds it."""
    return float(np.float32(value)) if abs(value) <= GREATEST else value


def needs_float64(*values: float) -> bool:
    return any(abs(value) > GREATEST or single(value) != value for value in values)


def _place(value: float, wide: bool) -> int:
    """The number's place among all of its format, 0 at 0."""
    bits = int(np.float64(abs(value)).view(np.int64)) if wide else int(np.float32(abs(value)).view(np.int32))
    return bits if value >= 0 else -bits
