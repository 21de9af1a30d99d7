"""The float64 operations of the device path: `DevicePrimitives` of PyTorch."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..._compute import kernels, memory
from ..._compute.device import inverse, round_once
from ..._core.path import DevicePrimitives
from ..._core.types import Deferred, Scalar, Tensor, Write
from . import conditions, operations, releases, sharded
from .conditions import DTYPES, NAMES, PLAIN, REAL, fit_list_operations


class TorchPrimitives(DevicePrimitives):
    """Operations on single tensors, which PyTorch records and transforms."""

    name = "torch"
    may_launch = False
    """Whether kernels may replace operations. PyTorch does not record and transform what kernels do."""

    in_lists = is_per_tensor = False

    where = staticmethod(torch.where)
    stop_gradient = staticmethod(torch.detach)
    copy = staticmethod(torch.clone)
    total = staticmethod(torch.sum)
    cos = staticmethod(torch.cos)
    floor = staticmethod(torch.floor)

    def dtype(self, tensor: Any) -> str:
        return NAMES.get(tensor.dtype) or str(getattr(tensor.dtype, "name", tensor.dtype)).removeprefix("torch.")

    def host_view(self, tensor: Tensor) -> kernels.Array:
        return memory.view_at(tensor.data_ptr(), tensor.shape, tensor.stride(), NAMES[tensor.dtype])

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        device = like[0].device if like else torch.device("cpu")
        if isinstance(value, torch.Tensor):
            return value.reshape(()).to(device).to(torch.float64)  # the first device can lack float64
        if torch.compiler.is_compiling():  # `full` would make the graph valid for one number
            return torch.ones((), dtype=torch.float64, device=device) * value
        return torch.full((), float(value), dtype=torch.float64, device=device)

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        total = self.constant(0.0, tensors)
        for tensor in tensors:
            power = operations.powers(tensor, p, divisor).sum()
            # The derivative of a gathered DTensor does not accept the gradients of DTensors.
            power = power if power.requires_grad else sharded.full_tensor(power)
            total = total + power.to(total.device)
        return total

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        top = self.constant(0.0, tensors)
        for tensor in tensors:
            if tensor.numel():
                tensor_max = sharded.full_max(operations.magnitudes(operations.widened(tensor)))
                top = torch.maximum(top, tensor_max.to(top.device))
        return top

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        powers = operations.powers(tensor, 2, divisor)
        return powers.sum(dim=tuple(axes), keepdim=True) if axes else powers

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar:
        magnitudes = operations.magnitudes(operations.widened(tensor))
        if not axes:
            return magnitudes
        if tensor.numel() == 0:
            return magnitudes.sum(dim=tuple(axes), keepdim=True)
        return magnitudes.amax(dim=tuple(axes), keepdim=True)

    def root(self, value: Scalar, p: float) -> Scalar:
        return value.sqrt() if p == 2 else value ** inverse(p)

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        return releases.rounded_in_graph(tensor.to(DTYPES[dtype]))

    def bitcast(self, tensor: Tensor, dtype: str) -> Tensor:
        return tensor.view(DTYPES[dtype])

    def as_norm(self, scalar: Scalar, dtype: str) -> Tensor:
        return (scalar if type(scalar) in PLAIN else sharded.full_tensor(scalar)).to(DTYPES[dtype])

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        coef = operations.stored(coef)
        return [torch.where(coef.to(t.device) != 1.0, operations.product(t, coef), t) for t in tensors]

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        eager = not torch.compiler.is_compiling() and type(coef) in PLAIN and not coef.dim()
        in_lists = [eager and fit_list_operations([tensor], (), False) for tensor in tensors]
        single = [tensor for tensor, is_listed in zip(tensors, in_lists, strict=True) if not is_listed]
        products = [operations.product(tensor, coef) for tensor in single]
        listed = list(itertools.compress(tensors, in_lists))
        return [*self.prepare_write(single, products), *operations.prepare_multiply(listed, coef)]

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        if conditions.is_watched() or not all(
            conditions.is_plain(bound) for bound in (low, high) if isinstance(bound, torch.Tensor)
        ):
            return None
        return bool((~(low <= high)).any())

    def bound(self, value: Any, tensor: Tensor) -> Any:
        if isinstance(value, torch.Tensor):
            return round_once(self, value.to(tensor.device), NAMES[tensor.dtype])
        if tensor.dtype in REAL and torch.compiler.is_compiling():
            return round_once(self, self.constant(value, [tensor]), NAMES[tensor.dtype])
        return torch.full((), value, dtype=tensor.dtype, device=tensor.device)

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        return [torch.where(keep.to(tensor.device), tensor, torch.zeros_like(tensor)) for tensor in tensors]

    def prepare_write(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Write]:
        """Write tensor subclasses first, because writing a subclass can fail."""
        both = sorted(zip(tensors, values, strict=True), key=lambda item: type(item[0]) in PLAIN)
        return [
            Write(functools.partial(_write, tensor, value, conditions.is_inference(tensor))) for tensor, value in both
        ]

    def vector(self, values: Sequence[float], like: Sequence[Tensor]) -> Scalar:
        return torch.tensor(values, dtype=torch.float64, device=like[0].device if like else None)

    def indices(self, length: int, like: Sequence[Tensor]) -> Scalar:
        return torch.arange(length, dtype=torch.float64, device=like[0].device if like else None)

    def sort(self, vector: Scalar) -> Scalar:
        return vector.sort().values

    def pinned(self, scalar: Scalar) -> Scalar:
        return scalar.clamp(max=sys.float_info.max) if torch.compiler.is_compiling() else scalar

    def pack(self, scalars: Sequence[Scalar]) -> Tensor:
        return torch.cat([scalar.reshape(-1) for scalar in scalars])

    def unpack(self, packed: Tensor, lengths: Sequence[int | None], like: Sequence[Tensor]) -> list[Scalar]:
        parts = (packed.to(like[0].device) if like else packed).split([length or 1 for length in lengths])
        return [part if length else part.reshape(()) for part, length in zip(parts, lengths, strict=True)]

    def is_finite(self, scalar: Scalar) -> bool | None:
        return None if conditions.is_watched() or type(scalar) not in PLAIN else bool(scalar.isfinite())

    def count_nonfinite(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        return sharded.full_tensor(tensor.isnan().sum()), sharded.full_tensor(tensor.isinf().sum())

    def scope(self, differentiable: bool) -> AbstractContextManager[Any]:
        return nullcontext() if differentiable else torch.no_grad()

    def to_numpy(self, tensor: Tensor) -> kernels.Array:
        on_host = sharded.full_tensor(tensor).detach().cpu().resolve_conj().resolve_neg()
        bits = on_host.view(torch.uint16) if on_host.dtype == torch.bfloat16 else on_host
        array: kernels.Array = bits.numpy()  # unlike `host_view`, it keeps a copy's memory alive
        return array

    def in_graph(self, values: Sequence[Any]) -> bool:
        parts = (part for value in values for part in conditions.inner_tensors(value))
        return conditions.is_watched() or any(type(part) not in PLAIN for part in parts)

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        return operations.read_later(scalars)


class UnrecordedPrimitives(TorchPrimitives):
    may_launch = True


class ListPrimitives(UnrecordedPrimitives):
    """`torch._foreach_` operations, whose number does not depend on the number of tensors."""

    in_lists = True

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        if p not in (1, 2):
            return super().power_sum(tensors, p, divisor)
        return operations.power_sums(tensors, p, divisor).sum()

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        return operations.max_abs(tensors).max()

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        if coef.dim():
            return super().scale(tensors, coef)  # one coefficient per slice
        return operations.multiplied(tensors, coef)

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        return super().prepare_scale(tensors, coef) if coef.dim() else operations.prepare_multiply(tensors, coef)

    def prepare_clamp(self, tensors: Sequence[Tensor], bounds: Sequence[Sequence[Any]]) -> list[Write]:
        writes: list[Write] = []
        for indices, group in operations.groups(tensors):
            low, high = bounds[indices[0]]
            if isinstance(low, torch.Tensor) or isinstance(high, torch.Tensor) or low == 0 or high == 0:
                tensor_bounds = [super(ListPrimitives, self).bound(bound, group[0]) for bound in (low, high)]
                results = [self.clamp(tensor, *tensor_bounds) for tensor in group]
                writes.append(Write(functools.partial(torch._foreach_copy_, group, results)))
            else:
                writes += operations.prepare_clamp(group, low, high)
        return writes

    def bound(self, value: Any, tensor: Tensor) -> Any:
        if isinstance(value, torch.Tensor) or torch.compiler.is_compiling():
            return super().bound(value, tensor)
        return value


class PerTensorPrimitives(ListPrimitives):
    is_per_tensor = True

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        return operations.power_sums(tensors, p, divisor)

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        return operations.max_abs(tensors)

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        if conditions.fit_lists(tensors):
            return operations.multiplied(tensors, coef)
        return [PRIMITIVES.scale([tensor], own)[0] for tensor, own in zip(tensors, coef.unbind(), strict=True)]

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        if conditions.fit_lists(tensors):
            return operations.prepare_multiply(tensors, coef)
        return self.prepare_write(tensors, self.scale(tensors, coef))


def _write(tensor: Tensor, value: Tensor, in_inference: bool) -> None:
    with torch.inference_mode() if in_inference else torch.no_grad():
        tensor.copy_(value)


PRIMITIVES = TorchPrimitives()
SINGLE_PRIMITIVES = UnrecordedPrimitives()
"""The primitives for tensors that the `torch._foreach_` operations do not support."""

LIST_PRIMITIVES = ListPrimitives()
PER_TENSOR_PRIMITIVES = PerTensorPrimitives()
