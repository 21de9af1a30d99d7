"""Compute on CPU memory, with a `TensorList` of the compiled kernels or an `ArrayList` of NumPy arrays.

Both classes return the same bits. NumPy has no bfloat16, so arrays of uint16 contain the bits of bfloat16 numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core.exact import BLOCK, FORMATS, LIMBS, Accumulator, nearest, rounded_norm
from .._core.types import Scalar
from .._native import KERNELS
from .device import odd_bits

Array = npt.NDArray[Any]

CODES = {"float16": "e", "bfloat16": "B", "float32": "f", "float64": "d", "complex64": "F", "complex128": "D"}

FORMAT_NAMES = tuple(FORMATS)

ALIGNMENT, MIN_SHARED_BYTES = 64, 4096
"""In bytes. TensorFlow and JAX can share the memory of arrays with this alignment and at least this size."""


CHUNK = 16 * BLOCK
"""This many float64 numbers fit into the cache."""

LIMB = 18
"""A mantissa of 53 bits is split into three limbs of 18, 18 and 17 bits.

A limb, or a sum of products of two limbs, is below 2**37. A sum of CHUNK such numbers is below 2**53.
"""

Part = tuple[Array, str]


class ArrayList:
    is_short = True  # NumPy uses one thread

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def norm(self, p: int, is_float64: bool, threads: int) -> float:
        dtype = "float64" if is_float64 else "float32"
        return rounded_norm(partial(power_sum, self, p, dtype, threads), p, dtype)

    def power_sum(self, p: int, method: str, threads: int) -> tuple[bytes, bool, bool]:
        real = [part for view, dtype in self._parts for part in _real_and_imaginary(view, dtype)]
        total = _block_sums(real, p) if method == "blocks" else _exact_sum(real, p)
        return total.total.to_bytes(4 * LIMBS, "little"), total.nan, total.infinite

    def max_abs(self, threads: int) -> float:
        magnitudes = (float(np.max(np.abs(decode(view, dtype)))) for view, dtype in self._parts if view.size)
        return max(magnitudes, default=0.0, key=nan_last)

    def slice_sums(self, kept: list[bool], sums: npt.NDArray[np.float64], threads: int) -> None:
        ((view, dtype),) = self._parts
        sums[...] = _slice_sums(view, dtype, kept, np.float64).reshape(sums.shape)

    def scale(self, coef: Scalar, threads: int, results: Sequence[Array]) -> None:
        """16-bit numbers are multiplied in float32."""
        for (view, dtype), out in zip(self._parts, results, strict=True):
            if isinstance(coef, float) and coef == 1.0:
                np.copyto(out, view)
            elif view.size:  # an empty array may be read-only
                _scale(view, dtype, coef, out)

    def scale_(self, coef: Scalar, threads: int) -> None:
        self.scale(coef, threads, [view for view, _ in self._parts])

    def clamp(self, low: Sequence[float], high: Sequence[float], threads: int, results: Sequence[Array]) -> None:
        for (view, dtype), out in zip(self._parts, results, strict=True):
            if view.size:
                format_index = FORMAT_NAMES.index(dtype)
                clamp(view, dtype, np.asarray(low[format_index]), np.asarray(high[format_index]), out)

    def clamp_(self, low: Sequence[float], high: Sequence[float], threads: int) -> None:
        self.clamp(low, high, threads, [view for view, _ in self._parts])


def array_list(parts: Sequence[Part]) -> Any:
    if KERNELS is None or not all(dtype in CODES and view.dtype.isnative for view, dtype in parts):
        return ArrayList(parts)
    return KERNELS.TensorList.of_arrays([view for view, _ in parts], "".join(CODES[dtype] for _, dtype in parts))


def power_sum(arrays: Any, p: int, dtype: str, threads: int, exactly: bool) -> Accumulator:
    """`exactly=False` returns a sum that is precise enough for a norm in `dtype`."""
    method = "exact" if exactly else "blocks" if dtype == "float32" else "compensated"
    limbs, nan, infinite = arrays.power_sum(p, method, threads)
    sums = SUMS[method](int.from_bytes(limbs, "little"))
    return sums + Accumulator(nan=nan, infinite=infinite) if nan or infinite else sums


SUMS = {"blocks": Accumulator.from_block_sums, "compensated": Accumulator.from_compensated_sums, "exact": Accumulator}


def _real_and_imaginary(view: Array, dtype: str) -> list[Part]:
    if not dtype.startswith("complex"):
        return [(view, dtype)]
    return [(view.real, part_dtype(dtype)), (view.imag, part_dtype(dtype))]


def _block_sums(parts: Sequence[tuple[Array, str]], p: int) -> Accumulator:
    sums = []
    for chunk in _chunks(parts):
        blocks = chunk.reshape(-1, BLOCK)
        sums.append(np.einsum("ij,ij->i", blocks, blocks) if p == 2 else np.abs(blocks).sum(axis=1))
    flat = np.concatenate(sums) if sums else np.zeros(0)
    finite = np.isfinite(flat)
    total = Accumulator.from_block_sums(sum_exactly(flat[finite], 1).total)
    return total + Accumulator(nan=bool(np.isnan(flat).any()), infinite=bool(np.isinf(flat).any()))


def _exact_sum(parts: Sequence[tuple[Array, str]], p: int) -> Accumulator:
    total = Accumulator()
    for chunk in _chunks(parts):
        finite = np.isfinite(chunk)
        if finite.all():
            total += sum_exactly(chunk, p)
        else:
            total += Accumulator(nan=bool(np.isnan(chunk).any()), infinite=bool(np.isinf(chunk).any()))
    return total


def _chunks(parts: Sequence[tuple[Array, str]]) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the elements in chunks, which all use one buffer. Zeros extend the last chunk to a multiple of BLOCK."""
    buffer = np.empty(CHUNK)
    filled = 0
    for view, dtype in parts:
        flat = view.ravel(order="K")
        start = 0
        while start < flat.size:
            piece = flat[start : start + CHUNK - filled]
            buffer[filled : filled + piece.size] = decode(piece, dtype)
            start, filled = start + piece.size, filled + piece.size
            if filled == CHUNK:
                yield buffer
                filled = 0
    if filled:
        end = -(-filled // BLOCK) * BLOCK
        buffer[filled:end] = 0.0
        yield buffer[:end]


def general_norm(parts: Sequence[Part], p: float, dtype: str, threads: int = 1) -> float:
    parts = magnitudes(parts)
    top = array_list(parts).max_abs(threads)
    if top == 0 or not math.isfinite(top):
        return float(top)
    return general_root(relative_sum(parts, p, top), p, top, dtype)


def magnitudes(parts: Sequence[Part]) -> list[Part]:
    """Replace complex numbers by their moduli in float64."""
    return [(_moduli(view), "float64") if dtype.startswith("complex") else (view, dtype) for view, dtype in parts]


def _moduli(view: Array) -> Array:
    # np.hypot of float64 is off by up to 1 ULP, and a sum of such moduli by more
    wide = view.astype(np.clongdouble)
    with np.errstate(over="ignore"):
        moduli = np.hypot(wide.real, wide.imag).astype(np.float64)
    return np.where(np.isnan(wide), np.nan, moduli)  # hypot(inf, nan) is inf


def relative_sum(parts: Sequence[tuple[Array, str]], p: float, top: float) -> tuple[float, float]:
    total = np.longdouble(0)
    for chunk in _chunks(parts):
        total += np.sum((np.abs(chunk).astype(np.longdouble) / top) ** np.longdouble(p))
    return float(total), float(total - np.longdouble(float(total)))


def general_root(total: tuple[float, float], p: float, top: float, dtype: str) -> float:
    root = np.longdouble(top) * (np.longdouble(total[0]) + np.longdouble(total[1])) ** (1 / np.longdouble(p))
    with np.errstate(over="ignore"):  # otherwise NumPy warns of the overflow
        return float(np.float64(root) if dtype == "float64" else np.float32(root))


def nan_last(value: float) -> tuple[bool, float]:
    return (value != value, value)


def slice_norms(
    view: Array, dtype: str, axes: Sequence[int], norm_name: str, threads: int = 1
) -> npt.NDArray[np.float64]:
    """Return the correctly rounded 2-norm of each slice. The result has length 1 along `axes`."""
    kept = [axis not in axes for axis in range(view.ndim)]
    shape = [length if keep else 1 for length, keep in zip(view.shape, kept, strict=True)]
    wide = wider_than(norm_name)
    if wide is None:
        norms, doubt = np.empty(math.prod(shape)), list(range(math.prod(shape)))
    else:
        if norm_name == "float32":
            sums = np.zeros(shape)
            array_list([(view, dtype)]).slice_sums(kept, sums, threads)
        else:
            sums = _slice_sums(view, dtype, kept, wide)
        length = view.size // max(sums.size, 1)
        norms, doubt = certified_roots(sums.ravel(), (2 * length + 4) * np.finfo(wide).eps, norm_name)
    slices = _slices(view, kept)
    for index in doubt:
        part = slices[np.unravel_index(index, slices.shape[: sum(kept)])]
        norms[index] = array_list([(part, dtype)]).norm(2, norm_name == "float64", threads)
    return norms.reshape(shape)


def _slices(view: Array, kept: list[bool]) -> Array:
    return np.transpose(view, sorted(range(view.ndim), key=lambda axis: not kept[axis]))


def _slice_sums(view: Array, dtype: str, kept: list[bool], wide: type[np.floating[Any]]) -> npt.NDArray[Any]:
    parts = [_slices(decode(*part), kept) for part in _real_and_imaginary(view, dtype)]
    squares = (np.square(part.astype(wide)) for part in parts)
    sums: npt.NDArray[Any] = sum(square.sum(axis=tuple(range(sum(kept), view.ndim))) for square in squares)
    return sums


def certified_roots(sums: Any, lost: Any, dtype: str = "float32") -> tuple[Array, list[int]]:
    """Return (rounded square roots, indices of the roots that might be rounded wrongly).

    lost: The relative error of the sums.
    """
    sums = np.asarray(sums)
    lost = np.asarray(lost) + 4 * np.finfo(sums.dtype).eps  # for the product and the root below
    low, high = np.sqrt(sums * (1 - lost)).astype(dtype), np.sqrt(sums * (1 + lost)).astype(dtype)
    differs = low != high
    doubt = np.flatnonzero(differs & ~np.isnan(low)).tolist() if np.count_nonzero(differs) else []
    return low.astype(np.float64), doubt


def certified_root(total: float, lost: float) -> float | None:
    """Return the correctly rounded square root in float32, or None if the rounding is uncertain."""
    if not 1e-70 < total < 1e76:  # the root is a normal float32
        return None
    lost += 2.0**-50  # for the product and the root below
    low, high = np.float32(math.sqrt(total * (1 - lost))), np.float32(math.sqrt(total * (1 + lost)))
    return float(low) if low == high else None


def wider_than(dtype: str) -> type[np.floating[Any]] | None:
    """Return a dtype that is more precise than `dtype`, or None if the processor has none."""
    wide = np.longdouble if dtype == "float64" else np.float64
    return wide if np.finfo(wide).eps < np.finfo("float32" if dtype == "bfloat16" else dtype).eps else None


def _scale(view: Array, dtype: str, coef: Scalar, out: Array) -> None:
    if dtype.startswith("complex"):
        part = part_dtype(dtype)
        _scale(view.real, part, coef, out.real)
        _scale(view.imag, part, coef, out.imag)
    elif dtype == "float64":
        np.multiply(view, coef, out=out)
    elif dtype == "float32":
        np.multiply(view, np.asarray(coef, dtype=np.float32), out=out)
    else:
        out[...] = encode(decode(view, dtype).astype(np.float32) * np.asarray(coef, dtype=np.float32), dtype)


def bounds(value: float) -> list[float]:
    return [nearest(value, dtype) for dtype in FORMAT_NAMES]


def clamp(view: Array, dtype: str, low: Array, high: Array, out: Array) -> None:
    values = decode(view, dtype)
    below, above = values < low, values > high
    if out is not view:
        np.copyto(out, view)
    np.copyto(out, encode(high, dtype), where=above)
    np.copyto(out, encode(low, dtype), where=below)


def shareable_empty_like(view: Array) -> Array:
    """Align a large array, so that TensorFlow and JAX can share its memory."""
    if view.nbytes < MIN_SHARED_BYTES or not view.flags.c_contiguous:
        return np.empty_like(view)
    memory = np.empty(view.nbytes + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + view.nbytes].view(view.dtype).reshape(view.shape)


def part_dtype(dtype: str) -> str:
    return "float64" if dtype == "complex128" else "float32"


# -- number formats


def is_array(value: Any) -> bool:
    """Return False for masked arrays, because a clip would include the masked elements."""
    return isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, np.ma.MaskedArray)


def own_copy(value: Any) -> Array:
    """Return a copy in the machine's byte order."""
    return np.array(value, dtype=value.dtype.newbyteorder("="))


@lru_cache(maxsize=64)
def dtype_name(dtype: np.dtype[Any]) -> str:
    return str(dtype.name)


def storage(array: Array) -> tuple[Array, str]:
    name = dtype_name(array.dtype)
    return (array.view(np.uint16) if name == "bfloat16" else array), name


def decode(array: Array, dtype: str) -> Array:
    """Return the numbers, with bfloat16 converted to float32."""
    if dtype != "bfloat16":
        return array
    return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode(values: Array, dtype: str) -> Array:
    """Round float32 numbers to float16 or bfloat16, with ties to even. bfloat16 is returned as uint16 bits."""
    if dtype == "float16":
        return values.astype(np.float16, copy=False)
    if dtype != "bfloat16":
        return values
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), bits >> np.uint32(16) | np.uint32(0x40), rounded).astype(np.uint16)


def round_to(values: Array, dtype: str) -> Array:
    """Round float64 numbers directly to a dtype. Return numbers rounded to bfloat16 as a float32 array."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    near = values.astype(np.float32)
    bits = odd_bits(values, near.astype(np.float64), near.view(np.int32), np.where)
    return decode(encode(bits.view(np.float32), dtype), dtype)


# -- exact sums, without the compiled kernels


def sum_exactly(values: npt.NDArray[np.float64], p: int) -> Accumulator:
    """Return the exact sum of |x|**p of finite numbers, for p of 1 or 2."""
    total = 0
    for start in range(0, values.size, CHUNK):
        bits = np.ascontiguousarray(values[start : start + CHUNK]).view(np.uint64)
        exponent = ((bits >> np.uint64(52)) & np.uint64(0x7FF)).astype(np.int64)
        mantissa = bits & np.uint64((1 << 52) - 1) | (exponent > 0).astype(np.uint64) << np.uint64(52)
        exponent = np.maximum(exponent, 1) - 1  # |x| is mantissa * 2**exponent in units of 2**-1074
        a, b, c = (
            ((mantissa >> np.uint64(k * LIMB)) & np.uint64((1 << LIMB) - 1)).astype(np.float64) for k in range(3)
        )
        limbs = [a, b, c] if p == 1 else [a * a, 2 * a * b, 2 * a * c + b * b, 2 * b * c, c * c]
        for k, limb in enumerate(limbs):
            sums = np.bincount(exponent, weights=limb)  # exact: integers below 2**53
            for e in np.flatnonzero(sums):
                total += int(sums[e]) << (p * int(e) + k * LIMB + (1074 if p == 1 else 0))
    return Accumulator(total)
