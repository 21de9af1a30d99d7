"""Moduli |x + yj| of complex numbers: their exact sum, and the greatest of them correctly rounded.

A modulus is a square root, which float64 rounds. Here it is the sum of two float64, off by less than 2**-95 of itself,
or, where that leaves the result open, a whole number of units: see `Accumulator`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._core.exact import UNIT, Accumulator, rounded_norm
from .exact_sums import CHUNK, sum_exactly

Array = npt.NDArray[Any]
Float64s = npt.NDArray[np.float64]

SPLITTER = 2.0**27 + 1
"""Multiplied by this, a float64 yields its upper 26 bits (Veltkamp)."""

NEAR = 2.0**-48, 2.0**-90
"""Squares of moduli that are this much smaller than the greatest, relative to it, are not the greatest: by what float64
holds of them, and by what two float64 hold."""


SMALL = 2.0**-400
"""Below it, squares of scaled moduli lose what two float64 would hold."""


class Scaled(NamedTuple):
    """The magnitudes of real and imaginary parts, divided by a power of two so that the greatest is near 1."""

    x: Float64s
    y: Float64s
    exponent: int


def rounded(view: Array) -> Float64s:
    """Return the moduli in float64, off by an ULP at most; NaN where either part is."""
    wide = view.astype(np.complex128)
    near = np.hypot(wide.real, wide.imag)  # closer than np.abs
    if view.dtype != np.complex64:  # whose float64 moduli are as good as exact
        flat, moduli = wide.reshape(-1), near.reshape(-1)
        for start in range(0, flat.size, CHUNK):
            chunk, out = flat[start : start + CHUNK], moduli[start : start + CHUNK]
            if not np.isfinite(chunk).all() or not chunk.any():
                continue
            x, y, exponent = _scaled(chunk)
            high, low = _root(*_sum_of_squares(x, y))
            np.copyto(out, np.ldexp(high + low, exponent), where=high > SMALL)
    return np.where(np.isnan(wide), np.nan, near)  # hypot(inf, nan) is inf


def pair_sum(view: Array) -> Accumulator:
    """Return the sum of moduli, each as that of two float64."""
    found = Accumulator()
    for chunk in _chunks(view):
        finite = _finite(chunk)
        found += finite
        if finite.nan or finite.infinite or not chunk.any():
            continue
        x, y, exponent = _scaled(chunk)
        high, low = _root(*_sum_of_squares(x, y))
        units = sum_exactly(high, 1).total + sum_exactly(low[low > 0], 1).total - sum_exactly(low[low < 0], 1).total
        found += Accumulator.of_pair_sums(units << exponent if exponent >= 0 else units >> -exponent)
    return found


def exact_sum(view: Array) -> Accumulator:
    """Return the sum of moduli, each that is not a whole number of units rounded down."""
    found = Accumulator()
    for chunk in _chunks(view):
        finite = _finite(chunk)
        found += finite
        if finite.nan or finite.infinite:
            continue
        squares = [_square(x, y) << UNIT for x, y in zip(chunk.real.tolist(), chunk.imag.tolist(), strict=True)]
        roots = list(map(math.isqrt, squares))
        inexact = sum(root * root != square for root, square in zip(roots, squares, strict=True))
        found += Accumulator(sum(roots), roots=inexact)
    return found


def max_abs(view: Array, dtype: str) -> float:
    """Return the greatest modulus, rounded once; NaN if there is any, 0 for no elements."""
    found, squares = Accumulator(), {0}
    for chunk in _chunks(view):
        found += _finite(chunk)
        if not (found.nan or found.infinite) and chunk.any():
            squares.add(_greatest_square(chunk))
    found += Accumulator(max(squares))
    return rounded_norm(lambda _: found, 2, dtype)


def _greatest_square(chunk: Array) -> int:
    """In units, of the few that two float64 each do not tell apart."""
    x, y, _ = _scaled(chunk)
    high, low = _sum_of_squares(x, y)
    near = np.flatnonzero(high >= high.max() * (1 - NEAR[0]))
    differences = (high[near] - high.max()) + low[near]
    near = near[differences >= differences.max() - NEAR[1]]
    parts = set(zip(np.abs(chunk.real[near]).tolist(), np.abs(chunk.imag[near]).tolist(), strict=True))
    return max(_square(*each) for each in parts)


def _chunks(view: Array) -> Iterator[npt.NDArray[np.complex128]]:
    flat = view.ravel(order="K")
    return (flat[start : start + CHUNK].astype(np.complex128) for start in range(0, flat.size, CHUNK))


def _finite(chunk: Array) -> Accumulator:
    """Which numbers there are that are not."""
    nan = np.isnan(chunk)
    return Accumulator(nan=bool(nan.any()), infinite=bool((np.isinf(chunk) & ~nan).any()))


def _square(x: float, y: float) -> int:
    """x * x + y * y in units of 2**-UNIT."""
    return _in_units(x) ** 2 + _in_units(y) ** 2


def _in_units(number: float) -> int:
    """Of 2**-1074, the smallest float64, whose square is 2**-UNIT."""
    numerator, denominator = number.as_integer_ratio()
    return numerator * ((1 << UNIT // 2) // denominator)


def _scaled(chunk: Array) -> Scaled:
    """Of finite numbers that are not all 0. What underflows is nothing beside the greatest."""
    x, y = np.abs(chunk.real), np.abs(chunk.imag)
    exponent = math.frexp(max(x.max(), y.max()))[1]
    return Scaled(np.ldexp(x, -exponent), np.ldexp(y, -exponent), exponent)


def _sum_of_squares(x: Float64s, y: Float64s) -> tuple[Float64s, Float64s]:
    (xx, x_rest), (yy, y_rest) = _exact_square(x), _exact_square(y)
    total = xx + yy
    part = total - xx
    return _normalized(total, ((xx - (total - part)) + (yy - part)) + (x_rest + y_rest))


def _root(high: Float64s, low: Float64s) -> tuple[Float64s, Float64s]:
    root = np.sqrt(high)
    square, rest = _exact_square(root)
    return root, (((high - square) - rest) + low) / np.where(root == 0, 1.0, 2 * root)


def _exact_square(x: Float64s) -> tuple[Float64s, Float64s]:
    """x * x as the sum of two float64 (Dekker), if nothing underflows."""
    upper = SPLITTER * x
    upper = upper - (upper - x)
    lower = x - upper
    square = x * x
    return square, ((upper * upper - square) + 2 * upper * lower) + lower * lower


def _normalized(high: Float64s, low: Float64s) -> tuple[Float64s, Float64s]:
    total = high + low
    return total, low - (total - high)
