"""Add up sums of |g|**p exactly, and round the norm.

Kernels return sums as integers in units of 2**-UNIT. So the order in which blocks, tensors, threads or ranks are added
does not matter. Each sum has an error bound. The method `root` rounds the norms of the smallest and the largest
possible sum. If both results are equal, the norm is correctly rounded (Ziv's test). Otherwise, the caller computes the
exact sum.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

UNIT = 2148
"""2**-2148 is the square of the smallest float64. The exponent is even, so the square root of a unit is a power of
two."""

BLOCK = 4096
"""A kernel adds at most this many elements in float64 before it adds the sum to an accumulator."""

BLOCK_ERROR_SHIFT = 40
"""The relative error of a block sum is below 2**-40.

In any order, adding 4096 non-negative float64 numbers has a relative error of at most about 4095 * 2**-53.
"""

COMPENSATED_ERROR_SHIFT = 80
"""If a sum is stored as two float64 numbers, its relative error is below 2**-80 (see `_native/kernels.cpp`)."""

LIMBS = 138
"""The number of 32-bit words in a sum, as in `_native/accumulator.hpp`.

The words have room for the sum of 2**200 squares of the largest float64.
"""

WORDS = LIMBS + 4


class Format(NamedTuple):
    precision: int
    min_exponent: int
    max_exponent: int


FORMATS = {
    "float16": Format(11, -14, 15),
    "bfloat16": Format(8, -126, 127),
    "float32": Format(24, -126, 127),
    "float64": Format(53, -1022, 1023),
}


@dataclass(frozen=True)
class Accumulator:
    """A sum of |g|**p in units of 2**-UNIT. The error of the sum is at most `slack` units."""

    total: int = 0
    blocks: int = 0
    """The number of block sums in `total`. The relative error of a block sum is below 2**-BLOCK_ERROR_SHIFT."""

    compensated: int = 0

    nan: bool = False
    infinite: bool = False

    def __add__(self, other: Accumulator) -> Accumulator:
        return Accumulator(
            self.total + other.total,
            self.blocks + other.blocks,
            self.compensated + other.compensated,
            self.nan or other.nan,
            self.infinite or other.infinite,
        )

    @classmethod
    def from_block_sums(cls, total: int) -> Accumulator:
        return cls(total, blocks=1 if total else 0)

    @classmethod
    def from_compensated_sums(cls, total: int) -> Accumulator:
        return cls(total, compensated=1 if total else 0)

    @property
    def slack(self) -> int:
        blocks = (self.total >> BLOCK_ERROR_SHIFT) + self.blocks if self.blocks else 0
        compensated = (self.total >> COMPENSATED_ERROR_SHIFT) + self.compensated if self.compensated else 0
        return blocks + compensated

    def to_words(self) -> list[int]:
        """Return WORDS integers below 2**32. Their sums over up to 2**31 ranks fit into int64."""
        limbs = struct.unpack(f"<{LIMBS}I", self.total.to_bytes(4 * LIMBS, "little"))
        return [*limbs, self.blocks, self.compensated, self.nan, self.infinite]

    @classmethod
    def from_words(cls, words: Sequence[int]) -> Accumulator:
        total = sum(word << (32 * place) for place, word in enumerate(words[:LIMBS]) if word)
        blocks, compensated, nan, infinite = words[LIMBS:]
        return cls(total, blocks, compensated, nan > 0, infinite > 0)

    def root(self, p: int, dtype: str) -> float | None:
        """Return the correctly rounded p-th root, for p of 1 or 2. Return None if the error of the sum is too large
        to decide the rounding."""
        if self.nan:
            return math.nan
        if self.infinite:
            return math.inf
        slack = self.slack
        low = _rounded_root(max(self.total - slack, 0), p, dtype)
        high = _rounded_root(self.total + slack, p, dtype) if slack else low
        return low if low == high else None


def rounded_norm(sums: Callable[[bool], Accumulator], p: int, dtype: str) -> float:
    """`sums(False)` returns a fast sum, and `sums(True)` the exact sum."""
    n = sums(False).root(p, dtype)
    n = sums(True).root(p, dtype) if n is None else n
    assert n is not None, "bug in unified_clip: the exact sum has a rounding error"
    return n


def nearest(value: float | Fraction, dtype: str) -> float:
    """Round once, ties to even. The denominator of a fraction must be a power of two."""
    if value == 0 or (isinstance(value, float) and not math.isfinite(value)):
        return float(value)
    ratio = Fraction(value)
    rounded = _round(abs(ratio.numerator), 1 - ratio.denominator.bit_length(), False, FORMATS[dtype])
    return -rounded if value < 0 else rounded


def _rounded_root(total: int, p: int, dtype: str) -> float:
    """Return (total * 2**-UNIT)**(1/p), rounded to `dtype`."""
    if p == 1:
        return _round(total, -UNIT, False, FORMATS[dtype])
    # Shift so that the integer root has 65 bits or more: then one sticky bit decides every rounding.
    shift = (131 - total.bit_length()) // 2
    shifted = total << 2 * shift if shift > 0 else total >> -2 * shift
    root = math.isqrt(shifted)
    sticky = root * root != shifted or (shift < 0 and shifted << -2 * shift != total)
    return _round(root, -UNIT // 2 - shift, sticky, FORMATS[dtype])


def _round(mantissa: int, exponent: int, sticky: bool, target: Format) -> float:
    """Round mantissa * 2**exponent to `target`, ties to even.

    sticky: Whether nonzero bits after the last bit of `mantissa` were dropped.
    """
    if mantissa == 0:
        return 0.0
    mantissa, exponent = mantissa << 2 | sticky, exponent - 2
    top = exponent + mantissa.bit_length() - 1
    last = max(top, target.min_exponent) - target.precision + 1  # the exponent of the result's last bit
    drop = last - exponent
    if drop > 0:
        kept, rest, half = mantissa >> drop, mantissa & ((1 << drop) - 1), 1 << (drop - 1)
        mantissa, exponent = kept + (rest > half or (rest == half and kept & 1)), last
    if exponent + mantissa.bit_length() - 1 > target.max_exponent:
        return math.inf
    if mantissa.bit_length() > target.precision:  # these bits are zeros. Drop them, because ldexp needs a float
        spare = mantissa.bit_length() - target.precision
        mantissa, exponent = mantissa >> spare, exponent + spare
    return math.ldexp(mantissa, exponent)
