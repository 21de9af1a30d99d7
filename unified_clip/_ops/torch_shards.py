"""PyTorch's DTensors, and plain tensors beside them: what this process holds of each, and what of that it counts."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from .._core.containers import Leaf
from .._core.ops import Tensor
from .._core.shards import DISTINCT, REPLICATED, Across, Alone, Row


def is_dtensor(value: Any) -> bool:
    """Without an import: where PyTorch's module is not loaded there is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def find(gradients: Sequence[Leaf], parameters: Sequence[Leaf], across: Across) -> TorchShards | None:
    """What processes hold together, where anything says so: a DTensor, or the caller."""
    if not across.is_stated and not any(is_dtensor(leaf.tensor) for leaf in (*parameters, *gradients)):
        return None
    return TorchShards(gradients, parameters, across)


class TorchGroup:
    """A process group of `torch.distributed`."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank = torch.distributed.get_rank(group)
        self.size = torch.distributed.get_world_size(group)
        self.ranks = torch.distributed.get_process_group_ranks(group)
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
        try:
            torch.distributed.all_reduce(found, how, self._group)
            reduced: list[int] = found.tolist()
        except RuntimeError as error:
            error.add_note(
                f"This was rank {torch.distributed.get_rank()} while it clipped gradients: it waited for the "
                f"{self.size} processes of a group to find their norm. Each of them has to make the same call, without "
                "a gradient too, and none may have ended; no gradient was changed."
            )
            raise
        return reduced


def _device(group: Any) -> torch.device:
    """Where a group takes tensors: on the CPU wherever it can."""
    devices = [device.type for device in group._device_types] if group is not None else []
    return torch.device("cpu" if "cpu" in devices or not devices else devices[0])


class TorchShards:
    """`Shards` of one call."""

    def __init__(self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], across: Across) -> None:
        self._leaves, self._parameters, self._across = list(gradients), list(parameters), across
        self._gradients = [leaf.tensor for leaf in gradients]
        with torch.no_grad():
            self.values = [_held(gradient) for gradient in self._gradients]
        self._group: TorchGroup | None = None
        self._groups: dict[Any, TorchGroup] = {}
        self._within: set[frozenset[int]] = set()  # of the meshes whose processes are known to be in the group

    @property
    def numel(self) -> int | None:
        asked = self._across.check_numel
        if asked is None or asked is False:
            return None
        if asked is not True:
            return int(asked)
        pairs = zip(self._gradients, self.values, strict=True)  # of sparse ones the rows that are there
        return sum(int((gradient if is_dtensor(gradient) else held).numel()) for gradient, held in pairs)

    @property
    def parameters(self) -> int | None:
        ownership = self._across.ownership
        return None if ownership == DISTINCT or callable(ownership) else len(self._parameters)

    def want_derivatives(self) -> bool:
        return any(isinstance(gradient, torch.Tensor) and gradient.requires_grad for gradient in self._gradients)

    def rows(self) -> list[Row]:
        index_of = {leaf.position: index for index, leaf in enumerate(self._leaves)}
        rows = []
        for leaf in self._parameters:
            index = index_of.get(leaf.position)
            told = leaf.parameter if index is None else self._gradients[index]
            if not is_dtensor(told) and self._across.is_stated and self._across.ownership != "replicated":
                raise ValueError(
                    f"{leaf.place} is a plain tensor, of which other processes may hold other parts, so its own norm "
                    "is not known; use one norm over all gradients, or pass ownership='replicated' if it is whole here"
                )
            rows.append(Row(index, self._groups_along(told) if is_dtensor(told) else []))
        return rows

    def _groups_along(self, tensor: Any) -> list[TorchGroup]:
        """Those of its mesh's dimensions over which it is cut."""
        along = []
        for dimension, placement in enumerate(tensor.placements):
            if tensor.device_mesh.size(dimension) > 1 and not _is_copied(placement):
                along.append(self._group_of(tensor.device_mesh.get_group(dimension)))
        return along

    def whole(self, index: int) -> Tensor:
        gradient = self._gradients[index]
        if not is_dtensor(gradient) or not any(placement.is_partial() for placement in gradient.placements):
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

    def check_by_value(self) -> None:
        for leaf in self._leaves:
            if is_dtensor(leaf.tensor) and any(placement.is_partial() for placement in leaf.tensor.placements):
                raise ValueError(
                    f"the gradient at {leaf.place} has the placements {leaf.tensor.placements}: every process holds a "
                    "term of each element, so that elements cannot be clipped by value; redistribute it first"
                )

    def told(self) -> dict[str, Any]:
        ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        return {"ranks": ranks, "rank": rank, "layout": dict(Counter(map(_layout, self._gradients)))}

    def restored(self, index: int, value: Tensor) -> Any:
        like = self._gradients[index]
        if not is_dtensor(like):
            return value
        return type(like).from_local(
            value, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def group(self) -> Alone | TorchGroup:
        if self._across.process_group is None:
            return Alone()
        if self._group is None:
            self._group = self._group_of(self._found_group())
        return self._group

    def _group_of(self, group: Any) -> TorchGroup:
        if group not in self._groups:
            self._groups[group] = TorchGroup(group)
        return self._groups[group]

    def counted(self, indices: Sequence[int]) -> list[Tensor]:
        if isinstance(group := self.group(), Alone):
            self._check_complete(indices)
            return [self.values[index] for index in indices]
        counts = [self._counts(index, group) for index in indices]  # where that cannot be told, before any is reduced
        whole = [self.whole(index) for index in indices]  # on all processes, since they communicate
        return [tensor for tensor, counted in zip(whole, counts, strict=True) if counted]

    def _check_complete(self, indices: Sequence[int]) -> None:
        for index in indices:
            gradient = self._gradients[index]
            if (
                is_dtensor(gradient)
                and gradient.device_mesh.size() > 1
                and not all(map(_is_whole, gradient.placements))
            ):
                raise ValueError(
                    f"process_group is None, and the gradient at {self._leaves[index].place} is not complete here: it "
                    f"is {gradient.placements} on {gradient.device_mesh.size()} processes; leave process_group out"
                )

    # -- the group

    def _found_group(self) -> Any:
        stated = self._across.process_group
        if hasattr(stated, "get_all_groups"):  # a device mesh
            return _group_of(stated)
        if stated != "auto":
            return stated
        found = [tensor.device_mesh for tensor in self._tensors() if is_dtensor(tensor)]
        meshes = set({id(mesh): mesh for mesh in found}.values())  # their hash takes long
        if any(map(_spans_world, meshes | {getattr(self._across.ownership, "mesh", None)} - {None})):
            return torch.distributed.group.WORLD
        if not meshes:
            raise ValueError(
                "ownership or check_numel is given, and no tensor tells which processes hold the gradients; pass "
                "process_group as well"
            )
        sizes = ", ".join(str(size) for size in sorted({mesh.size() for mesh in meshes}))
        raise ValueError(
            f"the gradients are on device meshes of {sizes} of the {torch.distributed.get_world_size()} processes, and "
            "nothing tells what the other processes hold; pass process_group, the group of all processes that hold the "
            "model (torch.distributed.group.WORLD if all do), and ownership: 'replicated' if the others hold copies, "
            "'distinct' if they hold other parameters, or a function of a parameter; clip_grad_norm_, get_total_norm "
            "and GradientClipByGlobalNorm take them"
        )

    def _tensors(self) -> list[Any]:
        return [leaf.tensor for leaf in self._parameters] + self._gradients

    # -- who counts what

    def _counts(self, index: int, group: TorchGroup) -> bool:
        """Whether this process counts its part of a gradient."""
        gradient = self._gradients[index]
        if not is_dtensor(gradient):
            return self._is_owner(index, group, frozenset([group.ranks[group.rank]]))
        mesh, coordinate = gradient.device_mesh, gradient.device_mesh.get_coordinate()
        if coordinate is None or any(
            at and _is_copied(p) for at, p in zip(coordinate, gradient.placements, strict=True)
        ):
            return False
        ranks = _ranks(mesh)
        if ranks not in self._within and not ranks <= set(group.ranks):
            raise ValueError(
                f"the gradient at {self._leaves[index].place} is on a device mesh with the ranks {sorted(ranks)}, and "
                f"process_group has {group.ranks}; pass a group of all processes that hold the model"
            )
        self._within.add(ranks)
        return len(ranks) == group.size or self._is_owner(index, group, ranks)

    def _is_owner(self, index: int, group: TorchGroup, ranks: frozenset[int]) -> bool:
        """Whether what these ranks hold is counted: the tensor does not tell what the others have."""
        leaf, ownership = self._leaves[index], self._across.ownership
        if callable(ownership):
            return bool(ownership(leaf.parameter))
        if ownership == DISTINCT:
            return True
        if ownership == REPLICATED or (len(ranks) == 1 and self._is_beside_whole_meshes):
            return group.ranks[0] in ranks
        held = f"on {len(ranks)} of them" if is_dtensor(self._gradients[index]) else "a plain tensor"
        raise ValueError(
            f"{group.size} processes hold the gradients, and the one at {leaf.place} is {held}, which does not tell "
            "what the others have in its place; pass ownership: 'replicated' if they hold copies of it, 'distinct' if "
            "they hold other parameters or other parts, or a function of a parameter: whether this process counts it "
            "(unified_clip.ownership has some)"
        )

    @functools.cached_property
    def _is_beside_whole_meshes(self) -> bool:
        """Whether there are DTensors on all processes: then plain tensors beside them are copies, as for PyTorch."""
        size = self.group().size
        return any(is_dtensor(tensor) and tensor.device_mesh.size() == size for tensor in self._tensors())


def _layout(gradient: Any) -> str:
    """In words: `Shard(dim=0) over dp=4`."""
    if not is_dtensor(gradient):
        return "plain"
    mesh = gradient.device_mesh
    names = mesh.mesh_dim_names or [str(dimension) for dimension in range(mesh.ndim)]
    along = zip(gradient.placements, names, mesh.shape, strict=True)
    return ", ".join(f"{placement!r} over {name}={size}" for placement, name, size in along)


def _held(gradient: Any) -> Tensor:
    """What this process holds, in the gradient's own memory. Called without derivatives being recorded."""
    return _waited(gradient.to_local()) if is_dtensor(gradient) else gradient


def _waited(tensor: Any) -> Tensor:
    """A result that PyTorch may still be communicating."""
    return tensor.wait() if hasattr(tensor, "trigger_wait") else tensor


def _is_whole(placement: Any) -> bool:
    return bool(placement.is_replicate())


def _is_copied(placement: Any) -> bool:
    """Whether all along a dimension of the mesh have the same, once terms are added up."""
    return bool(placement.is_replicate() or placement.is_partial())


@functools.lru_cache(maxsize=64)
def _ranks(mesh: Any) -> frozenset[int]:
    return frozenset(mesh.mesh.flatten().tolist())


def _spans_world(mesh: Any) -> bool:
    return bool(mesh.size() == torch.distributed.get_world_size())


def _group_of(mesh: Any) -> Any:
    if _spans_world(mesh):
        return torch.distributed.group.WORLD
    if mesh.ndim == 1:
        return mesh.get_group()
    raise ValueError(
        f"process_group is a device mesh of {mesh.ndim} dimensions with {mesh.size()} of the "
        f"{torch.distributed.get_world_size()} processes, for which there is no process group; make one once, with "
        "torch.distributed.new_group, and pass it"
    )
