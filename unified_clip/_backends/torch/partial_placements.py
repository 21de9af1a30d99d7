"""Sum `Partial` gradients over ranks. Gradients that are summed over the same ranks share one all-reduce."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..._core.types import Leaf, Tensor
from ..._distributed.agreement import TERMS, Compared
from ..._distributed.copies import by_name, label
from ..._distributed.digests import digest
from ..._distributed.owners import Copies
from ..._distributed.ranks import Ranks
from .mesh_groups import group_along, groups_of, mesh_of


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
        layouts = [(leaf, _layout(leaf, gradient)) for leaf, gradient in self.members.values()]
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


def _layout(leaf: Leaf, gradient: Any) -> str:
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
