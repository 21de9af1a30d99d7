"""Process groups of PyTorch, with their ranks and the device of their collectives."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ..._core.types import Tensor
from ..._distributed.groups import KeptByIdentity, Mesh, ProcessGroup, Ranks


class TorchGroup(ProcessGroup):
    def __init__(self, group: Any, tensors: Sequence[Any] = ()) -> None:
        super().__init__(group, ranks_of(group), here=torch.distributed.get_rank())
        self._groups = groups_of(group)
        self._device = device_of(self._groups[0], tensors)

    def all_reduce(self, numbers: Sequence[int], op: str) -> list[int]:
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        self._reduce(tensor, op)
        reduced: list[int] = tensor.tolist()
        return reduced

    @property
    def name(self) -> str:
        return " ".join(group.group_name for group in self._groups)

    def _reduce(self, tensor: Tensor, op: str) -> None:
        for group in self._groups:
            torch.distributed.all_reduce(tensor, getattr(torch.distributed.ReduceOp, op), group)


def device_of(group: Any, tensors: Sequence[Any]) -> torch.device:
    """Return the device for the collectives of a process group.

    - If `device_id` of `init_process_group` binds a GPU to the group, return this GPU.
    - Otherwise, if a tensor is on a device mesh of GPUs, return the current GPU.
    - Otherwise, return the CPU if the group's backend supports the CPU. A gloo group never uses a GPU.

    All ranks must choose the same type of device, so the choice depends only on the group and on meshes.
    """
    kinds = [device.type for device in group._device_types] if group is not None else []
    bound = getattr(group, "bound_device_id", None)
    meshes = {tensor.device_mesh.device_type for tensor in tensors if hasattr(tensor, "device_mesh")}
    on_gpu = [bound] if bound is not None else [torch.device(kind) for kind in kinds if kind in meshes - {"cpu"}]
    for device in on_gpu:
        if device.type in kinds and group._get_backend(device).name() != "gloo":
            return torch.device(device)
    return torch.device("cpu" if "cpu" in kinds or not kinds else kinds[0])


_RANKS: KeptByIdentity[Ranks] = KeptByIdentity()


def ranks_of(owner: Any) -> Ranks:
    return _RANKS.get(owner, _ranks_of)


def _ranks_of(owner: Any) -> Ranks:
    if isinstance(owner, MeshGroups):
        return owner.ranks
    return Ranks(torch.distributed.get_process_group_ranks(owner))


# -- groups of device meshes. No group is created here, because all ranks would have to take part


class MeshGroups:
    def __init__(self, groups: Sequence[Any], ranks: Ranks) -> None:
        self._groups, self.ranks = [weakref.ref(group) for group in groups], ranks

    @property
    def groups(self) -> list[Any]:
        return [group() for group in self._groups]


def groups_of(group: Any) -> list[Any]:
    return group.groups if isinstance(group, MeshGroups) else [group]


_MESH_GROUPS: KeptByIdentity[dict[tuple[int, ...], MeshGroups]] = KeptByIdentity()
"""All `MeshGroups`, by their first process group, and then by a tuple with the `id` of every group."""


_MESHES: KeptByIdentity[Mesh] = KeptByIdentity()


def mesh_of(device_mesh: Any) -> Mesh:
    return _MESHES.get(device_mesh, lambda mesh: Mesh(np.asarray(mesh.mesh), mesh.get_rank()))


def group_of_mesh(mesh: Any) -> Any:
    if mesh.get_coordinate() is None:
        raise ValueError(
            f"process_group is a device mesh with the ranks {mesh.mesh.flatten().tolist()}, but this process is rank "
            f"{mesh.get_rank()}. Pass a mesh that contains this rank"
        )
    return group_along(mesh, _dims_of(mesh) or [0])


def groups_of_shards(tensors: Iterable[Any]) -> list[Any] | None:
    """Return a list with one process group: the group over which the DTensors are sharded or `Partial`.

    If all DTensors are replicated, the list is empty. If the placements do not determine the group, return None.
    """
    groups: set[Any] = set()
    meshes: dict[int, tuple[Any, dict[Any, int]]] = {}
    for tensor in tensors:
        mesh, placements = tensor.device_mesh, tensor.placements
        if mesh.size() != torch.distributed.get_world_size():
            return None
        try:
            _, dims = meshes.setdefault(id(mesh), (mesh, {group_along(mesh, [dim]): dim for dim in _dims_of(mesh)}))
        except RuntimeError:  # the mesh was made without process groups
            return None
        groups |= {group for group, dim in dims.items() if not placements[dim].is_replicate()}
    for mesh, dims in meshes.values():
        if groups <= dims.keys():
            return [group_along(mesh, sorted(dims[group] for group in groups))] if groups else []
    return [] if not groups else None


def _dims_of(mesh: Any) -> list[int]:
    return [dim for dim in range(mesh.ndim) if mesh.size(dim) > 1]


def group_along(mesh: Any, dims: Sequence[int]) -> Any:
    if math.prod(mesh.size(dim) for dim in dims) == torch.distributed.get_world_size():
        return torch.distributed.group.WORLD
    groups = [mesh.get_group(dim) for dim in dims]
    if len(groups) == 1:
        return groups[0]
    kept = _MESH_GROUPS.get(groups[0], lambda _: {})
    key = tuple(map(id, groups))
    if key not in kept or kept[key].groups != groups:
        kept[key] = MeshGroups(groups, mesh_of(mesh).along(dim in dims for dim in range(mesh.ndim)))
    return kept[key]
