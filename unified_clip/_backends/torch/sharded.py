"""Read the local tensors, placements and process groups of DTensors."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..._compute.checksums import digest
from ..._core.distributed import DistributedSpec, Measures
from ..._core.path import Path
from ..._core.types import Leaf, Scalar, Tensor
from ..._distributed.agreement import TERMS, Compared, by_name, label
from ..._distributed.groups import Mesh, NormGroup, ProcessGroup, Ranks, SingleProcess
from ..._distributed.norm import DistributedGradients
from ..._distributed.owners import Copies, Terminology
from ..._distributed.placements import Kind
from . import gpu_lists, releases
from .process_group import TorchGroup, group_along, group_of_mesh, groups_of, groups_of_shards, mesh_of


def dtensor_types() -> tuple[Any, ...]:
    """Return () if the module of DTensors is not imported yet."""
    module = releases.loaded_dtensor()
    return () if module is None else (module.DTensor,)


def is_dtensor(value: Any) -> bool:
    return isinstance(value, dtensor_types())


def full_tensor(value: Any) -> Any:
    return value.full_tensor() if is_dtensor(value) else value


def full_max(values: Any) -> Any:
    """PyTorch's maximum over shards can ignore NaN, and fails for an empty shard. So gather the shards first."""
    return full_tensor(values).max()


def find(gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> TorchShards | None:
    """Return None if no tensor is a DTensor and the caller declares no ranks."""
    tensors, types = [*(leaf.parameter for leaf in parameters), *(leaf.tensor for leaf in gradients)], dtensor_types()
    is_sharded = any(isinstance(tensor, types) for tensor in tensors)
    if spec.is_given or is_sharded or (spec.process_group == "auto" and are_flat(tensors)):
        return TorchShards(gradients, parameters, spec)
    return None


def are_flat(parameters: Sequence[Any]) -> bool:
    """Return whether several ranks share an FSDP1 flat parameter, which has no placements."""
    if "torch.distributed.fsdp._flat_param" not in sys.modules:
        return False
    if not torch.distributed.is_initialized() if releases.CANNOT_TRACE_WORLD else torch.distributed.group.WORLD is None:
        return False
    return torch.distributed.get_world_size() > 1 and any(hasattr(p, "_fsdp_flattened") for p in parameters)


def check_declared(parameters: Sequence[Any], spec: DistributedSpec) -> None:
    if spec.process_group == "auto" and spec.ownership is None and are_flat(parameters):
        raise undeclared_flat()


def undeclared_flat() -> RuntimeError:
    return RuntimeError(
        "These are FSDP1 flat parameters, which carry no placement. Pass process_group=model.process_group, "
        "ownership=fsdp1_ownership(model), where model is the FSDP1 module. Import fsdp1_ownership "
        "from unified_clip.ownership"
    )


def check_full_mesh(gradients: Sequence[Leaf], spec: DistributedSpec) -> None:
    """Raise ValueError if a DTensor's mesh lacks a rank, because PyTorch's norm would ignore this rank."""
    for leaf in gradients if spec.process_group is not None else ():
        if not is_dtensor(leaf.tensor):
            continue
        size, world_size = leaf.tensor.device_mesh.size(), torch.distributed.get_world_size()
        if size != world_size:
            raise ValueError(
                f"the mesh of the gradient at {leaf.place} has {size} of {world_size} ranks. The "
                "gradients of the other ranks are unknown: pass process_group and ownership. Also clip "
                "under torch.no_grad(), because derivatives require a mesh of all ranks"
            )


class TorchShards(DistributedGradients):
    terminology = Terminology("device mesh", "Call gradient.redistribute first", "torch.distributed.group.WORLD")

    def __init__(self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> None:
        super().__init__(gradients, parameters, spec)
        self._sums: dict[int, Tensor] = {}
        self._buckets: list[Bucket] = []
        with torch.no_grad():
            self.values = [_local(gradient) for gradient in self._gradients]

    def want_derivatives(self) -> bool:
        return any(isinstance(gradient, torch.Tensor) and gradient.requires_grad for gradient in self._gradients)

    def are_simulated(self) -> bool:
        """Return whether no real exchange between ranks is possible, as in a dry run without other processes."""
        is_fake = torch.distributed.is_initialized() and "fake" in torch.distributed.get_backend()
        return is_fake or any(isinstance(value, FakeTensor) for value in self.values)

    def owned(self, indices: Sequence[int]) -> list[Tensor]:
        check_declared([leaf.parameter for leaf in self._parameters], self._spec)
        return super().owned(indices)

    def norm_groups(self, known_only: bool = False) -> list[NormGroup]:
        check_declared([leaf.parameter for leaf in self._parameters], self._spec)
        return super().norm_groups(known_only)

    def norm(self, path: Path, indices: Sequence[int], p: float, *args: Any, **options: Any) -> Scalar:
        if gpu_lists.may_launch() and self._stays_here([self.values[index] for index in indices], p):
            self.owned(indices)  # raises the errors of a declaration
            return path.norm(p)
        return super().norm(path, indices, p, *args, **options)

    def _stays_here(self, values: Sequence[Tensor], p: float) -> bool:
        is_checked = self.numel is not None or self.awaits_sums("total")
        is_alone = self.group().size == 1 and not is_checked
        return is_alone and gpu_lists.can_measure(values, p) and gpu_lists.of_tensors(values) is not None

    def owned_alone(self, index: int) -> Tensor:
        return self.reduced(index)

    def restored(self, index: int, value: Tensor) -> Any:
        like = self._gradients[index]
        if not is_dtensor(like):
            return value
        return type(like).from_local(
            value, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    # -- placements

    def is_sharded(self, tensor: Any) -> bool:
        return is_dtensor(tensor)

    def mesh(self, tensor: Any) -> Mesh:
        return mesh_of(tensor.device_mesh)

    def kinds(self, tensor: Any) -> list[Kind]:
        return [_kind(placement) for placement in tensor.placements]

    @functools.cached_property
    def _first_alike(self) -> list[int | None]:
        """Return the index of the first DTensor with the same mesh and placements. For other tensors, return None.

        Hashing placements is slow, so shared `placements` objects are compared by identity first.
        """
        indices: list[int | None] = []
        by_identity: dict[tuple[int, int], int] = {}
        by_layout: dict[Hashable, int] = {}
        types = dtensor_types()
        for index, tensor in enumerate(self._tensors()):
            if not isinstance(tensor, types):
                indices.append(None)
                continue
            mesh, placements = id(tensor.device_mesh), tensor.placements
            first = by_identity.get((mesh, id(placements)))
            if first is None:
                first = by_identity[mesh, id(placements)] = by_layout.setdefault(_layout(tensor), index)
            indices.append(first)
        return indices

    @functools.cached_property
    def layout_keys(self) -> list[int | None]:
        return self._first_alike[len(self._parameters) :]

    def tensors_by_layout(self) -> list[Any]:
        tensors = self._tensors()
        return [tensors[index] for index in sorted({first for first in self._first_alike if first is not None})]

    @functools.cached_property
    def _partial(self) -> set[int]:
        tensors = self._tensors()
        partial = {first for first in set(self._first_alike) if first is not None and self.is_partial(tensors[first])}
        return {index for index, first in enumerate(self.layout_keys) if first in partial}

    def reduced(self, index: int) -> Tensor:
        gradient = self._gradients[index]
        if index not in self._partial:
            return self.values[index]
        if index in self._sums:
            return self._sums[index]
        self._check_terms(index)
        replicated = releases.dtensor().Replicate()
        with torch.no_grad():
            placements = [replicated if placement.is_partial() else placement for placement in gradient.placements]
            return _local(gradient.redistribute(placements=placements))

    def _check_terms(self, index: int) -> None:
        sum_type = releases.dtensor().Partial
        for placement in self._gradients[index].placements:
            # a subclass of Partial may add up in another way. `_NormPartial`, for example, adds up norms
            if placement.is_partial() and (
                type(placement) is not sum_type or placement.reduce_op not in ("sum", "avg")
            ):
                raise ValueError(
                    f"the gradient at {self._leaves[index].place} has the placement {placement!r}, which is not "
                    "supported. Call gradient.redistribute first"
                )

    def defer_terms(self, indices: Sequence[int]) -> list[int]:
        waiting = {}
        for index in sorted(self._partial.intersection(indices)):
            gradient = self._gradients[index]
            if index not in self._sums:
                self._check_terms(index)
                if gradient.device_mesh.get_coordinate() is not None:
                    waiting[index] = self._leaves[index], gradient
        self._buckets = [bucket for bucket in buckets(waiting) if bucket.ranks <= self._group.ranks]
        return [index for bucket in self._buckets for index in bucket.members]

    def terms(self) -> list[Compared]:
        return [bucket.agreement(torch.distributed.get_rank()) for bucket in self._buckets]

    def sum_terms(self) -> list[Tensor]:
        with torch.no_grad():
            for bucket in self._buckets:
                self._sums.update(bucket.summed(self.values))
        return [self._sums[index] for index in self._deferred]

    def awaits_sums(self, measures: Measures) -> bool:
        partial = sorted(self._partial)
        if measures == "each" or not partial:
            return bool(partial)
        with suppress(ValueError):  # only on this rank, before the ranks sum terms
            return len(self.defer_terms(partial)) < len(partial)
        return False

    def elements(self, index: int) -> int:
        gradient = self._gradients[index]  # `values` of a sparse gradient are the stored rows
        return int((gradient if is_dtensor(gradient) else self.values[index]).numel())

    def layout(self, tensor: Any) -> str:
        if not is_dtensor(tensor):
            return "plain"
        mesh = tensor.device_mesh
        names = mesh.mesh_dim_names or [str(dimension) for dimension in range(mesh.ndim)]
        along = zip(tensor.placements, names, mesh.shape, strict=True)
        return ", ".join(f"{placement!r} over {name}={size}" for placement, name, size in along)

    # -- groups

    def world(self) -> ProcessGroup:
        is_initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
        return self._group_of(torch.distributed.group.WORLD) if is_initialized else SingleProcess()

    def group_from(self, process_group: Any) -> ProcessGroup:
        if hasattr(process_group, "get_all_groups"):
            return self._group_of(group_of_mesh(process_group))
        outside = torch.distributed.GroupMember.NON_GROUP_MEMBER  # an int, which `new_group` returns on other ranks
        is_outside = isinstance(process_group, int) and process_group == outside
        if not isinstance(process_group, torch.distributed.ProcessGroup) and not is_outside:
            raise TypeError(
                f"process_group is {process_group!r}. Pass a process group of torch.distributed, a device mesh, None, "
                "or 'auto'"
            )
        return self._group_of(process_group)

    def shard_groups(self, leaf: Leaf, tensor: Any) -> list[ProcessGroup] | None:
        if not is_dtensor(tensor):
            return [] if self.is_complete(leaf, tensor) else None
        mesh = tensor.device_mesh
        if mesh.get_coordinate() is None:
            return []
        dims = [dim for dim, p in enumerate(tensor.placements) if mesh.size(dim) > 1 and _kind(p) == "shard"]
        return [self._group_of(mesh.get_group(dim)) for dim in dims]

    def _find_group(self) -> ProcessGroup:
        groups = groups_of_shards(self.tensors_by_layout()) if self._placements_decide() else None
        if groups is None:
            return super()._find_group()
        return self._group_of(groups[0]) if groups else SingleProcess(torch.distributed.get_rank())

    def _placements_decide(self) -> bool:
        """Return whether DTensor placements determine the process group.

        A missing gradient has no placements, so read the placements of its parameter. Without parameters, return False.
        """
        spec = self._spec
        is_inferred = spec.process_group == "auto" and spec.ownership is None and not spec.check_replicas
        has_parameters = all(leaf.parameter is not leaf.tensor for leaf in self._leaves)
        return is_inferred and has_parameters and None not in self._first_alike

    def _group_of(self, group: Any) -> ProcessGroup:
        return self.cached_group(group, functools.partial(TorchGroup, group, self.tensors_by_layout()))


def _local(gradient: Any) -> Tensor:
    return _waited(gradient.to_local()) if is_dtensor(gradient) else gradient


def _waited(tensor: Any) -> Tensor:
    return tensor.wait() if hasattr(tensor, "trigger_wait") else tensor


def _layout(tensor: Any) -> Hashable:
    return id(tensor.device_mesh), tensor.placements


def _kind(placement: Any) -> Kind:
    return "replicate" if placement.is_replicate() else "partial" if placement.is_partial() else "shard"


# -- sums of `Partial` gradients. Gradients that are summed over the same ranks share one all-reduce


class Bucket(NamedTuple):
    ranks: Ranks
    device: str
    sizes: tuple[int, ...]
    """The number of ranks along each mesh dimension that has a `Partial` placement."""

    members: dict[int, tuple[Leaf, Any]]
    """Maps the index of each gradient to (parameter, gradient)."""

    def agreement(self, here: int) -> Compared:
        """The ranks compare this `Compared` before they sum the gradients."""
        copies = Copies((self.ranks.key, self.device, self.sizes), len(self.ranks), self.ranks[0] == here)
        layouts = [(leaf, _layout_of_terms(leaf, gradient)) for leaf, gradient in self.members.values()]
        labels = [(label(leaf), layout) for leaf, layout in layouts]
        return Compared(TERMS, copies, digest(labels), lambda: by_name(layouts))

    def summed(self, values: Sequence[Tensor]) -> dict[int, Tensor]:
        """Every rank in `ranks` must call this method."""
        buffer = self.flattened(values)
        _, first = next(iter(self.members.values()))
        dims = [dim for dim in partial_dims(first) if first.device_mesh.size(dim) > 1]
        for group in groups_of(group_along(first.device_mesh, dims)) if dims else ():
            torch.distributed.all_reduce(buffer, group=group)
        return self.rounded(buffer, values)

    def flattened(self, values: Sequence[Tensor]) -> Tensor:
        return torch.cat([_as_real(values[index]).to(torch.float64).flatten() for index in self.members])

    def rounded(self, buffer: Tensor, values: Sequence[Tensor]) -> dict[int, Tensor]:
        """Return the gradients from `buffer`, the sum over all ranks of the tensors that `flattened` returns."""
        numbers = {index: _as_real(values[index]) for index in self.members}
        sums = buffer.split([number.numel() for number in numbers.values()])
        return {
            index: _rounded(total / _divisor(self.members[index][1]), numbers[index], values[index])
            for index, total in zip(numbers, sums, strict=True)
        }


def partial_dims(gradient: Any) -> list[int]:
    return [dim for dim, placement in enumerate(gradient.placements) if placement.is_partial()]


def buckets(gradients: Mapping[int, tuple[Leaf, Any]]) -> list[Bucket]:
    by_key: dict[Any, Bucket] = {}
    for index, (leaf, gradient) in gradients.items():
        mesh, dims = gradient.device_mesh, partial_dims(gradient)
        ranks, sizes = mesh_of(mesh).along(dim in dims for dim in range(mesh.ndim)), tuple(map(mesh.size, dims))
        bucket = Bucket(ranks, gradient.to_local().device.type, sizes, {})
        key = ranks.key, bucket.device, sizes
        by_key.setdefault(key, bucket).members[index] = leaf, gradient
    return [by_key[key] for key in sorted(by_key)]


def _layout_of_terms(leaf: Leaf, gradient: Any) -> str:
    local, operations = gradient.to_local(), [gradient.placements[dim].reduce_op for dim in partial_dims(gradient)]
    return f"{list(local.shape)} {str(local.dtype).removeprefix('torch.')}, {' and '.join(operations)}"


def _divisor(gradient: Any) -> int:
    mesh = gradient.device_mesh
    dims = partial_dims(gradient)
    return math.prod(mesh.size(dim) for dim in dims if gradient.placements[dim].reduce_op == "avg")


def _as_real(value: Tensor) -> Tensor:
    value = value.detach()
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _rounded(total: Tensor, number: Tensor, value: Tensor) -> Tensor:
    rounded = total.view(number.shape).to(number.dtype)
    return torch.view_as_complex(rounded) if value.is_complex() else rounded
