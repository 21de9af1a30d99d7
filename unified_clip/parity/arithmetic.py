"""Exact arithmetic for the oracle, in integers and fractions.

It shares nothing with the arithmetic it is there to judge: `unified_clip._core.exact` rounds with sticky bits, this
module compares with the halfway points.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]


class Format(NamedTuple):
    """A binary floating-point format: significant bits, exponents of its smallest and largest normals, bytes."""

    precision: int
    min_exponent: int
    max_exponent: int
    size: int


FORMATS = {
    "float16": Format(11, -14, 15, 2),
    "bfloat16": Format(8, -126, 127, 2),
    "float32": Format(24, -126, 127, 4),
    "float64": Format(53, -1022, 1023, 8),
    "complex64": Format(24, -126, 127, 4),
    "complex128": Format(53, -1022, 1023, 8),
}
"""Of complex numbers that of their parts."""


def nearest_root(square: Fraction, degree: int, dtype: str) -> float:
    """The number of `dtype` nearest to the root of a fraction of 0 or more (degree 1 or 2), ties to even."""
    if square == 0:
        return 0.0
    target = FORMATS[dtype]
    exponent = max(_exponent(square) // degree, target.min_exponent)
    step = Fraction(2) ** (exponent - target.precision + 1)
    whole = math.floor(square / step**degree)
    count = math.isqrt(whole) if degree == 2 else whole
    halfway = (step * Fraction(2 * count + 1, 2)) ** degree
    if square > halfway or (square == halfway and count % 2):
        count += 1
    root = count * step
    return float(root) if root < Fraction(2) ** (target.max_exponent + 1) else math.inf


def nearest(value: Fraction, dtype: str) -> float:
    """The number of `dtype` nearest to a fraction, ties to even. Zero comes without a sign."""
    magnitude = nearest_root(abs(value), 1, dtype)
    return -magnitude if value < 0 else magnitude


def nearest_float(value: float, dtype: str) -> float:
    """A float rounded once to `dtype`; what is not finite, and the sign of a zero, stay."""
    if not math.isfinite(value):
        return value
    return math.copysign(nearest(Fraction(value), dtype), value)


def _exponent(value: Fraction) -> int:
    """The e with 2**e <= value < 2**(e + 1)."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def rounded(values: Float64s, dtype: str) -> Float64s:
    """Every element rounded once to `dtype`, ties to even, and held in float64."""
    if FORMATS[dtype].size == 8:
        return values
    target = FORMATS[dtype]
    _, exponents = np.frexp(values)  # magnitude below 2**exponent
    steps = np.maximum(exponents - 1, target.min_exponent) - target.precision + 1
    near: Float64s = np.ldexp(np.rint(np.ldexp(values, -steps)), steps)
    overflow = np.abs(near) >= 2.0 ** (target.max_exponent + 1)
    near = np.where(overflow, np.copysign(np.inf, values), near)
    return np.where(np.isfinite(values), near, values)


def as_integers(values: Float64s) -> tuple[npt.NDArray[np.object_], int]:
    """Finite values as Python integers in units of a common power of two, whose exponent is returned."""
    fractions, exponents = np.frexp(values)
    mantissas = np.ldexp(fractions, 53).astype(np.int64)
    unit = int(exponents.min()) if values.size else 0
    integers = mantissas.astype(object) << (exponents - unit).astype(object)
    return np.asarray(integers, dtype=object), unit - 53


def power_sum(values: Float64s, p: int) -> Fraction:
    """The exact sum of |x| (p = 1) or x**2 (p = 2) of finite values."""
    integers, exponent = as_integers(values.reshape(-1))
    total = sum(abs(n) for n in integers) if p == 1 else sum(n * n for n in integers)
    return Fraction(total) * Fraction(2) ** (p * exponent)


def general_norm(values: Float64s, p: float, dtype: str) -> float:
    """The p-norm of finite values for any p > 0, to 60 digits and then rounded to `dtype`."""
    with localcontext(Context(prec=60, Emin=-(10**9), Emax=10**9)):
        power = Decimal(p)
        total = sum((abs(Decimal(x)) ** power for x in values.reshape(-1).tolist() if x), Decimal(0))
        return nearest(Fraction(total ** (1 / power)), dtype) if total else 0.0


def sum_of_columns(values: Float64s, dtype: str) -> Float64s:
    """The sums over the first axis, each exact and then rounded once to `dtype`; what is not finite as IEEE has it."""
    with np.errstate(all="ignore"):
        sums: Float64s = values.sum(axis=0)
    finite = np.isfinite(values).all(axis=0)
    integers, exponent = as_integers(np.where(finite, values, 0.0))
    unit = Fraction(2) ** exponent
    for index in map(tuple, np.argwhere(finite)):
        sums[index] = nearest(sum(integers[(slice(None), *index)].tolist()) * unit, dtype)
    return sums
