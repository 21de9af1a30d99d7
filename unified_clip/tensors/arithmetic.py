"""Exact sums, roots and rounding, to check the results of unified_clip.

The module shares no code with `unified_clip._core.exact`, because shared code would hide errors.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]


class Format(NamedTuple):
    """A binary floating-point format. `size` is in bytes."""

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
"""The entry of a complex dtype describes its real and imaginary parts."""


def nearest_root(square: Fraction, degree: int, dtype: str) -> float:
    """Return `square` (degree 1) or its square root (degree 2), rounded to `dtype` with ties to even."""
    if square == 0:
        return 0.0
    target = FORMATS[dtype]
    exponent = max(_exponent(square) // degree, target.min_exponent)
    place = exponent - target.precision + 1  # the last bit of the result stands for 2**place
    numerator, denominator = square.numerator, square.denominator
    if place < 0:
        numerator <<= -place * degree
    else:
        denominator <<= place * degree
    whole = numerator // denominator
    count = math.isqrt(whole) if degree == 2 else whole
    distance = (numerator << degree) - (2 * count + 1) ** degree * denominator  # from halfway to the next number
    if distance > 0 or (distance == 0 and count % 2):
        count += 1
    return math.ldexp(count, place) if count.bit_length() + place <= target.max_exponent + 1 else math.inf


def nearest(value: Fraction, dtype: str) -> float:
    """Return a fraction rounded to `dtype`, with ties to even."""
    magnitude = nearest_root(abs(value), 1, dtype)
    return -magnitude if value < 0 else magnitude


def nearest_float(value: float, dtype: str) -> float:
    if not math.isfinite(value):
        return value
    return math.copysign(nearest(Fraction(value), dtype), value)


def _exponent(value: Fraction) -> int:
    """Return the exponent e with 2**e <= value < 2**(e + 1)."""
    numerator, denominator = value.numerator, value.denominator
    guess = numerator.bit_length() - denominator.bit_length()
    is_less = numerator < denominator << guess if guess >= 0 else numerator << -guess < denominator
    return guess - is_less


def rounded(values: Float64s, dtype: str) -> Float64s:
    """Return the elements rounded to `dtype`, with ties to even."""
    target = FORMATS[dtype]
    if target.size == 8:
        return values
    if target == FORMATS["float32"]:
        with np.errstate(over="ignore"):
            return values.astype(np.float32).astype(np.float64)  # a conversion to float32 rounds once
    _, exponents = np.frexp(values)  # magnitude below 2**exponent
    steps = np.maximum(exponents - 1, target.min_exponent) - target.precision + 1
    near: Float64s = np.ldexp(np.rint(np.ldexp(values, -steps)), steps)
    overflow = np.abs(near) >= 2.0 ** (target.max_exponent + 1)
    near = np.where(overflow, np.copysign(np.inf, values), near)
    return np.where(np.isfinite(values), near, values)


def power_sum(values: Float64s, p: float) -> Fraction:
    """Return the sum of |x|**p over all elements. The sum is exact only for p = 1 and p = 2."""
    flat = np.abs(values.reshape(-1))
    if p not in (1, 2):
        return _sum_to_60_digits(flat, p)
    chunks = (flat[start : start + CHUNK] for start in range(0, flat.size, CHUNK))
    return sum((_exact_sum(chunk, int(p)) for chunk in chunks), Fraction(0))


LIMB = 18
"""A float64 significand is split into three limbs of LIMB bits."""

CHUNK = 1 << 15
"""The largest number of terms in a float64 sum. A sum of more terms could exceed 2**53 and lose bits."""


def _exact_sum(magnitudes: Float64s, p: int) -> Fraction:
    """Return the exact sum of |x|**p for p = 1 or p = 2."""
    fractions, exponents = np.frexp(magnitudes)
    first, rest = _split(fractions)
    second, rest = _split(rest)
    third, _ = _split(rest)
    terms = [first, second, third]
    if p == 2:
        terms = [first**2, 2 * first * second, 2 * first * third + second**2, 2 * second * third, third**2]
    lowest, total = int(exponents.min()), 0
    for index, term in enumerate(terms):
        sums = np.bincount(exponents - lowest, term).tolist()
        total += sum(int(n) << (p * place) for place, n in enumerate(sums)) << (LIMB * (2 * p - index))
    return total * Fraction(2) ** (p * (lowest - 3 * LIMB))


def _split(fractions: Float64s) -> tuple[Float64s, Float64s]:
    """Split each fraction. Return its first LIMB bits as a whole number, and the rest as a fraction."""
    shifted = np.ldexp(fractions, LIMB)
    whole = np.floor(shifted)
    return whole, shifted - whole


def root(total: Fraction, p: float, dtype: str) -> float:
    """Return total**(1 / p) rounded to `dtype`."""
    if p in (1, 2):
        return nearest_root(total, int(p), dtype)
    with _sixty_digits():
        near = (Decimal(total.numerator) / total.denominator) ** (1 / Decimal(p))
    return nearest(Fraction(near), dtype)


def _sum_to_60_digits(magnitudes: Float64s, p: float) -> Fraction:
    with _sixty_digits():
        numbers = [Decimal(x) for x in magnitudes.tolist() if x]
        if p % 1 == 0.5:  # square roots are 50 times as fast as other powers
            return Fraction(sum((x ** int(p) * x.sqrt() for x in numbers), Decimal(0)))
        return Fraction(sum((x ** Decimal(p) for x in numbers), Decimal(0)))


def _sixty_digits() -> AbstractContextManager[Context]:
    return localcontext(Context(prec=60, Emin=-(10**9), Emax=10**9))


def sum_of_columns(values: Float64s, dtype: str) -> Float64s:
    """Return the exact sum of each column, rounded once to `dtype`."""
    total, inexact = np.zeros(values.shape[1:]), np.zeros(values.shape[1:], bool)
    with np.errstate(all="ignore"):
        for row in values:
            grown = total + row
            taken = grown - total
            inexact |= (total - (grown - taken)) + (row - taken) != 0  # whether the addition rounded
            total = grown
    sums = np.array(rounded(total, dtype))
    for index in map(tuple, np.argwhere(inexact & np.isfinite(values).all(axis=0))):
        sums[index] = nearest(sum(map(Fraction, values[(slice(None), *index)].tolist()), Fraction(0)), dtype)
    return sums
