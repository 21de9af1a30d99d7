"""Tensors that belong to no framework."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .._kit.coded_error import CodedError
from .arithmetic import FORMATS, Float64s, sum_of_columns

STORAGE = {
    "float16": "f2", "bfloat16": "u2", "float32": "f4", "float64": "f8", "int64": "i8",
    "complex64": "f4", "complex128": "f8",
}  # fmt: skip
"""NumPy has no bfloat16, so uint16 stores its bits."""

PARTS = {"complex64": "float32", "complex128": "float64"}


Stage = Literal["norm", "coefficient", "tensors", "update"]
"""At the stage "update", `parity` compares the parameters after a step. `verify` compares the changes of parameters."""


class UnreadableError(CodedError, code="UC701"):
    pass


@dataclass(frozen=True, eq=False)
class Dense:
    """For a complex dtype, the last axis of `array` has the real and the imaginary part. For bfloat16, `array` has
    uint16 elements."""

    dtype: str
    array: npt.NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape[:-1] if self.dtype in PARTS else self.array.shape

    def values(self) -> Float64s:
        """Return the elements as float64. Only int64 values beyond 2**53 are rounded."""
        if self.dtype != "bfloat16":
            return self.array.astype(np.float64)
        return (self.array.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)

    def bits(self) -> npt.NDArray[Any]:
        """Return the bit patterns of the elements. Every NaN gets the same bit pattern."""
        bits = np.ascontiguousarray(self.array).view(f"u{self.array.itemsize}").reshape(self.array.shape)
        is_nan = np.isnan(self.values() if self.dtype == "bfloat16" else self.array)
        if not is_nan.any():
            return bits
        return np.where(is_nan, encode(np.asarray(np.nan), self.dtype).array.view(bits.dtype), bits)


@dataclass(frozen=True, eq=False)
class Sparse:
    """`values[i]` is added to row `rows[i]`. All other rows are zero."""

    rows: npt.NDArray[np.int64]
    values: Dense
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        return self.values.dtype


Gradient = Dense | Sparse | None


def to_numpy(tensor: Dense) -> npt.NDArray[Any]:
    if tensor.dtype in PARTS:
        return np.ascontiguousarray(tensor.array).view(tensor.dtype)[..., 0].copy()
    if tensor.dtype != "bfloat16":
        return tensor.array.copy()
    import ml_dtypes

    return tensor.array.copy().view(ml_dtypes.bfloat16)


def from_numpy(array: npt.NDArray[Any]) -> Dense:
    name = name_of(array.dtype)
    if name == "bfloat16":
        return Dense(name, np.array(array.view(np.uint16)))
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return Dense(name, np.stack([array.real, array.imag], axis=-1) if name in PARTS else np.array(array))


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype. The name of V2 is "bfloat16", because np.savez writes bfloat16 as V2."""
    return "bfloat16" if dtype.name == "void16" and dtype.names is None else dtype.name


def form(tensor: Dense | None) -> str:
    return "None" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"


def other_form(noun: str, found: Dense | None, right: Dense | None) -> str:
    """Return a text such as "gradient 0 has the shape [1] instead of []", or '' if dtypes and shapes are equal."""
    if form(found) == form(right):
        return ""
    if found is None or right is None or (found.dtype != right.dtype and found.shape != right.shape):
        return f"{noun} is {form(found)} instead of {form(right)}"
    if found.dtype != right.dtype:
        return f"{noun} is {found.dtype} instead of {right.dtype}"
    return f"{noun} has the shape {list(found.shape)} instead of {list(right.shape)}"


def encode(values: Float64s, dtype: str) -> Dense:
    """Convert numbers to `dtype`, which must represent each of them exactly. Call `arithmetic.rounded` first."""
    if dtype != "bfloat16":
        return Dense(dtype, values.astype(STORAGE[dtype]))
    bits = np.asarray(values.astype(np.float32)).view(np.uint32) >> np.uint32(16)
    return Dense(dtype, bits.astype(np.uint16))


def densify(gradient: Gradient) -> Dense | None:
    """Convert a sparse gradient to a dense one. Repeated rows are summed exactly and rounded once."""
    return _densified(gradient) if isinstance(gradient, Sparse) else gradient


def clear_cache() -> None:
    _densified.cache_clear()


@lru_cache(maxsize=1024)
def _densified(gradient: Sparse) -> Dense:
    dense = np.zeros(gradient.shape, dtype=STORAGE[gradient.dtype])
    order = np.argsort(gradient.rows, kind="stable")
    for row, start, count in zip(*np.unique(gradient.rows[order], return_index=True, return_counts=True), strict=True):
        if 0 <= row < gradient.shape[0]:  # JAX pads with an index after the last row
            same = Dense(gradient.dtype, gradient.values.array[order[start : start + count]])
            alone = count == 1
            dense[row] = same.array[0] if alone else encode(sum_of_columns(same.values(), same.dtype), same.dtype).array
    return Dense(gradient.dtype, dense)


def digest(tensors: Iterable[Dense | None]) -> str:
    sha256 = hashlib.sha256()
    for tensor in tensors:
        sha256.update(f"{tensor.dtype}{tensor.shape};".encode() if tensor else b"None;")
        sha256.update(np.ascontiguousarray(tensor.bits()).data if tensor and tensor.array.size else b"")
    return sha256.hexdigest()


class LazySequence(Sequence[Dense | None]):
    """A sequence that computes a tensor at each access, for tensors that do not fit into memory together."""

    def __init__(self, make: Callable[[int], Dense | None], count: int) -> None:
        self._make, self._count = make, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        places = range(self._count)[index]
        return self._make(places) if isinstance(places, int) else [self._make(place) for place in places]


assert set(FORMATS) < set(STORAGE)
