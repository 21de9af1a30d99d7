"""PyTorch's DTensors, and plain tensors beside them: what this process holds of each, and what of that it counts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from ..._core.distributed import DistributedSpec
from ..._core.types import Leaf, Tensor
from ..._distributed.norm import NormGroup, SingleProcess
from ..._distributed.placements import DistributedGradients, RankedGroup, Terminology


def is_dtensor(value: Any) -> bool:
    """Without an import: where PyTorch's module is not loaded there is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def gathered(value: Any) -> Any:
    """Return a DTensor as the tensor that all processes have; anything else as it is."""
    return value.full_tensor() if is_dtensor(value) else value


def greatest(magnitudes: Any) -> Any:
    """The greatest one, by PyTorch's operations, of all: of parts it may lose a NaN, and an empty one has none."""
    return gathered(magnitudes).max()


def find(gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> TorchShards | None:
    """What processes hold together, where anything says so: a DTensor, or the caller."""
    given = [*(leaf.parameter for leaf in parameters), *(leaf.tensor for leaf in gradients)]
    if spec.is_given or any(map(is_dtensor, given)) or (spec.process_group == "auto" and are_flat(given)):
        return TorchShards(gradients, parameters, spec)
    return None


def are_flat(parameters: Sequence[Any]) -> bool:
    """Return whether they are shards of FSDP1 over several processes, which do not tell so."""
    if "torch.distributed.fsdp._flat_param" not in sys.modules or not torch.distributed.is_initialized():
        return False
    return torch.distributed.get_world_size() > 1 and any(hasattr(each, "_fsdp_flattened") for each in parameters)


def check_told(parameters: Sequence[Any], spec: DistributedSpec) -> None:
    """Reject shards that do not tell so, where the caller does not either."""
    if spec.process_group == "auto" and spec.ownership is None and are_flat(parameters):
        raise flat()


def flat() -> RuntimeError:
    return RuntimeError(
        "These are FSDP1 flat parameters, which carry no placement. Pass process_group=model.process_group, the ranks "
        "that FSDP1 shards over, and ownership='distinct'"
    )


def check_spanning(gradients: Sequence[Leaf], spec: DistributedSpec) -> None:
    """Reject DTensors on some of the processes, which PyTorch's operations would take for all there is."""
    for leaf in gradients if spec.process_group is not None else ():
        size, everybody = _mesh_size(leaf.tensor)
        if size != everybody:
            raise ValueError(
                f"the gradient at {leaf.place} is on {size} of {everybody} processes, which does not tell what the "
                "others have, and its norm is to have a derivative; call under torch.no_grad(), and pass process_group "
                "and ownership"
            )


def _mesh_size(tensor: Any) -> tuple[int, int]:
    """Return how many processes hold it, of how many; of a plain tensor this one alone is asked."""
    return (tensor.device_mesh.size(), torch.distributed.get_world_size()) if is_dtensor(tensor) else (1, 1)


class TorchGroup:
    """A process group of `torch.distributed`."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank = torch.distributed.get_rank(group)
        self.size = torch.distributed.get_world_size(group)
        self.ranks = torch.distributed.get_process_group_ranks(group)
        self.key = group
        if self.rank < 0:
            raise ValueError(
                f"this process, rank {torch.distributed.get_rank()}, is not in process_group, which has the ranks "
                f"{self.ranks}; call with a group that it is in, or not at all"
            )

    def total(self, numbers: Sequence[int]) -> list[int]:
        return self._reduced(numbers, torch.distributed.ReduceOp.SUM)

    def greatest(self, numbers: Sequence[int]) -> list[int]:
        return self._reduced(numbers, torch.distributed.ReduceOp.MAX)

    def _reduced(self, numbers: Sequence[int], how: Any) -> list[int]:
        if self.size == 1:
            return list(numbers)
        found = torch.tensor(numbers, dtype=torch.int64, device=_device(self._group))
        torch.distributed.all_reduce(found, how, self._group)
        reduced: list[int] = found.tolist()
        return reduced


def _device(group: Any) -> torch.device:
    """Where a group takes tensors: on the CPU wherever it can."""
    devices = [device.type for device in group._device_types] if group is not None else []
    return torch.device("cpu" if "cpu" in devices or not devices else devices[0])


class TorchShards(DistributedGradients):
    """`Shards` of one call."""

    words = Terminology("device mesh", "redistribute it first", "torch.distributed.group.WORLD")

    def __init__(self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> None:
        super().__init__(gradients, parameters, spec)
        self._ranks: dict[int, frozenset[int]] = {}
        with torch.no_grad():
            self.values = [_held(gradient) for gradient in self._gradients]

    def want_derivatives(self) -> bool:
        return any(isinstance(gradient, torch.Tensor) and gradient.requires_grad for gradient in self._gradients)

    def counted(self, indices: Sequence[int]) -> list[Tensor]:
        check_told([leaf.parameter for leaf in self._parameters], self._spec)
        return super().counted(indices)

    def rows(self, known_only: bool = False) -> list[NormGroup]:
        check_told([leaf.parameter for leaf in self._parameters], self._spec)
        return super().rows(known_only)

    def whole(self, index: int) -> Tensor:
        return self.summed(index)

    def restored(self, index: int, value: Tensor) -> Any:
        like = self._gradients[index]
        if not is_dtensor(like):
            return value
        return type(like).from_local(
            value, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    # -- what DTensors tell

    def is_sharded(self, tensor: Any) -> bool:
        return is_dtensor(tensor)

    def ranks(self, tensor: Any) -> frozenset[int]:
        mesh = tensor.device_mesh  # whose own hash takes long
        if id(mesh) not in self._ranks:
            self._ranks[id(mesh)] = frozenset(mesh.mesh.flatten().tolist())
        return self._ranks[id(mesh)]

    def is_first(self, tensor: Any) -> bool:
        coordinate = tensor.device_mesh.get_coordinate()
        return coordinate is not None and not any(
            at and not _is_shard(placement) for at, placement in zip(coordinate, tensor.placements, strict=True)
        )

    def is_replicated(self, tensor: Any) -> bool:
        return tensor.device_mesh.size() == 1 or all(placement.is_replicate() for placement in tensor.placements)

    def is_partial(self, tensor: Any) -> bool:
        return any(placement.is_partial() for placement in tensor.placements)

    def summed(self, index: int) -> Tensor:
        gradient = self._gradients[index]
        if not is_dtensor(gradient) or not self.is_partial(gradient):
            return self.values[index]
        for placement in gradient.placements:
            if placement.is_partial() and placement.reduce_op not in ("sum", "avg"):
                raise ValueError(
                    f"the gradient at {self._leaves[index].place} has the placement {placement}; redistribute it first"
                )
        replicated = sys.modules["torch.distributed.tensor"].Replicate()
        with torch.no_grad():
            placements = [replicated if placement.is_partial() else placement for placement in gradient.placements]
            return _held(gradient.redistribute(placements=placements))

    def elements(self, index: int) -> int:
        gradient = self._gradients[index]  # of a sparse one the rows that are there
        return int((gradient if is_dtensor(gradient) else self.values[index]).numel())

    def layout(self, tensor: Any) -> str:
        if not is_dtensor(tensor):
            return "plain"
        mesh = tensor.device_mesh
        names = mesh.mesh_dim_names or [str(dimension) for dimension in range(mesh.ndim)]
        along = zip(tensor.placements, names, mesh.shape, strict=True)
        return ", ".join(f"{placement!r} over {name}={size}" for placement, name, size in along)

    # -- groups

    def world(self) -> RankedGroup:
        is_one_of_several = torch.distributed.is_available() and torch.distributed.is_initialized()
        return self._group_of(torch.distributed.group.WORLD) if is_one_of_several else SingleProcess()

    def named_group(self, stated: Any) -> TorchGroup:
        if hasattr(stated, "get_all_groups"):
            return self._group_of(_group_of(stated))
        if not isinstance(stated, torch.distributed.ProcessGroup | int):  # int: of a process that is not in a group
            raise TypeError(
                f"process_group is {stated!r}; it has to be a process group of torch.distributed, a device mesh, None, "
                "or 'auto'"
            )
        return self._group_of(stated)

    def groups_over(self, leaf: Leaf, tensor: Any) -> list[TorchGroup] | None:
        if not is_dtensor(tensor):
            return [] if self.is_complete_here(leaf.parameter, tensor) else None
        mesh = tensor.device_mesh
        cut = [at for at, p in enumerate(tensor.placements) if mesh.size(at) > 1 and _is_shard(p)]
        return [self._group_of(mesh.get_group(at)) for at in cut]

    def _group_of(self, group: Any) -> TorchGroup:
        if group not in self._groups:
            self._groups[group] = TorchGroup(group)
        found: TorchGroup = self._groups[group]
        return found


def _held(gradient: Any) -> Tensor:
    """What this process holds, in the gradient's own memory. Called without derivatives being recorded."""
    return _waited(gradient.to_local()) if is_dtensor(gradient) else gradient


def _waited(tensor: Any) -> Tensor:
    """Return a tensor once PyTorch has finished communicating it."""
    return tensor.wait() if hasattr(tensor, "trigger_wait") else tensor


def _is_shard(placement: Any) -> bool:
    """Return whether processes along a dimension of the mesh have different elements."""
    return not (placement.is_replicate() or placement.is_partial())


def _group_of(mesh: Any) -> Any:
    """Of a device mesh."""
    if mesh.get_coordinate() is None:
        raise ValueError(
            f"this process, rank {mesh.get_rank()}, is not on the device mesh that is passed as process_group, which "
            f"has the ranks {mesh.mesh.flatten().tolist()}; pass one that it is on"
        )
    if mesh.size() == torch.distributed.get_world_size():
        return torch.distributed.group.WORLD
    if mesh.ndim == 1:
        return mesh.get_group()
    raise ValueError(
        f"process_group is a device mesh of {mesh.ndim} dimensions with {mesh.size()} of the "
        f"{torch.distributed.get_world_size()} processes, for which there is no process group; make one once, with "
        "torch.distributed.new_group, and pass it"
    )
