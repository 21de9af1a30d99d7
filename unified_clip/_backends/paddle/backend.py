"""The backend of Paddle. In-place functions take parameters, and write into the memory of dense gradients.

The code depends on three properties of Paddle:

- In static programs, Python numbers are rounded to float32, and `-x` and `x * 1.0` lose the sign of zero. So
constants are 0-d tensors.
- On the CPU, Paddle lacks most float16 operations, so `Dense` converts tensors to float32. Paddle also cannot add
two float16 derivatives. So `Dense` converts each tensor only once, and no such sum is needed.
- While a static program is built, an operation on an eager tensor ends the process. So `check_mode` rejects eager
tensors before the first operation.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import paddle

from ..._compute import host, kernels, memory
from ..._compute.device import DevicePath, inverse
from ..._core import entry
from ..._core.backend import Backend, Distributed, Inputs, Parameters, Route, Sparse, always
from ..._core.distributed import DistributedSpec, PartialSums, Shards
from ..._core.path import CollectedPath, DevicePrimitives, Path
from ..._core.types import CoalescedSparse, Leaf, Scalar, Tensor, Write
from . import dense, releases, sharded
from .conditions import (
    DTYPES,
    NAMES,
    PARAMETER,
    check_mode,
    check_static,
    has_address,
    is_of_old_ir,
    is_plain,
    of_old_ir,
    records,
)
from .dense import Dense, filled, is_recorded_eagerly, like_tensor, pieces, scaled, select

CPU = paddle.CPUPlace()
COLLECTOR: Any = host.collector(
    paddle.Tensor, PARAMETER, [("is_dense", True), ("is_dist", False)], ("stop_gradient", False)
)


def _device_path(backend: PaddleBackend, inputs: Inputs) -> Path:
    check_mode(inputs.all())
    return DevicePath(backend, list(map(Dense, inputs.tensors)), inputs.differentiable)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.astype("float32") if tensor.dtype == paddle.float16 else tensor  # for operations that lack float16


class PaddleBackend(Backend, Parameters, Sparse, Distributed, DevicePrimitives):
    name = "paddle"
    writable = True
    routes = (host.ROUTE, Route("device", always, _device_path))

    # -- tensors

    def is_tensor(self, value: Any) -> bool:
        if isinstance(value, paddle.Tensor | paddle.pir.Value) or kernels.is_array(value):
            return True
        if is_of_old_ir(value):
            raise of_old_ir(f"{value.name} is a variable")
        return False

    def detached(self, parameter: Any) -> Tensor:
        return self.as_tensor(parameter).detach()

    def as_tensor(self, value: Any) -> Tensor:
        if not isinstance(value, np.ndarray | np.generic):
            return value
        array, dtype = kernels.storage(kernels.own_copy(value))
        if dtype not in DTYPES and dtype != "uint16":
            raise TypeError(
                f"Paddle has no tensors of NumPy's {dtype}. Convert the array to one of {', '.join(DTYPES)}"
            )
        return self.from_host(array, dtype) if paddle.in_dynamic_mode() else paddle.to_tensor(array)

    def dtype(self, tensor: Any) -> str:
        if tensor.dtype == np.uint16 and kernels.is_array(tensor):
            return "bfloat16"  # Paddle's convention
        return NAMES.get(tensor.dtype) or getattr(tensor.dtype, "name", str(tensor.dtype)).removeprefix("paddle.")

    def shape(self, tensor: Any) -> tuple[int | None, ...]:
        return dense.dense_shape(tensor)

    def parameter_name(self, parameter: Any) -> str | None:
        if isinstance(parameter, paddle.pir.Value) and parameter.has_name:  # otherwise, `name` raises ValueError
            return str(parameter.name)
        return str(parameter.name) if isinstance(parameter, PARAMETER) else None

    # -- gradients on parameters

    def is_parameter(self, value: Any) -> bool:
        return isinstance(value, PARAMETER)

    def gradient_of(self, parameter: Any) -> Any | None:
        if not paddle.in_dynamic_mode():
            raise TypeError(
                "parameters have no gradients in a static program or in a to_static graph with full_graph=True. Pass "
                "grad_clip= to the optimizer, clip outside the graph, or use the result of "
                "clip_by_global_norm(gradients, ...)"
            )
        gradient = getattr(parameter, "grad", None)
        return None if sharded.is_cleared(gradient) else gradient

    def main_gradient_of(self, parameter: Any) -> Any | None:
        return None if getattr(parameter, "stop_gradient", True) else getattr(parameter, "main_grad", None)

    main_gradient_remedy = "Paddle's optimizers apply main_grad, so pass the clip to the optimizer as grad_clip="

    def set_gradient(self, parameter: Any, gradient: Any) -> None:
        if gradient is None:
            releases.remove_gradient(parameter)
        else:
            parameter.grad_ = gradient  # `grad =` would copy

    def retained(self, gradient: Any) -> Any:
        """Copy a dense gradient, because `grad = None` empties all tensors that share its memory."""
        return gradient.clone() if gradient is not None and gradient.is_dense() else gradient

    def can_have_gradient(self, parameter: Any) -> bool:
        """The result does not depend on `stop_gradient`, which is also False for some gradients."""
        return isinstance(parameter, PARAMETER)

    def records_derivative(self, value: Any) -> bool:
        return isinstance(value, paddle.Tensor) and not value.stop_gradient and not value.is_leaf

    def check_hook(self, gradient: Any) -> None:
        if isinstance(gradient, paddle.pir.Value):
            raise TypeError(
                "ErrorClipByValue works only as a hook of eager tensors, but the gradient is a value of a static "
                "program. Call clip_by_value in the program"
            )

    def coalesce(self, gradient: Any, *, differentiable: bool) -> CoalescedSparse | None:
        if not isinstance(gradient, paddle.Tensor) or gradient.is_dense() or gradient.is_dist():
            return None
        check_mode([gradient])
        if gradient.is_selected_rows():
            height = gradient.get_selected_rows().height()
            indices = paddle.to_tensor(np.array([gradient.rows()], np.int64), place=gradient.place)
            indices, values = dense.merge_rows(self, indices, releases.values_of_rows(gradient), differentiable)
            return CoalescedSparse(values, lambda new: dense.selected_rows(indices, height, new), 1, indices)
        if not gradient.is_sparse_coo():
            raise TypeError("sparse CSR tensors cannot be clipped. Convert them with to_sparse_coo or to_dense")
        indices, values = dense.merge_rows(self, gradient.indices(), gradient.values(), differentiable)

        def restore(new: Tensor) -> Tensor:
            # paddle.sparse.sparse_coo_tensor rejects a tensor without elements.
            return paddle._C_ops.sparse_sparse_coo_tensor(new, indices, gradient.shape)

        return CoalescedSparse(values, restore, indices.shape[0], indices)

    def to_dense(self, gradient: Any) -> Tensor:
        wide = paddle._C_ops.sparse_sparse_coo_tensor(_widened(gradient.values()), gradient.indices(), gradient.shape)
        return wide.to_dense().astype(gradient.dtype)

    def stored(self, dense: Tensor, indices: Tensor) -> Tensor:
        return paddle.gather_nd(_widened(dense), indices.transpose([1, 0])).astype(dense.dtype)

    # -- distributed gradients

    def shards(
        self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec, *, differentiable: bool
    ) -> Shards | None:
        if not paddle.in_dynamic_mode():
            check_static(gradients, spec)
            return None
        shards = sharded.find(gradients, parameters, spec, differentiable=differentiable)
        if shards is not None and not spec.is_given and records(differentiable) and shards.want_derivatives():
            shards.check_derivatives()
            return None  # Paddle's operations on distributed tensors have derivatives
        return shards

    def has_ranks(self) -> bool:
        return bool(paddle.in_dynamic_mode() and paddle.distributed.is_initialized())

    def check_total_norm(self, gradients: Sequence[Leaf], spec: DistributedSpec) -> None:
        sharded.check_fleet(gradients, spec)

    def partial_sums(self, tensors: Sequence[Tensor]) -> PartialSums:
        on_cpu = [tensor if is_plain(tensor) else tensor.detach().cpu() for tensor in tensors]
        return host.HostPath(self, on_cpu)

    # -- paths

    def collect_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> CollectedPath | None:
        return host.path_over(self, self.plain_tensors(tensors, differentiable=differentiable, in_place=in_place))

    def plain_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> Any | None:
        collector = _collector()
        return collector and collector.of_tensors(tensors, records(differentiable), in_place)

    def collect_parameters(self, parameters: Sequence[Any]) -> CollectedPath | None:
        return host.path_over(self, self.plain_gradients(parameters))

    def plain_gradients(self, parameters: Sequence[Any]) -> Any | None:
        """Return None for distributed parameters, because the collector does not check them."""
        collector = None if sharded.any_dist(parameters) else _collector()
        return collector and collector.of_parameters(parameters)

    def collect_param_grads(self, param_grads: Sequence[Any]) -> CollectedPath | None:
        if sharded.any_dist(item[0] for item in param_grads if isinstance(item, tuple) and item):
            return None
        collector = _collector()
        return collector and host.path_over(self, collector.of_param_grads(param_grads))

    any_sharded = staticmethod(sharded.any_dist)

    def takes_host(self, tensors: Sequence[Tensor], *, differentiable: bool = False) -> bool:
        if host.forced_path() or not paddle.in_dynamic_mode():
            return False
        recording = records(differentiable)
        return not any(not is_plain(tensor) or (recording and not tensor.stop_gradient) for tensor in tensors)

    def host_view(self, tensor: Tensor) -> kernels.Array:
        """Return an array in the tensor's memory. Do not store the array, because `p.grad = None` frees its memory."""
        # An empty tensor has the address None or 0.
        return memory.view_at(tensor.data_ptr() or 0, tensor.shape, tensor.strides, NAMES[tensor.dtype])

    def from_host(self, array: kernels.Array, dtype: str) -> Tensor:
        # Share the array's memory. uint16 becomes bfloat16. to_tensor takes ten times as long as a copy.
        return paddle.Tensor(value=array, place=CPU, persistable=False, zero_copy=True, name="", stop_gradient=True)

    def norm_from_host(self, value: float, dtype: str) -> Tensor:
        return self.from_host(np.array(value, dtype), dtype)

    def bump_versions(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor._bump_inplace_version()

    def read(self, scalar: Tensor) -> float | int | None:
        return scalar.item() if is_plain(scalar) else None

    def wants_derivative(self, scalar: Tensor) -> bool:
        return bool(not scalar.stop_gradient and paddle.is_grad_enabled())

    def alias_owners(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        stored = [dense.stored_values(tensor) for tensor in tensors]
        views = [self.host_view(tensor) if has_address(tensor) else None for tensor in stored]
        return memory.alias_owners(tensors, views, describe)

    # -- primitives of the device path, whose tensors are `Dense`

    total = staticmethod(paddle.sum)
    least = staticmethod(paddle.amin)  # Paddle 3.2 warns about its own min, sort and split
    cos = staticmethod(paddle.cos)
    floor = staticmethod(paddle.floor)

    def constant(self, value: Any, like: Sequence[Dense]) -> Scalar:
        if isinstance(value, paddle.Tensor | paddle.pir.Value):
            return value.reshape([]).astype("float64")
        return filled(float(value), paddle.float64, like[0].tensor if like else None)

    def power_sum(self, tensors: Sequence[Dense], p: float, divisor: Scalar | None) -> Scalar:
        sums = [numbers.power_sum(p, divisor) for numbers in pieces(tensors)]
        if len(sums) > 1 and not is_recorded_eagerly(*sums):
            return paddle.stack(sums).sum()
        return functools.reduce(operator.add, sums) if sums else self.constant(0.0, tensors)

    def max_abs(self, tensors: Sequence[Dense]) -> Scalar:
        maxima = [numbers.max_abs() for numbers in pieces(tensors)]
        return releases.amax(paddle.stack(maxima)) if maxima else self.constant(0.0, tensors)

    def slice_power_sum(self, tensor: Dense, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        powers = tensor.numbers.powers(2, divisor)
        return powers.sum(axis=list(axes), keepdim=True) if axes else powers

    def slice_max_abs(self, tensor: Dense, axes: Sequence[int]) -> Scalar:
        magnitudes = tensor.numbers.powers(1, None)
        if not axes:
            return magnitudes
        if 0 in magnitudes.shape:
            return magnitudes.sum(axis=list(axes), keepdim=True)
        return releases.amax(magnitudes, axis=list(axes), keepdim=True)

    def root(self, value: Scalar, p: float) -> Scalar:
        if p == 1:
            return value
        return value.sqrt() if p == 2 else (value.log() * self.constant(inverse(p), [])).exp()

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return select(condition if condition.shape else like_tensor(condition, yes), yes, no)

    def stop_gradient(self, scalar: Scalar) -> Scalar:
        return scalar.detach()

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        return tensor.astype(dtype)

    def scale(self, tensors: Sequence[Dense], coef: Scalar) -> list[Tensor]:
        return list(scaled(tensors, coef))

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        ordered = (low <= high).all()
        return not bool(ordered) if isinstance(ordered, paddle.Tensor) else None

    def bound(self, value: Any, tensor: Dense) -> Tensor:
        return tensor.bound(value)

    def clamp(self, tensor: Dense, low: Any, high: Any) -> Tensor:
        wide = tensor.wide
        return tensor.narrow(select(wide < low, low, select(wide > high, high, wide)))

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        dense = map(Dense, tensors)
        return [d.narrow(select(like_tensor(keep, d.wide), d.wide, releases.zeros_like(d.wide))) for d in dense]

    def prepare_write(self, tensors: Sequence[Dense], values: Sequence[Tensor]) -> list[Write]:
        return [
            Write(functools.partial(paddle.assign, value, output=tensor.tensor))
            for tensor, value in zip(tensors, values, strict=True)
        ]

    def vector(self, values: Sequence[float], like: Sequence[Any]) -> Scalar:
        return paddle.to_tensor(np.array(values, np.float64))

    def indices(self, length: int, like: Sequence[Any]) -> Scalar:
        return paddle.arange(length, dtype="float64")

    def sort(self, vector: Scalar) -> Scalar:
        return paddle.gather(vector, paddle.argsort(vector))

    def pack(self, scalars: Sequence[Scalar]) -> Tensor:
        return paddle.concat([scalar.reshape([-1]) for scalar in scalars])

    def unpack(self, packed: Tensor, lengths: Sequence[int | None], like: Sequence[Any]) -> list[Scalar]:
        ends = itertools.accumulate(length or 1 for length in lengths)
        parts = [(packed[end - (length or 1) : end], length) for end, length in zip(ends, lengths, strict=True)]
        return [part if length else part.reshape([]) for part, length in parts]

    def copy(self, tensor: Dense) -> Tensor:
        return releases.clone(tensor.tensor)

    def is_finite(self, scalar: Scalar) -> bool | None:
        return bool(paddle.isfinite(scalar)) if isinstance(scalar, paddle.Tensor) else None

    def count_nonfinite(self, tensor: Dense) -> tuple[Tensor, Tensor]:
        nan, inf = paddle.isnan(tensor.wide), paddle.isinf(tensor.wide)
        if tensor.is_complex:
            nan, inf = nan.any(axis=-1), inf.any(axis=-1)
        return nan.astype("float64").sum(), inf.astype("float64").sum()

    @contextmanager
    def scope(self, differentiable: bool) -> Iterator[None]:
        with paddle.amp.auto_cast(enable=False), nullcontext() if differentiable else paddle.no_grad():
            yield

    # -- for a recording

    def to_numpy(self, tensor: Tensor) -> kernels.Array:
        array: kernels.Array = tensor.numpy()  # a copy, because the memory of `tensor.cpu()` would be freed
        return array

    def in_graph(self, values: Sequence[Any]) -> bool:
        tensors = (value.tensor if isinstance(value, Dense) else value for value in values)
        return not all(isinstance(tensor, paddle.Tensor) for tensor in tensors)


def _collector() -> Any | None:
    return None if not paddle.in_dynamic_mode() or sharded.hybrid() is not None else COLLECTOR


def _run_as_written() -> None:
    """Stop `paddle.jit.to_static` from translating this package. It cannot translate functions passed as arguments.

    By default, `to_static` breaks its graph at a clip, which then runs eagerly. `full_graph=True` traces the clip.
    """
    for function in {entry.run, entry.run_eagerly}:
        paddle.jit.not_to_static(releases.force_dynamic(function))
    entry.mark_public(paddle.jit.not_to_static)
    package = str(FilePath(__file__).parents[2]) + os.sep
    with suppress(AttributeError):  # this private setting keeps the translator out of the package
        paddle.framework.core.eval_frame_skip_file_prefix((package,))


BACKEND = PaddleBackend()
_run_as_written()
