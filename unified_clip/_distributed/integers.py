from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction

from .._core.exact import UNIT, WORDS, Accumulator
from .digests import PIECES, split

Sum = tuple[Accumulator, str]
"""(sum of |g|**p, dtype of the norm)."""


def summands(digest: int | None) -> list[int]:
    """Return the integers that this rank sends in an all-reduce with SUM: 1, the pieces of the digest, and the square
    of each piece."""
    if digest is None:
        return [0] * (1 + 2 * PIECES)
    pieces = split(digest)
    return [1, *pieces, *(piece**2 for piece in pieces)]


def equal_summands(reduced: Sequence[int]) -> bool:
    """Return whether all digests are equal. `reduced` is the sum of `summands` over all ranks.

    Numbers are equal if and only if count * (sum of squares) == (sum)**2.
    """
    count, sums, squares = reduced[0], reduced[1 : 1 + PIECES], reduced[1 + PIECES :]
    return all(count * square == total * total for total, square in zip(sums, squares, strict=True))


def bounds(digest: int | None) -> list[int]:
    """Return the integers that this rank sends in an all-reduce with MAX.

    A rank without a digest sends numbers that do not change the maxima.
    """
    if digest is None:
        return [0, *[-(2**16)] * (2 * PIECES)]
    pieces = split(digest)
    return [1, *pieces, *(-piece for piece in pieces)]


def equal_bounds(reduced: Sequence[int]) -> bool:
    maxima, negated_minima = reduced[1 : 1 + PIECES], reduced[1 + PIECES :]
    return not reduced[0] or all(high == -low for high, low in zip(maxima, negated_minima, strict=True))


def to_words(own: Sum) -> list[int]:
    return [*own[0].to_words(), own[1] == "float64"]


def from_words(words: Sequence[int]) -> Sum:
    return Accumulator.from_words(words[:WORDS]), "float64" if words[WORDS] else "float32"


def in_units(value: float) -> int:
    return int(Fraction(value) * 2**UNIT)


def bits(value: float) -> int:
    (number,) = struct.unpack("<q", struct.pack("<d", value))
    return int(number)


def from_bits(bits: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(value)
