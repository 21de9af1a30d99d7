"""Tables for gradients on several GPUs, or with norms of different dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...._core.types import Scalar, Tensor
from . import table
from .table import PARTS, Table


class Tables:
    """Several tables for one gradient list. Each entry has the indices of a table's tensors in this list."""

    def __init__(self, tables: Sequence[tuple[Sequence[int], Table]]) -> None:
        self._tables = tables

    def norms(self, p: float, *, per_tensor: bool) -> Scalar:
        if not per_tensor:
            return table.norm_of_all([part for _, part in self._tables], p)
        device = self._tables[0][1].device
        norms: dict[int, Scalar] = {}
        for indices, part in self._tables:
            vector = part.norms(p, per_tensor=True).to(device, non_blocking=True)
            norms.update(zip(indices, vector.unbind(), strict=True))
        return torch.stack([norms[index] for index in range(len(norms))])

    def products(self, coef: Scalar, *, per_tensor: bool) -> list[Callable[[], None]]:
        launches = []
        coefs = coef.unbind() if per_tensor else ()
        for indices, part in self._tables:
            own = torch.stack([coefs[index] for index in indices]) if per_tensor else coef
            launches += part.products(own.to(part.device, non_blocking=True), per_tensor=per_tensor)
        return launches

    def clamped(self, bounds: Sequence[Sequence[float]]) -> list[Callable[[], None]]:
        return [
            launch for indices, part in self._tables for launch in part.clamped([bounds[index] for index in indices])
        ]


def table_of(
    tensors: Sequence[Tensor], results: Sequence[Tensor] | None = None, *, per_tensor: bool
) -> Table | Tables | None:
    groups: dict[tuple[torch.device, bool], list[int]] = {}
    for index, tensor in enumerate(tensors):
        is_wide = PARTS.get(tensor.dtype, tensor.dtype) == torch.float64
        groups.setdefault((tensor.device, per_tensor and is_wide), []).append(index)
    if len(groups) == 1:
        single = table.table_of(tensors, results)
        return single if single is not None and single.chunks else None
    tables = []
    for indices in groups.values():
        part = table.table_of([tensors[index] for index in indices], results and [results[index] for index in indices])
        if part is None:
            return None
        tables.append((indices, part))
    # A group may have only empty tensors, whose norms are 0.
    return Tables(tables) if 0 < sum(part.chunks for _, part in tables) <= table.MAX_CHUNKS else None
