"""The host path: eager tensors of any framework, seen as raw memory through NumPy views.

One piece of code serves every framework, so the same numbers give the same bits on all of them, and
subnormal numbers are kept. bfloat16, which NumPy does not have, travels as its bits in uint16.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .._core.device import norm_dtype
from .._core.exact import BLOCK, Accumulator, nearest
from .._core.ops import Scalar, Tensor

Array = npt.NDArray[Any]

CHUNK = 16 * BLOCK
"""Elements that are widened to float64 at a time: small enough for the cache."""

LIMB = 18
"""A 53-bit mantissa is split into limbs of 18 bits: products of two, CHUNK of them summed, stay below 2**53."""


class HostOps(Protocol):
    """What the host path needs from a framework."""

    writable: bool

    def dtype(self, tensor: Tensor) -> str: ...

    def is_tensor(self, value: Any) -> bool: ...

    def host_view(self, tensor: Tensor) -> Array:
        """The tensor's memory; bfloat16 as uint16. Only called for tensors that the host path was taken for."""

    def from_host(self, array: Array, dtype: str) -> Tensor:
        """A tensor with the array's values; the array is new and nobody else's. bfloat16 comes as bits."""

    def norm_from_host(self, value: float, dtype: str) -> Tensor: ...

    def wrote(self, tensors: Sequence[Tensor]) -> None:
        """Tell automatic differentiation that the memory of these tensors has changed."""


class HostPath:
    """`Path` over NumPy views of the tensors' memory. Scalars are NumPy float64."""

    on_host = True

    def __init__(self, ops: HostOps, tensors: Sequence[Tensor], views: Sequence[Array]) -> None:
        self._ops = ops
        self._tensors = list(tensors)
        self._dtypes = [ops.dtype(tensor) for tensor in self._tensors]
        self._views = list(views)
        self._norm_dtype = norm_dtype(self._dtypes)

    def norm(self, p: float) -> Scalar:
        magnitudes = [part for view, dtype in self._buffers() for part in _real_parts(view, dtype, p)]
        if p in (1, 2):
            n = _exact_norm(magnitudes, int(p), self._norm_dtype)
        else:
            n = _general_norm(magnitudes, p, self._norm_dtype)
        return np.float64(n)

    def slice_norms(self, axes: Sequence[int]) -> Scalar:
        return _slice_norms(self._views[0], self._dtypes[0], axes, self._norm_dtype)

    def constant(self, value: Any) -> Scalar:
        return np.float64(value)

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return np.where(condition, yes, no)

    def scale(self, coef: Scalar) -> list[Tensor]:
        if self.is_one(coef):
            return self.unchanged()
        return self._new(lambda view, dtype, out: _scale(view, dtype, coef, out))

    def scale_(self, coef: Scalar) -> None:
        if not self.is_one(coef):
            self._write(lambda view, dtype, out: _scale(view, dtype, coef, out))

    def crossed(self, low: Any, high: Any) -> bool | None:
        return bool((self._numbers(low) > self._numbers(high)).any())

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        bounds = self._numbers(low), self._numbers(high)
        return self._new(lambda view, dtype, out: _clamp(view, dtype, *bounds, out))

    def clamp_(self, low: float, high: float) -> None:
        bounds = self._numbers(low), self._numbers(high)
        self._write(lambda view, dtype, out: _clamp(view, dtype, *bounds, out))

    def unchanged(self) -> list[Tensor]:
        if not self._ops.writable:
            return list(self._tensors)
        return self._new(lambda view, dtype, out: np.copyto(out, view))

    def as_norm(self, n: Scalar) -> Tensor:
        return self._ops.norm_from_host(float(n), self._norm_dtype)

    def is_one(self, coef: Scalar) -> bool:
        return bool(np.all(coef == 1.0))

    def is_finite(self, n: Scalar) -> bool | None:
        return bool(np.isfinite(n))

    def nonfinite_counts(self) -> list[tuple[int, int]]:
        decoded = [_decode(view, dtype) for view, dtype in self._buffers()]
        return [(int(np.isnan(values).sum()), int(np.isinf(values).sum())) for values in decoded]

    def scope(self) -> AbstractContextManager[Any]:
        return ieee_arithmetic()

    def _numbers(self, bound: Any) -> Array:
        if not self._ops.is_tensor(bound):
            return np.asarray(bound)
        return np.asarray(_decode(self._ops.host_view(bound), self._ops.dtype(bound)))

    def _buffers(self) -> Iterable[tuple[Array, str]]:
        return zip(self._views, self._dtypes, strict=True)

    def _new(self, compute: Callable[[Array, str, Array], None]) -> list[Tensor]:
        results = []
        for view, dtype in self._buffers():
            out = np.empty_like(view)
            compute(view, dtype, out)
            results.append(self._ops.from_host(out, dtype))
        return results

    def _write(self, compute: Callable[[Array, str, Array], None]) -> None:
        for view, dtype in self._buffers():
            compute(view, dtype, view)
        self._ops.wrote(self._tensors)


# -- reading: norms


def _real_parts(view: Array, dtype: str, p: float) -> list[tuple[Array, str]]:
    """Real arrays with the same sum of |g|**p: for a complex array its two parts (p = 2) or its magnitudes."""
    if not dtype.startswith("complex"):
        return [(view, dtype)]
    if p == 2:
        return [(view.real, _part(dtype)), (view.imag, _part(dtype))]
    return [(np.abs(view.astype(np.complex128)), "float64")]


def _exact_norm(parts: Sequence[tuple[Array, str]], p: int, dtype: str) -> float:
    # A float64 term has more bits than a certified block sum keeps, and a float64 norm needs more than 2**-40.
    if dtype == "float32" and all(part_dtype != "float64" for _, part_dtype in parts):
        n = _block_sums(parts, p).root(p, dtype)
        if n is not None:
            return n
    n = _exact_sum(parts, p).root(p, dtype)
    assert n is not None, "an exact sum has no slack"
    return n


def _block_sums(parts: Sequence[tuple[Array, str]], p: int) -> Accumulator:
    """The fast sum: float64 within a block, where terms are exact, and integers over blocks."""
    sums = []
    for chunk in _chunks(parts):
        blocks = chunk.reshape(-1, BLOCK)
        sums.append(np.einsum("ij,ij->i", blocks, blocks) if p == 2 else np.abs(blocks).sum(axis=1))
    flat = np.concatenate(sums) if sums else np.zeros(0)
    finite = np.isfinite(flat)
    found = Accumulator.of_block_sums(_sum_exactly(flat[finite], 1).total)
    return found + Accumulator(nan=bool(np.isnan(flat).any()), infinite=bool(np.isinf(flat).any()))


def _exact_sum(parts: Sequence[tuple[Array, str]], p: int) -> Accumulator:
    found = Accumulator()
    for chunk in _chunks(parts):
        finite = np.isfinite(chunk)
        if finite.all():
            found += _sum_exactly(chunk, p)
        else:
            found += Accumulator(nan=bool(np.isnan(chunk).any()), infinite=bool(np.isinf(chunk).any()))
    return found


def _chunks(parts: Sequence[tuple[Array, str]]) -> Iterator[npt.NDArray[np.float64]]:
    """All elements as float64, CHUNK at a time in one reused buffer; zeros, which add nothing, fill the last block."""
    buffer = np.empty(CHUNK)
    filled = 0
    for view, dtype in parts:
        flat = view.ravel(order="K")
        start = 0
        while start < flat.size:
            piece = flat[start : start + CHUNK - filled]
            buffer[filled : filled + piece.size] = _decode(piece, dtype)
            start, filled = start + piece.size, filled + piece.size
            if filled == CHUNK:
                yield buffer
                filled = 0
    if filled:
        end = -(-filled // BLOCK) * BLOCK
        buffer[filled:end] = 0.0
        yield buffer[:end]


def _sum_exactly(values: npt.NDArray[np.float64], p: int) -> Accumulator:
    """The exact sum of |x| or x**2 of finite float64: limbs of the mantissas, added up for each exponent."""
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


def _general_norm(parts: Sequence[tuple[Array, str]], p: float, dtype: str) -> float:
    """Any p > 0, inf included, in extended precision where NumPy has it; divided by the greatest magnitude first."""
    greatest = max(
        (float(np.max(np.abs(_decode(view, name)))) for view, name in parts if view.size), default=0.0, key=_nan_last
    )
    if p == math.inf or greatest == 0 or not math.isfinite(greatest):
        return nearest(greatest, dtype)
    total = np.longdouble(0)
    for chunk in _chunks(parts):
        total += np.sum((np.abs(chunk).astype(np.longdouble) / greatest) ** np.longdouble(p))
    root = np.longdouble(greatest) * total ** (1 / np.longdouble(p))
    return float(np.float64(root) if dtype == "float64" else np.float32(root))


def _nan_last(value: float) -> tuple[bool, float]:
    return (value != value, value)


def _slice_norms(view: Array, dtype: str, axes: Sequence[int], norm_name: str) -> npt.NDArray[np.float64]:
    """Each slice's correctly rounded 2-norm: a float64 sum where its error cannot matter, the exact one elsewhere."""
    kept = [axis for axis in range(view.ndim) if axis not in axes]
    slices = np.transpose(view, [*kept, *axes])
    shape = [1 if axis in axes else length for axis, length in enumerate(view.shape)]
    slices = slices.reshape(math.prod(view.shape[axis] for axis in kept), math.prod(view.shape[axis] for axis in axes))
    norms = np.full(len(slices), np.nan)
    open_ = np.ones(len(slices), dtype=bool)
    if norm_name == "float32":
        rows = [_decode(part, name).astype(np.float64) for part, name in _real_parts(slices, dtype, 2)]
        sums = sum((np.einsum("ij,ij->i", row, row) for row in rows), start=np.zeros(len(slices)))
        error = (2 * slices.shape[1] + 8) * 2.0**-52  # additions, the parts' sum, this product and the root
        low, high = (np.sqrt(sums * (1 + sign * error)).astype(np.float32) for sign in (-1, 1))
        norms, open_ = low.astype(np.float64), low != high
    for index in np.flatnonzero(open_ & ~np.isnan(norms) if norm_name == "float32" else open_):
        norms[index] = _exact_norm(_real_parts(slices[index], dtype, 2), 2, norm_name)
    return norms.reshape(shape)


# -- writing: scaling and clamping


def _scale(view: Array, dtype: str, coef: Scalar, out: Array) -> None:
    """out = view * coef, where `out` may be `view`: one multiplication, in float32 for 16-bit numbers."""
    if dtype.startswith("complex"):
        part = _part(dtype)
        _scale(view.real, part, coef, out.real)
        _scale(view.imag, part, coef, out.imag)
    elif dtype == "float64":
        np.multiply(view, coef, out=out)
    elif dtype == "float32":
        np.multiply(view, np.asarray(coef, dtype=np.float32), out=out)
    else:
        out[...] = _encode(_decode(view, dtype).astype(np.float32) * np.asarray(coef, dtype=np.float32), dtype)


def _clamp(view: Array, dtype: str, low: Array, high: Array, out: Array) -> None:
    """out = view with what lies beyond a bound moved onto it; NaN and values equal to a bound stay."""
    values, low, high = _decode(view, dtype), _round_to(low, dtype), _round_to(high, dtype)
    below, above = values < low, values > high
    if out is not view:
        np.copyto(out, view)
    np.copyto(out, _encode(high, dtype), where=above)
    np.copyto(out, _encode(low, dtype), where=below)


def _part(dtype: str) -> str:
    return "float64" if dtype == "complex128" else "float32"


# -- number formats


def storage(array: Array) -> tuple[Array, str]:
    """An array as the host path holds it, and its dtype's name: bfloat16 (of ml_dtypes) becomes its bits."""
    name = array.dtype.name
    return (array.view(np.uint16) if name == "bfloat16" else array), name


def view_at(address: int, shape: Sequence[int], strides: Sequence[int], dtype: str) -> Array:
    """The memory at an address as an array; strides in elements. The owner must outlive the view."""
    numpy_dtype = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
    if math.prod(shape) == 0:
        return np.empty(shape, numpy_dtype)
    return np.asarray(_Memory(address, tuple(shape), tuple(s * numpy_dtype.itemsize for s in strides), numpy_dtype.str))


class _Memory:
    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], typestr: str) -> None:
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "shape": shape, "strides": strides, "typestr": typestr
        }  # fmt: skip


def _decode(array: Array, dtype: str) -> Array:
    """The numbers that an array stands for: bfloat16 bits as float32, anything else as it is."""
    if dtype != "bfloat16":
        return array
    return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _encode(values: Array, dtype: str) -> Array:
    """The inverse: float32 rounded to bfloat16 bits or to float16, ties to even; anything else as it is."""
    if dtype == "float16":
        return values.astype(np.float16, copy=False)
    if dtype != "bfloat16":
        return values
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), bits >> np.uint32(16) | np.uint32(0x40), rounded).astype(np.uint16)


def _round_to(values: Array, dtype: str) -> Array:
    """float64 rounded once to a format, as numbers (bfloat16 as float32); integers as the dtype's own."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    # To float32 with the last bit set where anything was lost ("round to odd"): then the second rounding is right.
    near = values.astype(np.float32)
    bits = near.view(np.uint32) - (np.abs(near.astype(np.float64)) > np.abs(values)).astype(np.uint32)
    odd = np.where(np.isfinite(values), bits | (near != values).astype(np.uint32), near.view(np.uint32))
    return _decode(_encode(odd.astype(np.uint32).view(np.float32), dtype), dtype)


# -- sparse rows


def merge_rows(indices: npt.NDArray[Any], values: Array, dtype: str) -> tuple[npt.NDArray[Any], Array]:
    """Rows of `values` (n, ...) whose columns of `indices` (k, n) are equal, summed; each sum is rounded once."""
    unique, inverse = np.unique(indices, axis=1, return_inverse=True) if len(indices) > 1 else _unique_row(indices)
    order = np.argsort(inverse, kind="stable", axis=None)
    starts = np.searchsorted(inverse.ravel()[order], np.arange(unique.shape[1]))
    with ieee_arithmetic():
        return unique, _sum_segments(values[order], starts, dtype)


def _unique_row(indices: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.intp]]:
    unique, inverse = np.unique(indices[0], return_inverse=True)
    return unique[np.newaxis], inverse


def _sum_segments(rows: Array, starts: npt.NDArray[np.intp], dtype: str) -> Array:
    """Sums over rows from each start to the next, correctly rounded, so that the order of the rows cannot matter."""
    if dtype.startswith("complex"):
        result = np.empty((len(starts), *rows.shape[1:]), rows.dtype)
        result.real, result.imag = (_sum_segments(part, starts, _part(dtype)) for part in (rows.real, rows.imag))
        return result
    if len(starts) == len(rows):
        return rows
    lengths = np.diff(starts, append=len(rows))
    numbers = _decode(rows, dtype).astype(np.float64)
    sums = np.add.reduceat(numbers, starts, axis=0)
    finite = np.logical_and.reduceat(np.isfinite(numbers), starts, axis=0)
    terms = lengths.reshape(-1, *[1] * (rows.ndim - 1))
    error = np.where(finite, np.add.reduceat(np.abs(numbers), starts, axis=0) * (terms * 2.0**-52), 0.0)
    rounded = _round_to(sums - error, dtype)
    unsure = finite & (terms > 1) & ((rounded != _round_to(sums + error, dtype)) | (dtype == "float64"))
    for segment, *rest in np.argwhere(unsure):
        terms_here = numbers[(slice(starts[segment], starts[segment] + lengths[segment]), *rest)].tolist()
        rounded[(segment, *rest)] = nearest(sum(map(Fraction, terms_here), Fraction(0)), dtype)
    return np.where(terms > 1, _encode(rounded, dtype), rows[starts])


# -- memory


def distinct(views: Sequence[Array], describe: Callable[[int], str]) -> list[int]:
    """Indices of the views to write, each memory once; ValueError for overlap and for memory that cannot be written."""
    for index, view in enumerate(views):
        if not view.flags.writeable:
            raise ValueError(f"{describe(index)} is read-only, so it cannot be clipped in place; pass a copy of it")
        if _overlaps_itself(view):
            raise ValueError(
                f"{describe(index)} has several elements in one place in memory (an expanded view), so it cannot be "
                "clipped in place; pass a contiguous copy"
            )
    bounds = [np.lib.array_utils.byte_bounds(view) for view in views]
    kept: list[int] = []
    reaching: list[int] = []  # kept views whose memory may reach the next one
    for index in sorted((i for i in range(len(views)) if views[i].size), key=bounds.__getitem__):
        reaching = [other for other in reaching if bounds[other][1] > bounds[index][0]]
        if any(_same_memory(views[index], views[other]) for other in reaching):
            continue
        for other in reaching:
            if _shares_memory(views[index], views[other]):
                raise ValueError(
                    f"{describe(min(index, other))} and {describe(max(index, other))} overlap in memory, so clipping "
                    "both in place would scale some elements twice; pass copies, or one tensor over the whole memory"
                )
        kept.append(index)
        reaching.append(index)
    return sorted(kept)


def _same_memory(a: Array, b: Array) -> bool:
    """The same set of elements, in whatever order: t, t again, its transpose, a reshaped view."""
    if a.dtype != b.dtype or np.lib.array_utils.byte_bounds(a) != np.lib.array_utils.byte_bounds(b):
        return False
    dense = [view.nbytes == np.subtract(*np.lib.array_utils.byte_bounds(view)[::-1]) for view in (a, b)]
    return all(dense) or _steps(a) == _steps(b)


def _steps(view: Array) -> list[tuple[int, int]]:
    return sorted((abs(stride), length) for stride, length in zip(view.strides, view.shape, strict=True) if length > 1)


def _shares_memory(a: Array, b: Array) -> bool:
    try:
        return np.shares_memory(a, b, max_work=100_000)  # type: ignore[arg-type]  # NumPy's stubs know 0 and -1 only
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(view: Array) -> bool:
    """Whether two elements share a place. Ascending strides that each clear the extent below settle most cases."""
    if view.flags.c_contiguous or view.flags.f_contiguous or view.size == 0:
        return False
    extent = view.itemsize
    for stride, length in _steps(view):
        if stride < extent:
            offsets = sum(
                np.ix_(*(np.arange(n) * s for n, s in zip(view.shape, view.strides, strict=True))), np.int64(0)
            )
            return np.unique(np.asarray(offsets)).size != view.size
        extent += stride * (length - 1)
    return False


# -- the processor's mode


@contextmanager
def ieee_arithmetic() -> Iterator[None]:
    """Arithmetic that keeps subnormal numbers, and says nothing of overflow and NaN.

    A thread may have been told to flush subnormal numbers to zero: torch.set_flush_denormal does it, and so do the
    threads in which TensorFlow runs py_function.
    """
    with np.errstate(all="ignore"):
        if _SMALLEST != 0.0 or _LIBM is None:  # it compares equal to zero where subnormal numbers are flushed
            yield
            return
        saved = ctypes.create_string_buffer(64)  # fenv_t is 32 bytes or fewer where FE_DFL_ENV is -1
        _LIBM.fegetenv(saved)
        _LIBM.fesetenv(ctypes.c_void_p(-1))
        try:
            yield
        finally:
            _LIBM.fesetenv(saved)


(_SMALLEST,) = struct.unpack("<d", bytes([1, 0, 0, 0, 0, 0, 0, 0]))  # a literal would be read as 0 in that mode


def _libm() -> Any:
    """The C library's floating-point environment; None where FE_DFL_ENV is not known to be -1."""
    if not (sys.platform == "linux" and platform.machine() == "x86_64"):
        return None
    return ctypes.CDLL(None)


_LIBM = _libm()


# -- the choice of path


def forced_to_framework() -> bool:
    """UNIFIED_CLIP_PATH=framework takes the device path everywhere, for testing it on a CPU."""
    choice = os.environ.get("UNIFIED_CLIP_PATH", "")
    if choice not in ("", "framework"):
        raise ValueError(f"UNIFIED_CLIP_PATH is {choice!r}; set it to 'framework' or leave it unset")
    return choice == "framework"
