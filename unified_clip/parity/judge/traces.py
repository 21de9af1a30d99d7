"""How each gradient was scaled: the interval of possible coefficients, and NaN, infinities and zeros."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...tensors.arithmetic import FORMATS, Float64s
from ...tensors.types import Dense

EXACT = 2.0**-46
"""Relative error of the division that computes a coefficient."""

TWICE_ROUNDED = 2.0**-23
"""A product of 16-bit numbers is rounded to float32 before it is rounded to 16 bits."""


@dataclass(frozen=True)
class ScalingTrace:
    """A clipped gradient, compared with its input and the expected one. It keeps no tensors, which are large."""

    dtype: str
    is_given: bool
    """It is unchanged, bit for bit."""

    is_due: bool
    due_is_given: bool

    distance: float
    """The largest difference from the expected gradient, relative to its largest element."""

    size: int
    nan: int
    """Number of elements with an unexpected NaN."""

    first_nan: Sequence[int]
    is_nan: bool
    """All elements are NaN."""

    lacks_nan: bool
    is_infinite: bool
    """Some elements are infinite, and should be finite."""

    is_zero: bool
    """All elements are zero, and were not before the call."""

    low: float
    high: float
    """The interval of coefficients whose products round to all finite elements. (inf, -inf) if there is none,
    (-inf, inf) if no element bounds it."""

    def allows(self, coefficient: float, slack: float) -> bool:
        """Return whether a coefficient is in the interval, up to a relative error of `slack`."""
        if coefficient == 1 and slack <= EXACT:
            return self.is_given
        size = FORMATS[self.dtype].size
        if size < 8:
            coefficient = float(np.float32(coefficient))
        room = abs(coefficient) * max(slack, TWICE_ROUNDED if size == 2 else 0.0)
        return self.low - room <= coefficient <= self.high + room


def trace_scaling(given: Dense, due: Dense, found: Dense) -> ScalingTrace:
    """Return how a gradient was scaled. The three tensors have one shape and dtype."""
    numbers, right, got = given.values(), due.values(), found.values()
    extra, low, high = np.isnan(got) & ~np.isnan(right), *_multiplied(numbers, got, given.dtype)
    return ScalingTrace(
        dtype=given.dtype,
        is_given=bool(np.array_equal(given.bits(), found.bits())),
        is_due=bool(np.array_equal(due.bits(), found.bits())),
        due_is_given=bool(np.array_equal(due.bits(), given.bits())),
        distance=_distance(right, got),
        size=extra.size,
        nan=int(np.count_nonzero(extra)),
        first_nan=np.argwhere(extra)[:1].reshape(-1).tolist(),
        is_nan=bool(np.isnan(got).all()),
        lacks_nan=bool((np.isnan(right) & ~np.isnan(got)).any()),
        is_infinite=bool((np.isinf(got) & np.isfinite(right)).any()),
        is_zero=not got.any() and bool(numbers.any()),
        low=low,
        high=high,
    )


def _distance(due: Float64s, found: Float64s) -> float:
    apart = np.where((due == found) | (np.isnan(due) & np.isnan(found)), 0.0, np.abs(due - found))
    greatest = float(np.max(np.abs(due), where=np.isfinite(due), initial=0.0))
    farthest = float(np.max(np.where(np.isnan(apart), math.inf, apart), initial=0.0))
    return farthest if farthest == 0 else farthest / greatest if greatest else math.inf


def _multiplied(given: Float64s, found: Float64s, dtype: str) -> tuple[float, float]:
    telling = np.isfinite(given) & (given != 0)
    if dtype not in FORMATS or found[given == 0].any() or not np.isfinite(found[telling]).all():
        return math.inf, -math.inf
    given, found = given[telling], found[telling]
    room = _half_steps(found, dtype)
    ends = np.sort([(found - room) / given, (found + room) / given], axis=0)
    return float(ends[0].max(initial=-math.inf)), float(ends[1].min(initial=math.inf))


def _half_steps(values: Float64s, dtype: str) -> Float64s:
    """Return half the distance of each number to the next. A subnormal number may be a flushed one."""
    target, smallest = FORMATS[dtype], FORMATS["float64" if FORMATS[dtype].size == 8 else "float32"].min_exponent
    _, exponents = np.frexp(values)
    steps = np.ldexp(1.0, np.maximum(exponents - 1, target.min_exponent) - target.precision)
    return np.where(np.abs(values) < 2.0**smallest, 2.0**smallest, steps)
