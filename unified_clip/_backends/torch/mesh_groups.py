"""Process groups of device meshes. None is created here, since that would take all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def group_of_mesh(mesh: Any) -> Any:
    """Return the process group of a device mesh. ValueError: the mesh has none, or this rank is not on it."""
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


def groups_of_shards(tensors: Iterable[Any]) -> list[Any] | None:
    """Return the process groups over which any of these DTensors is sharded or `Partial`, each once.

    None: the placements do not decide it, because a mesh has only some of the ranks, or has no process groups.
    """
    groups: dict[Any, None] = {}
    seen: set[tuple[int, Any]] = set()
    for tensor in tensors:
        mesh, placements = tensor.device_mesh, tensor.placements
        if (id(mesh), placements) in seen:
            continue
        seen.add((id(mesh), placements))
        if mesh.size() != torch.distributed.get_world_size():
            return None
        dims = [dim for dim, p in enumerate(placements) if mesh.size(dim) > 1 and not p.is_replicate()]
        try:
            groups.update((_group_along(mesh, dim), None) for dim in dims)
        except RuntimeError:  # the mesh was made without process groups
            return None
    return list(groups)


def _group_along(mesh: Any, dim: int) -> Any:
    return torch.distributed.group.WORLD if mesh.size(dim) == mesh.size() else mesh.get_group(dim)
