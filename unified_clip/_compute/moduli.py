"""The exact sum and the correctly rounded maximum of the moduli |x + yj| of complex numbers.

Two float64 numbers represent a modulus with a relative error below 2**-95. `exact_sum` is more precise:
it computes each modulus in units of 2**-UNIT, rounded down.
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
"""Products with this factor split a float64 into its upper 26 bits and the rest (Veltkamp)."""

NEAR = 2.0**-48, 2.0**-90
"""Error bounds of `high`, and of `high + low`, from `_sum_of_squares`. They are relative to the largest square."""


SMALL = 2.0**-400
"""The squares of larger moduli do not underflow."""


class Scaled(NamedTuple):
    """The magnitudes, divided by a power of two so that the largest is near 1."""

    x: Float64s
    y: Float64s
    exponent: int


def rounded(view: Array) -> Float64s:
    """Return the moduli in float64, with an error of at most one ULP."""
    wide = view.astype(np.complex128)
    near = np.hypot(wide.real, wide.imag)  # more precise than np.abs
    if view.dtype != np.complex64:  # for complex64, float64 moduli are precise enough
        flat, moduli = wide.reshape(-1), near.reshape(-1)
        for start in range(0, flat.size, CHUNK):
            chunk, out = flat[start : start + CHUNK], moduli[start : start + CHUNK]
            if not np.isfinite(chunk).all() or not chunk.any():
                continue
            x, y, exponent = _scaled(chunk)
            high, low = _root(*_sum_of_squares(x, y))
            np.copyto(out, np.ldexp(high + low, exponent), where=high > SMALL)
    return np.where(np.isnan(wide), np.nan, near)  # hypot(inf, nan) is inf


def compensated_sum(view: Array) -> Accumulator:
    total = Accumulator()
    for chunk in _chunks(view):
        flags = _flags(chunk)
        total += flags
        if flags.nan or flags.infinite or not chunk.any():
            continue
        x, y, exponent = _scaled(chunk)
        high, low = _root(*_sum_of_squares(x, y))
        units = sum_exactly(high, 1).total + sum_exactly(low[low > 0], 1).total - sum_exactly(low[low < 0], 1).total
        total += Accumulator.from_compensated_sums(units << exponent if exponent >= 0 else units >> -exponent)
    return total


def exact_sum(view: Array) -> Accumulator:
    total = Accumulator()
    for chunk in _chunks(view):
        flags = _flags(chunk)
        total += flags
        if flags.nan or flags.infinite:
            continue
        squares = [_square(x, y) << UNIT for x, y in zip(chunk.real.tolist(), chunk.imag.tolist(), strict=True)]
        roots = list(map(math.isqrt, squares))
        inexact = sum(root * root != square for root, square in zip(roots, squares, strict=True))
        total += Accumulator(sum(roots), roots=inexact)
    return total


def max_abs(view: Array, dtype: str) -> float:
    result, squares = Accumulator(), {0}
    for chunk in _chunks(view):
        result += _flags(chunk)
        if not (result.nan or result.infinite) and chunk.any():
            squares.add(_max_square(chunk))
    result += Accumulator(max(squares))
    return rounded_norm(lambda _: result, 2, dtype)


def _max_square(chunk: Array) -> int:
    """Return the square of the largest modulus, in units of 2**-UNIT."""
    x, y, _ = _scaled(chunk)
    high, low = _sum_of_squares(x, y)
    near = np.flatnonzero(high >= high.max() * (1 - NEAR[0]))
    differences = (high[near] - high.max()) + low[near]
    near = near[differences >= differences.max() - NEAR[1]]
    parts = set(zip(np.abs(chunk.real[near]).tolist(), np.abs(chunk.imag[near]).tolist(), strict=True))
    return max(_square(x, y) for x, y in parts)


def _chunks(view: Array) -> Iterator[npt.NDArray[np.complex128]]:
    flat = view.ravel(order="K")
    return (flat[start : start + CHUNK].astype(np.complex128) for start in range(0, flat.size, CHUNK))


def _flags(chunk: Array) -> Accumulator:
    nan = np.isnan(chunk)
    return Accumulator(nan=bool(nan.any()), infinite=bool((np.isinf(chunk) & ~nan).any()))


def _square(x: float, y: float) -> int:
    return _in_units(x) ** 2 + _in_units(y) ** 2


def _in_units(number: float) -> int:
    numerator, denominator = number.as_integer_ratio()
    return numerator * ((1 << UNIT // 2) // denominator)


def _scaled(chunk: Array) -> Scaled:
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
    """Return x * x as the sum of two float64 (Dekker), if nothing underflows."""
    upper = SPLITTER * x
    upper = upper - (upper - x)
    lower = x - upper
    square = x * x
    return square, ((upper * upper - square) + 2 * upper * lower) + lower * lower


def _normalized(high: Float64s, low: Float64s) -> tuple[Float64s, Float64s]:
    total = high + low
    return total, low - (total - high)
