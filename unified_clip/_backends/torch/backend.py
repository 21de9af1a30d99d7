"""The backend of PyTorch. In-place functions overwrite dense gradients, and `.grad` stays the same object."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import torch

from ..._api import torch_functions
from ..._api.framework import Framework
from ..._compute import host, kernels, memory, processor, sparse_rows
from ..._core import collect, entry, rule
from ..._core.backend import Backend, Distributed, Inputs, Parameters, Route, Sparse, always
from ..._core.distributed import INFERRED, DistributedSpec, PartialSums, Shards, declared
from ..._core.path import CollectedPath, Path
from ..._core.types import CoalescedSparse, Leaf, Scalar, Tensor
from . import conditions, device_path, gpu_lists, kernel_operators, operations, releases, sharded, traced_bodies
from .conditions import DTYPES, fit_list_operations, records_derivatives
from .device_path import OnHost, TorchPath
from .primitives import LIST_PRIMITIVES, PER_TENSOR_PRIMITIVES, PRIMITIVES, SINGLE_PRIMITIVES, TorchPrimitives

COLLECTOR: Any = host.collector(torch.Tensor, torch.nn.Parameter, [("is_neg", False)], ("requires_grad", True))


def _by(primitives: TorchPrimitives) -> Callable[[TorchBackend, Inputs], Path]:
    return lambda backend, inputs: TorchPath(primitives, inputs.tensors, inputs.differentiable)


def _on_copies(backend: TorchBackend, inputs: Inputs) -> Path:
    is_recorded = records_derivatives(inputs.differentiable) and any(tensor.requires_grad for tensor in inputs.all())
    if is_recorded or conditions.is_watched():
        raise TypeError(
            "a gradient is on a device without float64, where graphs and derivatives of a clip are not supported. Clip "
            "in eager code under torch.no_grad(), or move the gradients to the CPU first"
        )
    return OnHost(backend, inputs.tensors)


class TorchBackend(TorchPrimitives, Backend, Parameters, Sparse, Distributed):
    writable = True

    routes = (
        Route("copies on the CPU", lambda own, inputs: any(map(operations.lacks_float64, inputs.all())), _on_copies),
        host.ROUTE,
        Route("lists", lambda own, inputs: fit_list_operations(*inputs), _by(LIST_PRIMITIVES)),
        Route("single tensors", lambda own, inputs: not conditions.is_recorded(*inputs), _by(SINGLE_PRIMITIVES)),
        Route("recorded", always, _by(PRIMITIVES)),
    )

    def from_state(self, values: Any, like: Tensor | None = None) -> Tensor:
        device = None if like is None else like.device
        if like is not None and operations.lacks_float64(like):
            device = "cpu"
        return torch.tensor(values, device=device)

    def kernels_in_graphs(self) -> bool:
        return kernel_operators.ENABLED

    # -- tensors

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) or kernels.is_array(value)

    def as_tensor(self, value: Any) -> Tensor:
        if isinstance(value, torch.Tensor):
            return value
        return self.from_host(*kernels.storage(kernels.own_copy(value)))

    def detached(self, parameter: Any) -> Tensor:
        return self.as_tensor(parameter).detach()

    def as_bound(self, value: Any) -> Tensor:
        """Gather a DTensor from all ranks."""
        return self.as_tensor(sharded.full_tensor(value))

    # -- gradients on parameters

    def is_parameter(self, value: Any) -> bool:
        return isinstance(value, torch.nn.Parameter)

    def identity(self, parameter: Any) -> Hashable:
        in_graph = torch.compiler.is_compiling() and isinstance(parameter, torch.Tensor)
        key: Hashable = parameter if in_graph else id(parameter)  # an id would make the graph valid for one object
        return key

    def gradient_of(self, parameter: Any) -> Any | None:
        return None if conditions.is_inner(parameter) else getattr(parameter, "grad", None)

    def main_gradient_of(self, parameter: Any) -> Any | None:
        return getattr(parameter, "main_grad", None) if getattr(parameter, "requires_grad", False) else None

    main_gradient_remedy = (
        "Copy main_grad first: parameter.grad = parameter.main_grad.to(parameter.dtype). With Megatron's optimizer, "
        "pass optimizer.get_parameters() after optimizer.prepare_grads()"
    )

    def set_gradient(self, parameter: Any, gradient: Any) -> None:
        parameter.grad = gradient

    def can_have_gradient(self, parameter: Any) -> bool:
        if not isinstance(parameter, torch.Tensor) or conditions.is_inner(parameter):
            return False
        return parameter.requires_grad or isinstance(parameter, torch.nn.Parameter)

    def records_derivative(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.requires_grad

    def unsupported(self, gradient: Any) -> str | None:
        is_nested = not torch.compiler.is_compiling() and isinstance(gradient, torch.Tensor) and gradient.is_nested
        return "a nested tensor. Pass its components instead: gradient.unbind()" if is_nested else None

    def coalesce(self, gradient: Any, *, differentiable: bool) -> CoalescedSparse | None:
        if conditions.is_strided(gradient):
            return None
        if gradient.layout != torch.sparse_coo:
            raise TypeError(f"tensors of layout {gradient.layout} cannot be clipped. Convert them with to_dense()")
        if gradient.sparse_dim() == 0:
            raise TypeError("a sparse tensor without sparse dimensions cannot be clipped. Convert it with to_dense()")
        device = gradient.device
        gradient = gradient.cpu() if operations.lacks_float64(gradient) else gradient
        recorded = differentiable and self.wants_derivative(gradient)
        if recorded or not self.takes_host([gradient._indices(), gradient._values()]):
            merged = operations.widened(gradient).coalesce()  # rows are summed in float64 and rounded once
            indices, values = merged.indices(), merged.values().to(gradient.dtype)
        else:
            dtype = self.dtype(gradient)
            rows, array = sparse_rows.merge_rows(
                self.host_view(gradient._indices()), self.host_view(gradient._values()), dtype
            )
            indices, values = torch.from_numpy(rows), self.from_host(array, dtype)
        indices, values = indices.to(device), values.to(device)

        def restore(new: Tensor) -> Tensor:
            # PyTorch 2.11 warns in torch.sparse_coo_tensor, also with check_invariants=False
            return torch.ops.aten._sparse_coo_tensor_unsafe(indices, new, gradient.shape, is_coalesced=True)

        return CoalescedSparse(values, restore, gradient.sparse_dim(), indices)

    def to_dense(self, gradient: Any) -> Tensor:
        return gradient.to_dense()

    # -- paths

    def shards(
        self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec, *, differentiable: bool
    ) -> Shards | None:
        shards = sharded.find(gradients, parameters, spec)
        if shards is None or shards.are_simulated():
            return None  # a dry run takes PyTorch's own operations
        if differentiable and not spec.is_given and records_derivatives(True) and shards.want_derivatives():
            return None  # PyTorch's own operations on DTensors have derivatives
        entry.break_graph(
            "distributed gradients cannot be clipped in a compiled graph. Leave fullgraph=True out, or clip outside "
            "of the graph"
        )
        return shards

    def has_ranks(self) -> bool:
        distributed = torch.distributed
        return not torch.compiler.is_compiling() and distributed.is_available() and distributed.is_initialized()

    def any_sharded(self, parameters: Sequence[Any]) -> bool:
        return any(map(sharded.is_dtensor, parameters))

    def check_total_norm(self, gradients: Sequence[Leaf], spec: DistributedSpec) -> None:
        sharded.check_full_mesh(gradients, spec)

    def partial_sums(self, tensors: Sequence[Tensor]) -> PartialSums:
        path = host.path_over(self, self.plain_tensors(tensors, differentiable=False, in_place=False))
        if path is not None:
            return cast(PartialSums, path)
        takes_host = self.takes_host(tensors)
        return host.HostPath(self, tensors) if takes_host else device_path.LocalSums(self, tensors)

    def collect_parameters(self, parameters: Sequence[Any]) -> CollectedPath | None:
        in_graph = torch.compiler.is_compiling()
        if not in_graph:
            if sharded.are_flat(parameters):
                return None
            path: CollectedPath | None = host.path_over(self, self.plain_gradients(parameters))
            path = path or _path_on_gpu(gpu_lists.collect_parameters(parameters))
            if path is not None:
                return path
        present = [parameter for parameter in parameters if parameter is not None]
        if not all(map(conditions.is_clippable, present)):
            return None
        gradients = [parameter.grad for parameter in present if parameter.grad is not None]
        if len(gradients) < len(present) and any(self.main_gradient_of(p) is not None for p in present):
            return None
        if not in_graph:
            return _collect_on_device(gradients)
        if len(set(gradients)) < len(gradients) or any(map(conditions.is_expanded, gradients)):
            return None
        return _collect_in_graph(gradients, differentiable=False)

    def plain_gradients(self, parameters: Sequence[Any]) -> Any | None:
        plain = None if COLLECTOR is None or conditions.is_watched() else COLLECTOR.of_parameters(parameters)
        return None if plain is None or sharded.are_flat(parameters) else plain  # a collected container is a list

    def plain_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> Any | None:
        collector = _collector()
        return collector and collector.of_tensors(tensors, records_derivatives(differentiable), in_place)

    def collect_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> CollectedPath | None:
        if torch.compiler.is_compiling():
            return _collect_in_graph(tensors, differentiable=differentiable)
        recording = records_derivatives(differentiable)
        plain = self.plain_tensors(tensors, differentiable=differentiable, in_place=in_place)
        path: CollectedPath | None = host.path_over(self, plain)
        path = path or _path_on_gpu(gpu_lists.collect_tensors(tensors, recording=recording))
        if path is not None:
            return path
        present = [tensor for tensor in tensors if tensor is not None]
        path = _collect_on_device(present)
        is_recorded = path is not None and recording and any(tensor.requires_grad for tensor in present)
        return None if is_recorded else path

    def collect_param_grads(self, param_grads: Sequence[Any]) -> CollectedPath | None:
        if not torch.compiler.is_compiling():
            collector = _collector()
            path = None if collector is None else host.path_over(self, collector.of_param_grads(param_grads))
            return None if path is None or sharded.are_flat([parameter for parameter, _ in param_grads]) else path
        if not all(type(item) is tuple and len(item) == 2 and conditions.is_clippable(item[0]) for item in param_grads):
            return None
        return _collect_in_graph([gradient for _, gradient in param_grads], differentiable=False)

    def takes_host(self, tensors: Sequence[Tensor], *, differentiable: bool = False) -> bool:
        if conditions.is_watched() or host.forced_path():
            return False
        recording = records_derivatives(differentiable)
        return not any(not conditions.is_plain(t) or (recording and t.requires_grad) for t in tensors)

    def from_host(self, array: kernels.Array, dtype: str) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor

    def norm_from_host(self, value: float, dtype: str) -> Tensor:
        return torch.tensor(value, dtype=DTYPES[dtype], device="cpu")

    def threads(self) -> int | None:
        return int(torch.get_num_threads())

    def bump_versions(self, tensors: Sequence[Tensor]) -> None:
        if torch.compiler.is_dynamo_compiling():
            return  # in a graph, operations write
        try:
            releases.increment_versions(tensors)
        except RuntimeError:  # tensors made in inference mode have no version
            releases.increment_versions([tensor for tensor in tensors if not tensor.is_inference()])

    def has_values(self, vector: Tensor) -> bool:
        return not conditions.is_watched() and conditions.is_plain(vector)

    def read(self, scalar: Tensor) -> float | int | None:
        if conditions.is_watched() or not conditions.is_plain(scalar):
            return None
        with processor.ieee_arithmetic():
            number: float | int = scalar.detach().item()
            return number

    def wants_derivative(self, scalar: Tensor) -> bool:
        return bool(scalar.requires_grad and torch.is_grad_enabled())

    def alias_owners(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        if torch.compiler.is_compiling():
            return _alias_owners_in_graph(tensors, describe)
        traced = conditions.is_traced()
        inner = [(index, part) for index, tensor in enumerate(tensors) for part in conditions.inner_tensors(tensor)]
        if COLLECTOR is not None and len(inner) == len(tensors) and not traced:
            tensor_list = COLLECTOR.of_tensors([part for _, part in inner], False, True)
            if tensor_list is not None and len(tensor_list.tensors) == len(inner):
                return list(range(len(tensors)))
        for index, part in inner:
            if part._is_zerotensor():
                raise ValueError(
                    f"{describe(index)} has no memory, so it cannot be clipped in place. Replace it by its clone()"
                )
        buffers: dict[int, int] = {}
        views = [
            None if traced or not conditions.has_address(part)
            else conditions.mps_view(part, buffers) if operations.lacks_float64(part)
            else self.host_view(part)
            for _, part in inner
        ]  # fmt: skip
        inner_owners = memory.alias_owners([part for _, part in inner], views, lambda at: describe(inner[at][0]))
        owners: dict[int, set[int]] = {}
        for (index, _), owner in zip(inner, inner_owners, strict=True):
            owners.setdefault(index, set()).add(inner[owner][0])
        for index, indices in owners.items():
            if len(indices) > 1:
                raise ValueError(
                    f"{describe(index)} overlaps in memory with other gradients. Replace these gradients by clones"
                )
        return [owners[index].pop() for index in range(len(tensors))]


def _collect_on_device(tensors: Sequence[Any]) -> TorchPath | None:
    if conditions.is_watched() or not conditions.are_plain_on_devices(tensors):
        return None
    return TorchPath(LIST_PRIMITIVES, tensors, differentiable=False)


def _path_on_gpu(device_list: Any | None) -> TorchPath | None:
    return device_list and TorchPath(LIST_PRIMITIVES, device_list.tensors, False, device_list=device_list)


def _collect_in_graph(items: Sequence[Any], *, differentiable: bool) -> TorchPath | None:
    tensors = [tensor for tensor in items if tensor is not None]
    in_lists = fit_list_operations(tensors, (), differentiable)
    if (
        not tensors
        or not (in_lists or (differentiable and all(map(conditions.is_real, tensors))))
        or any(map(operations.lacks_float64, tensors))
    ):
        return None
    return TorchPath(LIST_PRIMITIVES if in_lists else PRIMITIVES, tensors, differentiable)


def _alias_owners_in_graph(tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
    for index, tensor in enumerate(tensors):
        if conditions.is_expanded(tensor):
            raise memory.expanded(describe(index))
    first: dict[Any, int] = {}
    return [first.setdefault(tensor, index) for index, tensor in enumerate(tensors)]


def _collector() -> Any | None:
    """Return the compiled collector, or None if PyTorch would not record its reads of raw memory."""
    return None if conditions.is_watched() else COLLECTOR


BACKEND = TorchBackend()


def scale_by_operations(tensors: Sequence[Tensor], coef: Scalar, per_tensor: bool) -> None:
    for write in (PER_TENSOR_PRIMITIVES if per_tensor else PRIMITIVES).prepare_scale(tensors, coef):
        write.make()


def norm_by_operations(tensors: Sequence[Tensor], p: float, per_tensor: bool) -> Scalar:
    return TorchPath(PER_TENSOR_PRIMITIVES if per_tensor else PRIMITIVES, tensors, not per_tensor).norm_by_operations(p)


kernel_operators.register(lambda tensors: host.HostPath(BACKEND, tensors), norm_by_operations, scale_by_operations)


def _clip_grad_norm_in_graph(
    framework: Framework[Any, Any],
    parameters: Any,
    max_norm: Any,
    norm_type: Any = 2.0,
    error_if_nonfinite: Any = False,
    foreach: Any = None,
    *,
    process_group: Any = "auto",
    **checks: Any,
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    backend, parameters = framework.resolve(parameters)
    gradients = None
    if (
        backend is BACKEND
        and type(max_norm) in (float, int)
        and 0 <= max_norm < math.inf
        and type(norm_type) in (float, int)
        and norm_type == 2
        and error_if_nonfinite is False
        and declared(process_group, **checks) is INFERRED
    ):
        parameters = collect.listed(parameters)
        gradients = kernel_operators.gradients_of(parameters)
    arguments = framework, parameters, max_norm, norm_type, error_if_nonfinite, foreach
    options = {"process_group": process_group, **checks}
    if gradients is None:
        return None, arguments, options
    with torch.no_grad():
        path = TorchPath(LIST_PRIMITIVES, gradients, differentiable=False)
        norm = kernel_operators.norm(gradients, 2.0, per_tensor=False)
        coef = rule.coefficient(path.xp, norm, max_norm + 0.0, rule.PYTORCH)
        kernel_operators.scale_(gradients, coef, per_tensor=False)
        return path.as_norm(norm), arguments, options


traced_bodies.SHORT_BODIES[torch_functions.clip_grad_norm_] = _clip_grad_norm_in_graph
