"""The contract in exact arithmetic, independent of the library: fractions, and midpoints between floats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import ml_dtypes
import numpy as np

NUMPY = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
    "complex64": np.complex64,
    "complex128": np.complex128,
}
LARGEST = {
    "float16": Fraction(65504),
    "bfloat16": Fraction(2**128 - 2**120),
    "float32": Fraction(2**128 - 2**104),
    "float64": Fraction(2**1024 - 2**971),
}


def array(values: object, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(NUMPY.get(dtype, dtype))


def norm_dtype(dtypes: Iterable[str]) -> str:
    return "float64" if {"float64", "complex128"} & set(dtypes) else "float32"


def norm(arrays: Iterable[np.ndarray], p: float = 2.0) -> float:
    """Return the exact p-norm (p of 1, 2, inf) of all arrays, rounded once to float32 or their widest dtype."""
    arrays = list(arrays)
    dtype = norm_dtype(a.dtype.name for a in arrays)
    components = [component for a in arrays for component in (_wide(a).real, _wide(a).imag)]
    if any(np.isnan(component).any() for component in components):
        return math.nan
    if any(np.isinf(component).any() for component in components):
        return math.inf
    parts, unit = _in_units(arrays)
    squares = [real * real + imaginary * imaginary for real, imaginary in parts]
    if p == 1:
        real_sum = sum(abs(real) for real, imaginary in parts if not imaginary) * unit
        moduli = [square * unit**2 for square, (_, imaginary) in zip(squares, parts, strict=True) if imaginary]
        return nearest_sum_of_roots(moduli, dtype, real_sum)
    return nearest_root((sum(squares) if p == 2 else max(squares, default=0)) * unit**2, dtype)


def general_norm(arrays: Iterable[np.ndarray], p: float) -> float:
    """Return the p-norm for any p, computed in long doubles, and rounded to float32 or the widest dtype."""
    arrays = list(arrays)
    magnitudes = np.concatenate([np.zeros(0, np.longdouble), *(_magnitudes(_wide(a)).ravel() for a in arrays)])
    top = magnitudes.max(initial=0)
    if top == 0 or not np.isfinite(top):
        return float(top)
    root = top * np.sum((magnitudes / top) ** np.longdouble(p)) ** (1 / np.longdouble(p))
    with np.errstate(over="ignore"):
        return float(root.astype(norm_dtype(a.dtype.name for a in arrays)))


def _magnitudes(wide: np.ndarray) -> np.ndarray:
    if not np.iscomplexobj(wide):
        return np.abs(wide.astype(np.longdouble))
    moduli = np.hypot(wide.real.astype(np.longdouble), wide.imag.astype(np.longdouble))
    return np.where(np.isnan(wide), np.nan, moduli)  # hypot(inf, nan) is inf


def _in_units(arrays: Iterable[np.ndarray]) -> tuple[list[tuple[int, int]], Fraction]:
    """Return the real and imaginary parts of all elements as multiples of a power of two, and this power."""
    values = np.concatenate([np.zeros(0, np.complex128), *(_wide(a).ravel() for a in arrays)])
    fractions, exponents = np.frexp([values.real, values.imag])
    least = int(exponents.min(initial=0))
    integers, shifts = (fractions * 2.0**53).astype(np.int64).tolist(), (exponents - least).tolist()
    rows = [[number << shift for number, shift in zip(*row, strict=True)] for row in zip(integers, shifts, strict=True)]
    return list(zip(*rows, strict=True)), Fraction(2) ** (least - 53)


def nearest(value: Fraction, dtype: str) -> float:
    return _nearest(dtype, _guess(value, dtype), lambda point: (value > point) - (value < point))


def nearest_root(square: Fraction, dtype: str) -> float:
    scale = 4 ** max(0, (square.denominator.bit_length() - square.numerator.bit_length()) // 2 + 64)
    root = Fraction(math.isqrt(int(square * scale)), math.isqrt(scale))
    return _nearest(dtype, _guess(root, dtype), lambda point: (square > point * point) - (square < point * point))


def nearest_sum_of_roots(squares: Sequence[Fraction], dtype: str, other: Fraction = Fraction(0)) -> float:
    """Return the float of `dtype` nearest to the sum of `other` and of square roots. Denominators are powers of two."""
    bits = 1200
    while True:
        scaled = [int(square * 4**bits) for square in squares]
        roots = [math.isqrt(square) for square in scaled]
        inexact = sum(root * root != square * 4**bits for root, square in zip(roots, squares, strict=True))
        low, high = (nearest(Fraction(sum(roots) + more, 2**bits) + other, dtype) for more in (0, inexact))
        if low == high:
            return low
        bits *= 2


def _guess(value: Fraction, dtype: str) -> np.floating:
    with np.errstate(over="ignore"):
        return NUMPY[dtype](float(min(value, LARGEST[dtype])))


def _nearest(dtype: str, guess: np.floating, compare: object) -> float:
    """Return the guess or a neighbour: the float whose midpoints enclose the value."""
    kind = NUMPY[dtype]
    with np.errstate(over="ignore"):
        below, above = np.nextafter(guess, kind(0)), np.nextafter(guess, kind(np.inf))
    for low, high in ((below, guess), (guess, above)):
        if low == high:
            continue
        top = Fraction(2) ** LARGEST[dtype].numerator.bit_length()
        middle = (Fraction(float(low)) + (top if np.isinf(high) else Fraction(float(high)))) / 2
        side = compare(middle)  # type: ignore[operator]
        even = low if int(low.view(f"u{low.itemsize}")) % 2 == 0 else high  # NumPy 1 divides in float64
        if side < 0 or (side == 0 and even == low):
            return float(low)
        if side == 0:
            return float(high)
    return float(above)


def spacing(value: float) -> float:
    return float(np.spacing(np.float32(min(value, 1e38))))


def coefficient(n: float, limit: float, eps: float = 0.0, *, infinite_gives_nan: bool = False) -> float:
    if infinite_gives_nan and math.isinf(n):
        return math.nan
    if n + eps <= limit:
        return 1.0
    return limit / (n + eps)


def scaled(values: np.ndarray, coef: float) -> np.ndarray:
    """Return g * coef, rounded once. coef is float32, and so is the product of 16-bit numbers."""
    if coef == 1.0:
        return values.copy()
    with np.errstate(all="ignore"):
        if np.iscomplexobj(values):
            result = np.empty_like(values)
            result.real, result.imag = scaled(values.real, coef), scaled(values.imag, coef)
            return result
        if values.dtype == np.float64:
            return values * np.float64(coef)
        return (values.astype(np.float32) * np.float32(coef)).astype(values.dtype)


def clamped(values: np.ndarray, low: float, high: float) -> np.ndarray:
    low, high = (array(rounded(bound, values.dtype.name), values.dtype.name) for bound in (low, high))
    with np.errstate(invalid="ignore"):
        return np.where(values < low, low, np.where(values > high, high, values))


def rounded(value: float, dtype: str) -> float:
    """Round once. NumPy rounds a float64 to float32 before it rounds to bfloat16."""
    if not math.isfinite(value) or value == 0:
        return float(value)
    return math.copysign(nearest(abs(Fraction(value)), dtype), value)


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)


# -- derivatives, in float64: of the sum of w times a result, and of that derivative's inner product with v


def derivative_of_clipping(x: np.ndarray, limit: float, w: np.ndarray) -> np.ndarray:
    """Return the derivative by x of the sum of w * x * min(1, limit / n), with n the 2-norm of x."""
    n = np.sqrt((x * x).sum())
    return w if n <= limit else limit / n * (w - x * (w * x).sum() / n**2)


def second_derivative_of_clipping(x: np.ndarray, limit: float, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    n = np.sqrt((x * x).sum())
    if n <= limit:
        return np.zeros_like(x)
    wx, xv, wv = (w * x).sum(), (x * v).sum(), (w * v).sum()
    return limit * (3 * x * wx * xv / n**5 - (w * xv + v * wx + x * wv) / n**3)


def derivative_of_norm(x: np.ndarray, p: float) -> np.ndarray:
    """Return the derivative of the p-norm at elements other than 0."""
    n = (np.abs(x) ** p).sum() ** (1 / p)
    return np.sign(x) * (np.abs(x) / n) ** (p - 1)


def second_derivative_of_norm(x: np.ndarray, p: float, v: np.ndarray) -> np.ndarray:
    first, n = derivative_of_norm(x, p), (np.abs(x) ** p).sum() ** (1 / p)
    return (p - 1) * (np.abs(x) ** (p - 2) / n ** (p - 1) * v - first * (first * v).sum() / n)
