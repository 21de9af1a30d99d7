"""The backend of the toy framework, which has no derivatives, graphs or devices. Its tensors are in memory that NumPy
can view."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import toyframe
from toyframe import where

from .._compute import host, kernels, memory
from .._compute.device import DevicePath, inverse, odd_bits
from .._core.backend import Backend, Inputs, Route, always
from .._core.path import DevicePrimitives
from .._core.types import Scalar, Tensor, Write


class ToyBackend(Backend, DevicePrimitives):
    name = "toy"
    writable = True
    routes = (
        host.ROUTE,
        Route("device", always, lambda own, inputs: DevicePath(own, inputs.tensors, inputs.differentiable)),
    )

    def fits_host(self, inputs: Inputs) -> bool:
        return not host.forced_path()

    # -- recognising

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, toyframe.Tensor) or kernels.is_array(value)

    def as_tensor(self, value: Any) -> Tensor:
        """An array shares its memory with the tensor, so in-place names write into the array."""
        if isinstance(value, toyframe.Tensor):
            return value
        array = np.asarray(value)
        if isinstance(value, np.generic):
            array.flags.writeable = False
        return toyframe.Tensor(array)

    def dtype(self, tensor: Any) -> str:
        return str(getattr(tensor.dtype, "name", tensor.dtype))

    def read(self, scalar: Tensor) -> float | int | None:
        number: float | int = scalar.item()
        return number

    def alias_owners(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        return memory.alias_owners(tensors, [self.host_view(self.as_tensor(tensor)) for tensor in tensors], describe)

    # -- what the host path needs

    def host_view(self, tensor: Tensor) -> kernels.Array:
        return kernels.storage(tensor.numpy())[0]

    def from_host(self, array: kernels.Array, dtype: str) -> Tensor:
        return toyframe.Tensor(array.view(dtype))

    def norm_from_host(self, value: float, dtype: str) -> Tensor:
        return toyframe.Tensor(value, dtype)

    def bump_versions(self, tensors: Sequence[Tensor]) -> None:
        """Nothing keeps a record of what was read."""

    # -- what the device path needs

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        if isinstance(value, toyframe.Tensor):
            return value.cast("float64").reshape(())
        return toyframe.Tensor(value, "float64")

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        sums = [_powers(part, p, divisor).sum(_all_axes(part)).reshape(()) for t in tensors for part in _real(t, p)]
        return sum(sums, start=self.constant(0.0, tensors))

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        greatest = self.constant(0.0, tensors)
        for tensor in tensors:
            greatest = np.maximum(greatest, _magnitudes(tensor).max(_all_axes(tensor)).reshape(()))
        return greatest

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        sums = [_powers(part, 2, divisor).sum(axes) for part in tensor.parts()]
        return sum(sums, start=self.constant(0.0, [tensor]))

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar:
        return _magnitudes(tensor).max(axes)

    def root(self, value: Scalar, p: float) -> Scalar:
        return np.sqrt(value) if p == 2 else value ** inverse(p)

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return where(condition, yes, no)

    def stop_gradient(self, scalar: Scalar) -> Scalar:
        return scalar

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        return tensor.cast(dtype)

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        results = [tensor.copy() for tensor in tensors]
        for part in (part for tensor in results for part in tensor.parts()):
            wide = "float64" if part.dtype == "float64" else "float32"
            product = part.cast(wide) * coef.cast(wide)
            part.assign(where(coef != 1.0, product.cast(part.dtype), part))
        return results

    def bound(self, value: Any, tensor: Tensor) -> Any:
        if not isinstance(value, toyframe.Tensor):
            return toyframe.Tensor(value, tensor.dtype)
        return (_rounded_to_odd(value) if tensor.dtype == "bfloat16" else value).cast(tensor.dtype)

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        return not (low <= high).all()

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        return [where(keep, tensor, toyframe.Tensor(np.zeros(tensor.shape), tensor.dtype)) for tensor in tensors]

    def prepare_write(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Write]:
        return [Write(functools.partial(tensor.assign, value)) for tensor, value in zip(tensors, values, strict=True)]

    def cos(self, scalar: Scalar) -> Scalar:
        return np.cos(scalar)

    # -- what adaptive thresholds need

    def has_values(self, vector: Tensor) -> bool:
        return True

    def floor(self, scalar: Scalar) -> Scalar:
        return np.floor(scalar)

    def vector(self, values: Sequence[float], like: Sequence[Tensor]) -> Scalar:
        return toyframe.Tensor(values, "float64")

    def indices(self, length: int, like: Sequence[Tensor]) -> Scalar:
        return toyframe.Tensor(np.arange(length), "float64")

    def sort(self, vector: Scalar) -> Scalar:
        return toyframe.Tensor(np.sort(vector.numpy()))

    def total(self, vector: Scalar) -> Scalar:
        return vector.sum([0]).reshape(())

    def least(self, numbers: Scalar) -> Scalar:
        return toyframe.Tensor(numbers.numpy().min())

    def pack(self, scalars: Sequence[Scalar]) -> Tensor:
        return toyframe.Tensor(np.concatenate([scalar.numpy().ravel() for scalar in scalars]))

    def unpack(self, packed: Tensor, lengths: Sequence[int | None], like: Sequence[Tensor]) -> list[Scalar]:
        chunks = np.split(packed.numpy(), np.cumsum([length or 1 for length in lengths])[:-1])
        return [toyframe.Tensor(chunk if length else chunk[0]) for chunk, length in zip(chunks, lengths, strict=True)]

    # -- for checks and recordings

    def count_nonfinite(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        nan, inf = (test(tensor).cast("float64").sum(_all_axes(tensor)).reshape(()) for test in (np.isnan, np.isinf))
        return nan, inf

    def copy(self, tensor: Tensor) -> Tensor:
        return tensor.copy()

    def is_finite(self, scalar: Scalar) -> bool | None:
        return np.isfinite(scalar).all()

    def in_graph(self, values: Sequence[Any]) -> bool:
        return False

    def scope(self, differentiable: bool) -> AbstractContextManager[Any]:
        return nullcontext()


def _all_axes(tensor: Tensor) -> range:
    return range(len(tensor.shape))


def _real(tensor: Tensor, p: float) -> list[Tensor]:
    """Return real tensors with the same sum of |g|**p."""
    return tensor.parts() if p == 2 else [_magnitudes(tensor)]


def _magnitudes(tensor: Tensor) -> Tensor:
    """Return |g| in float64. A complex number with a NaN part gives NaN, although abs(inf + nan j) is inf."""
    wide = tensor.cast("complex128" if "complex" in tensor.dtype else "float64")
    return where(np.isnan(wide), toyframe.Tensor(math.nan), abs(wide))


def _powers(tensor: Tensor, p: float, divisor: Scalar | None) -> Tensor:
    numbers = tensor.cast("float64")
    if p in (1, 2):
        numbers = numbers if divisor is None else numbers / divisor
        return numbers * numbers if p == 2 else abs(numbers)
    assert divisor is not None  # for p other than 1 and 2, callers pass a divisor
    below = np.log(numbers) - np.log(divisor)  # of zero it is -inf, whose power is zero
    below = where((below > 0.0) & (numbers < math.inf), toyframe.Tensor(0.0), below)  # above 0 only by rounding
    return np.exp(p * below)


def _rounded_to_odd(value: Tensor) -> Tensor:
    """Round numbers to float32 so that a later cast to bfloat16 has no double-rounding error."""
    wide = value.cast("float64")
    near = wide.cast("float32")
    return odd_bits(wide, near.cast("float64"), near.bits(), where).cast("int32").from_bits()


BACKEND = ToyBackend()
