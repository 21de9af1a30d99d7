"""PyTorch's DTensors, and plain tensors beside them: local tensors, placements and process groups."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ..._core.distributed import DistributedSpec
from ..._core.types import Leaf, Tensor
from ..._distributed.norm import NormGroup, ProcessGroup, SingleProcess
from ..._distributed.placements import DistributedGradients, Terminology
from ..._distributed.ranks import KeptByIdentity, Ranks
from .checked_lists import Checked, Recalled, remember


def is_dtensor(value: Any) -> bool:
    """Return whether a value is a DTensor, without importing PyTorch's module."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def full_tensor(value: Any) -> Any:
    """Gather a DTensor; return anything else unchanged."""
    return value.full_tensor() if is_dtensor(value) else value


def full_max(values: Any) -> Any:
    """Return the maximum, from the gathered tensor: of shards, PyTorch's may lose a NaN, and an empty one fails."""
    return full_tensor(values).max()


def find(gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> TorchShards | None:
    """Return the shards of gradients if there is a DTensor, a flat parameter or a declaration, else None."""
    tensors = [*(leaf.parameter for leaf in parameters), *(leaf.tensor for leaf in gradients)]
    if spec.is_given or any(map(is_dtensor, tensors)) or (spec.process_group == "auto" and are_flat(tensors)):
        return TorchShards(gradients, parameters, spec)
    return None


def are_flat(parameters: Sequence[Any]) -> bool:
    """Return whether these are FSDP1's flat parameters over several ranks. They carry no placements."""
    if "torch.distributed.fsdp._flat_param" not in sys.modules or not torch.distributed.is_initialized():
        return False
    return torch.distributed.get_world_size() > 1 and any(hasattr(p, "_fsdp_flattened") for p in parameters)


def check_declared(parameters: Sequence[Any], spec: DistributedSpec) -> None:
    """Reject flat parameters without a declaration."""
    if spec.process_group == "auto" and spec.ownership is None and are_flat(parameters):
        raise undeclared_flat()


def undeclared_flat() -> RuntimeError:
    return RuntimeError(
        "These are FSDP1 flat parameters, which carry no placement. Pass process_group=model.process_group, the ranks "
        "that FSDP1 shards over, and ownership='distinct'"
    )


def check_full_mesh(gradients: Sequence[Leaf], spec: DistributedSpec) -> None:
    """Reject DTensors on some ranks only, whose norm PyTorch's operations would take for the total norm."""
    for leaf in gradients if spec.process_group is not None else ():
        if not is_dtensor(leaf.tensor):
            continue
        size, world_size = leaf.tensor.device_mesh.size(), torch.distributed.get_world_size()
        if size != world_size:
            raise ValueError(
                f"the gradient at {leaf.place} is on {size} of {world_size} ranks, and a derivative of its norm is "
                "recorded. Cannot infer what the other ranks have. Call under torch.no_grad(), and pass process_group "
                "and ownership"
            )


class TorchGroup(ProcessGroup):
    """A process group of `torch.distributed`."""

    def __init__(self, group: Any, tensors: Iterable[Any]) -> None:
        super().__init__(group, _RANKS.get(group, _ranks_of_group), here=torch.distributed.get_rank())
        self._device_type = payload_device(group, tensors)

    def all_reduce(self, numbers: Sequence[int], op: str) -> list[int]:
        if self.size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self._device_type)
        torch.distributed.all_reduce(tensor, getattr(torch.distributed.ReduceOp, op), self.key)
        reduced: list[int] = tensor.tolist()
        return reduced


def payload_device(group: Any, tensors: Iterable[Any]) -> str:
    """Return the type of device on which a group all-reduces: that of the tensors, so that NCCL reduces for GPUs.

    All ranks have to choose alike, one without tensors too.
    """
    supported: list[str] = [device.type for device in group._device_types] if group is not None else []
    used = {tensor.device.type for tensor in tensors if isinstance(tensor, torch.Tensor)}
    if not used and (accelerator := torch.accelerator.current_accelerator(check_available=True)) is not None:
        used = {accelerator.type}
    fitting = [kind for kind in supported if kind != "cpu" and kind in used]
    return (fitting or (["cpu"] if "cpu" in supported else supported) or ["cpu"])[0]


class TorchShards(DistributedGradients):
    """`Shards` of one call: DTensors, and plain tensors beside them."""

    terminology = Terminology("device mesh", "Redistribute it first", "torch.distributed.group.WORLD")

    def __init__(self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> None:
        super().__init__(gradients, parameters, spec)
        self._first_within: dict[Any, bool | None] = {}
        with torch.no_grad():
            self.values = [_local(gradient) for gradient in self._gradients]

    @classmethod
    def recalled(cls, call: Recalled, spec: DistributedSpec) -> TorchShards:
        """Return the shards of a list that was checked at an earlier call."""
        shards = cls.__new__(cls)
        DistributedGradients.__init__(shards, call.gradients, call.parameters, spec)
        shards.values, shards._checked, shards._group = call.values, call.checked, call.checked.group
        return shards

    _checked: Checked | None = None

    def labels(self) -> list[tuple[Leaf, str]] | None:
        if self._checked is not None:
            texts = self._checked.labels
            return None if texts is None else list(zip(self._parameters, texts, strict=True))
        labels = super().labels()
        if not self.awaits_sums():
            texts = None if labels is None else [text for _, text in labels]
            remember(self._leaves, self._parameters, self._spec, self.group(), self._is_counted, texts)
        return labels

    def want_derivatives(self) -> bool:
        return any(isinstance(gradient, torch.Tensor) and gradient.requires_grad for gradient in self._gradients)

    def counted(self, indices: Sequence[int]) -> list[Tensor]:
        if self._checked is not None:
            return list(itertools.compress(self.values, self._checked.is_counted))
        check_declared([leaf.parameter for leaf in self._parameters], self._spec)
        return super().counted(indices)

    def norm_groups(self, known_only: bool = False) -> list[NormGroup]:
        check_declared([leaf.parameter for leaf in self._parameters], self._spec)
        return super().norm_groups(known_only)

    def counted_alone(self, index: int) -> Tensor:
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

    def ranks(self, tensor: Any) -> Ranks:
        return _RANKS.get(tensor.device_mesh, _ranks_of_mesh)

    def is_first(self, tensor: Any) -> bool:
        coordinate = tensor.device_mesh.get_coordinate()
        return coordinate is not None and not any(
            at and not _is_shard(placement) for at, placement in zip(coordinate, tensor.placements, strict=True)
        )

    def is_first_within(self, tensor: Any, group: ProcessGroup) -> bool | None:
        key = id(tensor.device_mesh), tensor.placements
        if key not in self._first_within:
            self._first_within[key] = _is_first_within(tensor.device_mesh, tensor.placements, group)
        return self._first_within[key]

    def is_replicated(self, tensor: Any) -> bool:
        return tensor.device_mesh.size() == 1 or all(placement.is_replicate() for placement in tensor.placements)

    def is_partial(self, tensor: Any) -> bool:
        return any(placement.is_partial() for placement in tensor.placements)

    def reduced(self, index: int) -> Tensor:
        return self.all_reduced([index])[0]

    def all_reduced(self, indices: Sequence[int]) -> list[Tensor]:
        """Add up `Partial` gradients with equal placements in one collective."""
        alike: dict[Any, list[int]] = {}
        for index in indices:
            gradient = self._gradients[index]
            if is_dtensor(gradient) and self.is_partial(gradient):
                self._check_sums(index)
                local = self.values[index]
                key = gradient.device_mesh, gradient.placements, local.dtype, local.device
                alike.setdefault(key, []).append(index)
        values = dict(zip(indices, map(self.values.__getitem__, indices), strict=True))
        for members in alike.values():
            values.update(zip(members, self._sums(members), strict=True))
        return [values[index] for index in indices]

    def _check_sums(self, index: int) -> None:
        for placement in self._gradients[index].placements:
            if placement.is_partial() and placement.reduce_op not in ("sum", "avg"):
                raise ValueError(
                    f"the gradient at {self._leaves[index].place} has the placement {placement}, which is not "
                    "supported. Redistribute it first"
                )

    def _sums(self, indices: Sequence[int]) -> list[Tensor]:
        """Return the sums, or means, of gradients with equal placements over the ranks: added up in float64."""
        terms, like = [self.values[index] for index in indices], self._gradients[indices[0]]
        dtype = terms[0].dtype
        with torch.no_grad():
            joined = torch.cat([term.reshape(-1) for term in terms]).to(torch.promote_types(dtype, torch.float64))
            for dim, placement in enumerate(like.placements):
                size = like.device_mesh.size(dim)
                if placement.is_partial() and size > 1:
                    torch.distributed.all_reduce(joined, group=like.device_mesh.get_group(dim))
                    if placement.reduce_op == "avg":
                        joined /= size
            sums = joined.to(dtype).split([term.numel() for term in terms])
            return [total.view(term.shape) for total, term in zip(sums, terms, strict=True)]

    def elements(self, index: int) -> int:
        gradient = self._gradients[index]  # of a sparse gradient, `values` are the stored rows
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

    def group_of_one_copy(self) -> ProcessGroup | None:
        """Return the group along the only dimension that shards, or this rank alone if all DTensors are replicated."""
        tensors = self._tensors()
        if not all(map(is_dtensor, tensors)):
            return None
        mesh, meshes = tensors[0].device_mesh, {id(tensor.device_mesh): tensor.device_mesh for tensor in tensors}
        if any(other != mesh for other in meshes.values()):
            return None
        along = zip(range(mesh.ndim), *{tensor.placements for tensor in tensors}, strict=True)
        dims = [(dim, all(p.is_replicate() for p in placed)) for dim, *placed in along if mesh.size(dim) > 1]
        sharding = [dim for dim, is_copied in dims if not is_copied]
        if not sharding:
            return SingleProcess(torch.distributed.get_rank())
        return self._group_of(mesh.get_group(sharding[0])) if len(sharding) == 1 < len(dims) else None

    def group_from(self, process_group: Any) -> ProcessGroup:
        if hasattr(process_group, "get_all_groups"):
            return self._group_of(_group_of_mesh(process_group))
        # `new_group` returns an int on ranks outside of the group.
        if not isinstance(process_group, torch.distributed.ProcessGroup | int):
            raise TypeError(
                f"process_group is {process_group!r}. Pass a process group of torch.distributed, a device mesh, None, "
                "or 'auto'"
            )
        return self._group_of(process_group)

    def shard_groups(self, leaf: Leaf, tensor: Any) -> list[ProcessGroup] | None:
        if not is_dtensor(tensor):
            return [] if self.is_complete(leaf, tensor) else None
        mesh = tensor.device_mesh
        dims = [dim for dim, p in enumerate(tensor.placements) if mesh.size(dim) > 1 and _is_shard(p)]
        return [self._group_of(mesh.get_group(dim)) for dim in dims]

    def _group_of(self, group: Any) -> ProcessGroup:
        return self.cached_group(group, functools.partial(TorchGroup, group, self._tensors()))


_RANKS: KeptByIdentity[Ranks] = KeptByIdentity()
"""The ranks of process groups and device meshes."""


def _ranks_of_group(group: Any) -> Ranks:
    return Ranks(torch.distributed.get_process_group_ranks(group))


def _ranks_of_mesh(mesh: Any) -> Ranks:
    return Ranks(mesh.mesh)


def _local(gradient: Any) -> Tensor:
    """Return the local tensor, in the gradient's own memory. Call it without recording derivatives."""
    return _waited(gradient.to_local()) if is_dtensor(gradient) else gradient


def _waited(tensor: Any) -> Tensor:
    """Return a tensor once PyTorch has finished communicating it."""
    return tensor.wait() if hasattr(tensor, "trigger_wait") else tensor


def _is_first_within(mesh: Any, placements: Sequence[Any], group: ProcessGroup) -> bool | None:
    """Return whether this rank is the first of a part of a mesh with its elements; None if the part lacks elements."""
    ranks = np.asarray(mesh.mesh)
    present, copied = group.ranks.has(ranks), tuple(dim for dim, p in enumerate(placements) if not _is_shard(p))
    if np.count_nonzero(present) < group.size or not present.any(axis=copied).all():
        return None
    here = tuple(slice(None) if dim in copied else at for dim, at in enumerate(mesh.get_coordinate()))
    return bool(ranks[here][present[here]].flat[0] == group.ranks[group.rank])


def _is_shard(placement: Any) -> bool:
    """Return whether ranks along a dimension of the mesh have different elements."""
    return not (placement.is_replicate() or placement.is_partial())


def _group_of_mesh(mesh: Any) -> Any:
    """Return the process group of a device mesh."""
    if mesh.get_coordinate() is None:
        raise ValueError(
            f"rank {mesh.get_rank()} is not on the device mesh that is passed as process_group, which has the ranks "
            f"{mesh.mesh.flatten().tolist()}. Pass a mesh with this rank"
        )
    if mesh.size() == torch.distributed.get_world_size():
        return torch.distributed.group.WORLD
    if mesh.ndim == 1:
        return mesh.get_group()
    raise ValueError(
        f"process_group is a device mesh of {mesh.ndim} dimensions with {mesh.size()} of the "
        f"{torch.distributed.get_world_size()} ranks, which has no process group. Create one once with "
        "torch.distributed.new_group, and pass it"
    )
