"""Process groups of PyTorch, with their ranks and the device of their collectives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..._core.distributed import PartialSums
from ..._core.types import Tensor
from ..._distributed.groups import ProcessGroup
from ..._distributed.on_device import FLAGS, NormOnDevice, NormRequest, most_terms
from ..._distributed.ranks import KeptByIdentity, Ranks
from . import arithmetic, gpu
from .conditions import COMPLEX, REAL
from .mesh_groups import MeshGroups, groups_of

if TYPE_CHECKING:
    from .gpu import norm_over_ranks


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

    @property
    def leaves_norms(self) -> bool:
        if not gpu.ENABLED:
            return False
        from .gpu.table import INTERPRETED

        return bool((self._device.type == "cuda") != INTERPRETED)

    def fits_device(self, tensors: Sequence[Tensor], p: float) -> bool:
        dtypes = (*REAL, *COMPLEX) if p == 2 else REAL  # in a sum of squares, real and imaginary parts are real numbers
        return all(tensor.dtype in dtypes for tensor in tensors)

    def norm_on_device(self, request: NormRequest) -> NormOnDevice:
        from .gpu import norm_over_ranks

        tensors, p, own, numbers, dtype, terms = request

        def counted(tensors: Sequence[Tensor], measure: Callable[[], PartialSums]) -> norm_over_ranks.Counted:
            return self._counted(tensors, p, dtype, measure)

        def sum_terms() -> tuple[norm_over_ranks.Counted, norm_over_ranks.Counted]:
            number = most_terms(self.key)
            if terms is None:
                self.join_terms(number)
                return norm_over_ranks.Counted(), norm_over_ranks.Counted()
            lengths = [terms.length, number - terms.length]
            buffer = torch.cat([terms.flatten(), self._zeros(lengths[1])])
            self._reduce(buffer, "SUM")
            sums = terms.round(buffer.split(lengths)[0])
            owned = [sums[at] for at in terms.owned]
            return counted(sums, lambda: terms.measure(sums)), counted(owned, lambda: terms.measure(owned))

        on_device = norm_over_ranks.Request(
            numbers, counted(tensors, lambda: own), sum_terms if most_terms(self.key) else None, p, dtype == "float64",
            self.size,
        )  # fmt: skip
        with torch.no_grad():
            norm, added = norm_over_ranks.norm_over_ranks(on_device, self._device, self._reduce)
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return NormOnDevice(norm, None)
        return NormOnDevice(norm, arithmetic.read_later([added.split([FLAGS, len(added) - FLAGS])[1]]))

    def _counted(
        self, tensors: Sequence[Tensor], p: float, dtype: str, measure: Callable[[], PartialSums]
    ) -> norm_over_ranks.Counted:
        from .gpu.norm_over_ranks import Counted
        from .gpu.table import Table

        present = [tensor for tensor in tensors if tensor.numel()] if self.fits_device(tensors, p) else []
        if not present:
            return Counted()
        table = gpu.table_of(present)
        if isinstance(table, Table) and table.device == self._device:
            return Counted(table)
        if p == math.inf:
            return Counted(None, largest=measure().max_abs(dtype))
        return Counted(None, measure().power_sum(int(p), True))

    def join_terms(self, length: int) -> None:
        self._reduce(self._zeros(length), "SUM")

    def _zeros(self, length: int) -> Tensor:
        return torch.zeros(length, dtype=torch.float64, device=self._device)

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
    return Ranks(owner.mesh if hasattr(owner, "mesh") else torch.distributed.get_process_group_ranks(owner))
