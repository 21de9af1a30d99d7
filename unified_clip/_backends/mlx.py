"""The backend of MLX.

MLX arrays often share memory, for example an array and its slices. So the host path never writes into
memory. In-place functions assign by `gradient[...] = value`, which changes only this array object.

Inside `mx.grad`, `mx.vmap` and `mx.compile`, the device path uses the CPU stream, because only the CPU has float64.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial, reduce
from typing import Any

import mlx.core as mx
import numpy as np

from .._compute import host, kernels, memory
from .._compute.device import DevicePath, inverse, relative_powers, round_once
from .._core.backend import Backend, Inputs, Route, always
from .._core.path import DevicePrimitives
from .._core.types import Scalar, Tensor, Write
from . import check_release

check_release("mlx", mx.__version__)

DTYPES = {str(dtype).removeprefix("mlx.core."): dtype for dtype in vars(mx).values() if isinstance(dtype, mx.Dtype)}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class MlxBackend(Backend, DevicePrimitives):
    name = "mlx"
    writable = True

    routes = (
        host.ROUTE._replace(make=lambda own, inputs: AssigningPath(own, inputs.tensors)),
        Route("device", always, lambda own, inputs: DevicePath(own, inputs.tensors, inputs.differentiable)),
    )

    def fits_host(self, inputs: Inputs) -> bool:
        return not (host.forced_path() or _is_traced(inputs.all()))

    # -- recognising

    def is_tensor(self, value: Any) -> bool:
        if isinstance(value, dict) and "mlx.nn" in sys.modules and isinstance(value, sys.modules["mlx.nn"].Module):
            raise TypeError(
                f"{type(value).__name__} is a model, which contains weights and no gradients. Pass the gradients "
                "that nn.value_and_grad returns"
            )
        return isinstance(value, mx.array) or kernels.is_array(value)

    def as_tensor(self, value: Any) -> Tensor:
        if not isinstance(value, np.generic):
            return value
        array = np.asarray(value)
        array.flags.writeable = False
        return array

    def dtype(self, tensor: Any) -> str:
        return NAMES[tensor.dtype] if isinstance(tensor, mx.array) else str(tensor.dtype.name)

    def unsupported(self, gradient: Any) -> str | None:
        lacks = self.is_tensor(gradient) and self.dtype(gradient) == "complex128"
        return "complex128, which MLX lacks. Pass complex64" if lacks else None

    def in_graph(self, values: Sequence[Any]) -> bool:
        """Return whether a value cannot be read: inside mx.compile and mx.vmap, but not inside mx.grad."""
        return _is_rejected(mx.eval, [value for value in values if isinstance(value, mx.array)])

    def read(self, scalar: Tensor) -> float | int | None:
        return None if self.in_graph([scalar]) else scalar.item()

    def wants_derivative(self, scalar: Tensor) -> bool:
        return _is_traced([scalar])

    def alias_owners(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        """Different MLX arrays are never aliases, even if they share memory."""
        views = [None if isinstance(tensor, mx.array) else self.as_tensor(tensor) for tensor in tensors]
        return memory.alias_owners(tensors, views, describe)

    # -- what the host path needs

    def host_view(self, tensor: Tensor) -> kernels.Array:
        if isinstance(tensor, mx.array) and tensor.dtype == mx.bfloat16:
            tensor = tensor.view(mx.uint16)  # bfloat16 has no buffer format
        return kernels.storage(np.asarray(tensor))[0]

    def from_host(self, array: kernels.Array, dtype: str) -> Tensor:
        if dtype == "bfloat16":
            return mx.array(array).view(mx.bfloat16)
        return mx.array(array, DTYPES[dtype])

    def list_from_host(self, arrays: list[kernels.Array], dtypes: Sequence[str]) -> list[Tensor]:
        """Free each NumPy array after its conversion, to save memory."""
        arrays.reverse()
        return [self.from_host(arrays.pop(), dtype) for dtype in dtypes]

    def from_state(self, values: kernels.Array, like: Tensor | None = None) -> Tensor:
        return mx.array(values, mx.float64)

    def norm_from_host(self, value: float, dtype: str) -> Tensor:
        return mx.array(value, DTYPES[dtype])

    # -- what the device path needs

    where = staticmethod(mx.where)
    stop_gradient = staticmethod(mx.stop_gradient)

    def scope(self, differentiable: bool) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = mx.stream(mx.cpu)
        return scope

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        return mx.array(value, mx.float64) if isinstance(value, int | float) else _wide(value).reshape(())

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        return reduce(mx.add, (mx.sum(_powers(tensor, p, divisor)) for tensor in tensors), mx.array(0.0, mx.float64))

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        greatest = [mx.max(_magnitudes(tensor)) for tensor in tensors if tensor.size]
        return mx.max(mx.stack(greatest)) if greatest else mx.array(0.0, mx.float64)

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        return mx.sum(_powers(tensor, 2, divisor), axis=list(axes), keepdims=True)

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar:
        magnitudes = _magnitudes(tensor)
        reduce_axes = mx.max if tensor.size else mx.sum  # mx.max rejects an axis without elements
        return reduce_axes(magnitudes, axis=list(axes), keepdims=True)

    def root(self, value: Scalar, p: float) -> Scalar:
        if p == 1:
            return value
        return mx.sqrt(value) if p == 2 else _exp(mx.log(value) * inverse(p))

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        return tensor.astype(DTYPES[dtype])

    def bitcast(self, tensor: Tensor, dtype: str) -> Tensor:
        return tensor.view(DTYPES[dtype])

    def cos(self, scalar: Scalar) -> Scalar:
        """Return the cosine of a scalar between 0 and pi / 2. On a CPU, `mx.cos` computes in float32."""
        square = scalar * scalar
        return reduce(lambda sum_, term: 1.0 - square * sum_ * (1.0 / term), SERIES, mx.array(1.0, mx.float64))

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        return [mx.where(coef != 1.0, _product(tensor, coef), tensor) for tensor in map(_as_mlx, tensors)]

    def bound(self, value: Any, tensor: Tensor) -> Any:
        dtype = DTYPES[self.dtype(tensor)]
        if isinstance(value, mx.array | np.ndarray):
            return round_once(self, _as_mlx(value), self.dtype(tensor))
        is_minus_zero = value == 0 and math.copysign(1, value) < 0
        return -mx.array(0.0, dtype) if is_minus_zero else mx.array(value, dtype)  # mx.compile merges equal constants

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        inverted = mx.any(mx.logical_not(low <= high))
        return None if self.in_graph([inverted]) else bool(inverted)

    def clamp(self, tensor: Tensor, low: Any, high: Any) -> Tensor:
        return super().clamp(_as_mlx(tensor), low, high)

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        return [mx.where(keep, tensor, mx.zeros_like(tensor)) for tensor in map(_as_mlx, tensors)]

    def prepare_write(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Write]:
        return [self._assignment(tensor, value) for tensor, value in zip(tensors, values, strict=True)]

    def _assignment(self, tensor: Tensor, value: Tensor) -> Write:
        if isinstance(tensor, mx.array):
            assign = partial(tensor.__setitem__, ...)
            return Write(partial(assign, value), partial(assign, copy.copy(tensor)))
        return Write(partial(np.copyto, self.host_view(tensor), self.host_view(value)))

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a new array object. Both objects share memory until one of them is changed."""
        return copy.copy(tensor) if isinstance(tensor, mx.array) else _as_mlx(tensor)

    def is_finite(self, scalar: Scalar) -> bool | None:
        return None if self.in_graph([scalar]) else math.isfinite(scalar.item())

    def count_nonfinite(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        nan, inf = (mx.sum(test(_as_mlx(tensor)).astype(mx.float64)) for test in (mx.isnan, mx.isinf))
        return nan, inf


class AssigningPath(host.HostPath):
    """Assign results to arrays, because writes to memory would also change arrays that share the memory."""

    _backend: MlxBackend

    def _writes(self, write: Callable[[], object], results: Callable[[], list[Tensor]]) -> list[Write]:
        return self._backend.prepare_write(self._tensors, results())

    def unchanged(self) -> list[Tensor]:
        return list(map(self._backend.copy, self._tensors))


def _is_traced(values: Sequence[Any]) -> bool:
    """Return whether MLX traces any of the values. If none is traced, this test starts to evaluate the values."""
    probe = mx.depends(NOTHING, [value for value in values if isinstance(value, mx.array)])
    return _is_rejected(mx.async_eval, probe)  # mx.eval evaluates what mx.grad traces


def _is_rejected(evaluate: Callable[[Any], None], values: Any) -> bool:
    """Return whether evaluation fails because a transformation traces the values. MLX has no other test for this."""
    try:
        evaluate(values)
    except ValueError as error:
        if "transformation" not in str(error):
            raise
        return True
    return False


def _as_mlx(value: Any) -> mx.array:
    if isinstance(value, mx.array):
        return value
    return mx.array(kernels.own_copy(value), DTYPES[value.dtype.name])  # otherwise, float64 becomes float32


def _wide(value: Any) -> mx.array:
    return _as_mlx(value).astype(mx.float64)


def _is_complex(tensor: Any) -> bool:
    return bool(tensor.dtype == mx.complex64 or tensor.dtype == np.complex64)


def _parts(tensor: Tensor) -> list[mx.array]:
    array = _as_mlx(tensor)
    return [mx.real(array), mx.imag(array)] if _is_complex(array) else [array]


def _magnitudes(tensor: Tensor) -> mx.array:
    numbers = [_wide(part) for part in _parts(tensor)]
    if len(numbers) == 1:
        return mx.abs(numbers[0])
    squares = numbers[0] * numbers[0] + numbers[1] * numbers[1]
    zero = squares == 0
    return mx.where(zero, 0.0, mx.sqrt(mx.where(zero, 1.0, squares)))


def _powers(tensor: Tensor, p: float, divisor: Scalar | None) -> mx.array:
    if p == 2:
        numbers = [_wide(part) if divisor is None else _wide(part) / divisor for part in _parts(tensor)]
        return reduce(mx.add, (number * number for number in numbers))
    magnitudes = _magnitudes(tensor)
    if p == 1:
        return magnitudes if divisor is None else magnitudes / divisor
    assert divisor is not None  # for p other than 1 and 2, callers pass a divisor
    return relative_powers(magnitudes, p, divisor, where=mx.where, log=mx.log, exp=_exp)


def _exp(numbers: mx.array) -> mx.array:
    """Return exp in float64. On a CPU, `mx.exp` computes in float32."""
    return mx.power(math.e, numbers)


def _product(tensor: mx.array, coef: Scalar) -> mx.array:
    if _is_complex(tensor):
        return _complex(*(_product(part, coef) for part in _parts(tensor)))
    if tensor.dtype == mx.float64:
        return tensor * coef
    return (tensor.astype(mx.float32) * coef.astype(mx.float32)).astype(tensor.dtype)


def _as_complex(real: mx.array, imaginary: mx.array) -> mx.array:
    """`real + imaginary * 1j` would turn infinite parts into NaN."""
    return mx.stack([real, imaginary], axis=-1).view(mx.complex64).squeeze(-1)


_complex = mx.custom_function(_as_complex)  # `view` has no derivative
_complex.vjp(lambda _, cotangent, __: (mx.real(cotangent), mx.imag(cotangent)))


SERIES = [(2 * n - 1) * 2 * n for n in range(12, 0, -1)]
NOTHING = mx.array(0.0)
BACKEND = MlxBackend()
