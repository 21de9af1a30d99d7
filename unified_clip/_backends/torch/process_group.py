"""Process groups of PyTorch, with their ranks and the device of their collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..._core.types import Tensor
from ..._distributed.groups import ProcessGroup
from ..._distributed.ranks import KeptByIdentity, Ranks
from .mesh_groups import MeshGroups, groups_of


class TorchGroup(ProcessGroup):
    def __init__(self, group: Any, tensors: Sequence[Any] = ()) -> None:
        super().__init__(group, ranks_of(group), here=torch.distributed.get_rank())
        self._groups = groups_of(group)
        self._device = device_of(self._groups[0], tensors)

    def all_reduce(self, numbers: Sequence[int], op: str) -> list[int]:
        if self.size == 1:
            return list(numbers)
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
