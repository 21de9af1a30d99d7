"""Compute a clip coefficient by its formula, or from the gradients before and after a call."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..tensors.arithmetic import FORMATS, Float64s
from ..tensors.types import Dense

EXACT = 2.0**-46
"""The allowed relative error of a division in float64."""

CLOSE = 2.0**-20
"""The allowed relative error after a few roundings to float32."""

TWICE_ROUNDED = 2.0**-23
"""The allowed relative error of a product that is rounded to float32, and then to 16 bits."""


def coefficient_bounds(before: Dense, after: Dense, roundings: float = 0.5) -> tuple[float, float]:
    """Return (smallest, largest) of the coefficients that turn `before` into `after`. Without such a coefficient,
    smallest > largest."""
    inputs, results = before.values(), after.values()
    usable = np.isfinite(inputs) & (inputs != 0)
    if before.dtype not in FORMATS or results[inputs == 0].any() or not np.isfinite(results[usable]).all():
        return math.inf, -math.inf
    inputs, results = inputs[usable], results[usable]
    with np.errstate(over="ignore"):
        tolerance = roundings * _spacing(results, before.dtype)
        ends = np.sort([(results - tolerance) / inputs, (results + tolerance) / inputs], axis=0)
    return float(ends[0].max(initial=-math.inf)), float(ends[1].min(initial=math.inf))


def _spacing(values: Float64s, dtype: str) -> Float64s:
    """Return one ULP of each number. Return more for subnormal numbers, because a framework can flush them to 0."""
    target, smallest = FORMATS[dtype], FORMATS["float64" if FORMATS[dtype].size == 8 else "float32"].min_exponent
    exponents = np.maximum(np.frexp(values)[1] - 1, target.min_exponent)
    flushed = 2.0 ** max(smallest + 1, target.min_exponent - target.precision + 1)
    return np.where(np.abs(values) < 2.0**smallest, flushed, np.ldexp(1.0, exponents - target.precision + 1))


def tolerance_of(dtype: str) -> float:
    return max(CLOSE, 2.0 ** (3 - FORMATS[dtype].precision)) if dtype in FORMATS else 0.0


@dataclass(frozen=True)
class Scaling:
    dtype: str
    low: float
    high: float
    """Coefficients from `low` to `high` explain all elements of the result."""

    is_unchanged: bool
    is_expected: bool
    unchanged_is_expected: bool
    is_zero: bool
    distance: float
    """The largest error, divided by the largest element of the expected result."""

    @property
    def is_close(self) -> bool:
        return self.distance <= tolerance_of(self.dtype)

    def allows(self, coef: float, slack: float) -> bool:
        if coef == 1 and slack <= EXACT:
            return self.is_unchanged
        size = FORMATS[self.dtype].size
        if size < 8:
            coef = float(np.float32(coef))
        tolerance = abs(coef) * max(slack, TWICE_ROUNDED if size == 2 else 0.0)
        return self.low - tolerance <= coef <= self.high + tolerance


def scaling(before: Dense, expected: Dense, after: Dense) -> Scaling:
    return Scaling(
        before.dtype,
        *coefficient_bounds(before, after),
        is_unchanged=_is_same(before, after),
        is_expected=_is_same(expected, after),
        unchanged_is_expected=_is_same(expected, before),
        is_zero=not after.values().any() and bool(before.values().any()),
        distance=_distance(expected.values(), after.values()),
    )


def _is_same(left: Dense, right: Dense) -> bool:
    return bool(np.array_equal(left.bits(), right.bits()))


def _distance(expected: Float64s, result: Float64s) -> float:
    is_same = (expected == result) | (np.isnan(expected) & np.isnan(result))
    differences = np.where(is_same, 0.0, np.abs(expected - result))
    greatest = float(np.max(np.abs(expected), where=np.isfinite(expected), initial=0.0))
    furthest = float(np.max(np.where(np.isnan(differences), math.inf, differences), initial=0.0))
    return furthest if furthest == 0 else furthest / greatest if greatest else math.inf
