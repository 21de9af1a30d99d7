"""The toy framework. Its tensors are writable, are in memory that NumPy can view, and are no arrays."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 by its name from then on
import numpy as np


class Tensor(np.lib.mixins.NDArrayOperatorsMixin):
    def __init__(self, values: Any, dtype: str | None = None) -> None:
        self._array = np.asarray(values, dtype)

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **options: Any) -> Tensor:
        if method != "__call__" or options:
            return NotImplemented
        with np.errstate(all="ignore"):
            return Tensor(function(*map(_array, inputs)))

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("a tensor is no array; numpy() shows its memory")

    def __float__(self) -> float:
        return float(self._array)

    def __index__(self) -> int:
        return operator.index(self._array)

    @property
    def dtype(self) -> str:
        return self._array.dtype.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def ndim(self) -> int:
        return self._array.ndim

    def numpy(self) -> np.ndarray:
        return self._array

    def item(self) -> float | int:
        return self._array.item()

    def parts(self) -> list[Tensor]:
        return [Tensor(self._array.real), Tensor(self._array.imag)] if "complex" in self.dtype else [self]

    def bits(self) -> Tensor:
        return Tensor(self._array.view(np.int32))

    def from_bits(self) -> Tensor:
        return Tensor(self._array.view(np.float32))

    def cast(self, dtype: str) -> Tensor:
        with np.errstate(all="ignore"):
            return Tensor(self._array.astype(dtype))

    def copy(self) -> Tensor:
        return Tensor(self._array.copy())

    def reshape(self, shape: Sequence[int]) -> Tensor:
        return Tensor(self._array.reshape(shape))

    def assign(self, values: Tensor) -> None:
        self._array[...] = values._array

    def sum(self, axes: Sequence[int]) -> Tensor:
        with np.errstate(all="ignore"):
            return Tensor(self._array.sum(tuple(axes), keepdims=True))

    def max(self, axes: Sequence[int]) -> Tensor:
        return Tensor(self._array.max(tuple(axes), keepdims=True, initial=0))

    def all(self) -> bool:
        return bool(self._array.all())


def where(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return Tensor(np.where(_array(condition), _array(yes), _array(no)))


def _array(value: Any) -> Any:
    return value._array if isinstance(value, Tensor) else value
