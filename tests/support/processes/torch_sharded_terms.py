"""Functions that processes of a `World` run: clips of `Partial` gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from support.processes.torch_sharded import mesh_of, record_collectives
from support.processes.worlds import error_message
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import unified_clip.torch as uc
from unified_clip.ownership import mesh_ownership

NUMBER = 6


class Summed(NamedTuple):
    norm: float
    error: str
    all_reduces: int
    terms: list[np.ndarray]
    after: list[np.ndarray]


LAYOUTS: dict[str, tuple[str, Callable[[DeviceMesh], DeviceMesh], Sequence[Any], bool]] = {
    "row": ("row", lambda mesh: mesh, [Partial()], False),
    "mean": ("row", lambda mesh: mesh, [Partial("avg")], False),
    "both dimensions": ("rows", lambda mesh: mesh, [Partial(), Partial()], False),
    "beside copies": ("rows", lambda mesh: mesh, [Replicate(), Partial()], False),
    "beside shards": ("rows", lambda mesh: mesh, [Shard(0), Partial()], False),
    "sub-mesh": ("rows", lambda mesh: mesh["tp"], [Partial()], True),
}
"""The mesh, the submesh of the gradients, their placements, and whether other ranks have copies."""


def place(layout: str, rank: int) -> tuple[int, int]:
    """Return the indices of a rank's partial sum and of its shard."""
    first, second = divmod(rank, 2)
    return {"row": (rank, 0), "mean": (rank, 0), "both dimensions": (rank, 0)}.get(
        layout, (second, first if layout == "beside shards" else 0)
    )


def term(layout: str, rank: int, number: int, dtype: torch.dtype) -> torch.Tensor:
    seed = 100 * number + 10 * place(layout, rank)[0] + place(layout, rank)[1]
    return torch.randn(3, number + 1, generator=torch.Generator().manual_seed(seed)).to(dtype)


def clip_terms(
    layout: str,
    p: float = 2.0,
    dtype: str = "float32",
    change: str = "",
    number: int = NUMBER,
    threshold: float = 1.0,
    everywhere: bool = False,
    **options: Any,
) -> Summed:
    """Clip six gradients and a sharded one. Rank 1 changes its list by `change`, or all ranks if `everywhere`."""
    rank, mesh = dist.get_rank(), mesh_of(LAYOUTS[layout][0])
    _, submesh_of, placements, has_copies = LAYOUTS[layout]
    named: dict[str, nn.Parameter] = {}
    locals_ = []
    for position in range(number):
        local = term(layout, rank, position, getattr(torch, dtype))
        parameter = nn.Parameter(DTensor.from_local(local, submesh_of(mesh), placements, run_check=False))
        parameter.grad = DTensor.from_local(local, submesh_of(mesh), placements, run_check=False)
        named[f"norm{position}.weight"] = parameter
        locals_.append(local)
    shard = torch.full((2,), 1.0 + rank)
    row = mesh_of("row")
    named["shard"] = nn.Parameter(DTensor.from_local(shard, row, [Shard(0)], run_check=False))
    named["shard"].grad = DTensor.from_local(shard, row, [Shard(0)], run_check=False)
    named_params: list[tuple[str, Any]] = list(named.items())
    if rank == 1 or everywhere:
        CHANGES[change](named_params)
    keywords = {"ownership": mesh_ownership(mesh), **options} if has_copies else options
    before, error, norm = [local.float().numpy().copy() for local in (*locals_, shard)], "", float("nan")
    with record_collectives() as calls:
        try:
            norm = uc.clip_grad_norm_(named_params, threshold, p, **keywords).item()
        except (TypeError, ValueError) as raised:
            error = str(raised)
    return Summed(norm, error, len(calls), before, [local.float().numpy().copy() for local in (*locals_, shard)])


def without_first(named_params: list[tuple[str, Any]]) -> None:
    named_params[0][1].grad = None


def without_any(named_params: list[tuple[str, Any]]) -> None:
    for _, parameter in named_params[:NUMBER]:
        parameter.grad = None


def another_dtype(named_params: list[tuple[str, Any]]) -> None:
    gradient: Any = named_params[2][1].grad
    wide = DTensor.from_local(gradient.to_local().double(), gradient.device_mesh, gradient.placements, run_check=False)
    named_params[2] = (named_params[2][0], nn.Parameter(wide))
    named_params[2][1].grad = wide.detach()


def already_summed(named_params: list[tuple[str, Any]]) -> None:
    gradient: Any = named_params[1][1].grad
    placements = [Replicate() if placement.is_partial() else placement for placement in gradient.placements]
    named_params[1][1].grad = DTensor.from_local(gradient.to_local(), gradient.device_mesh, placements, run_check=False)


def integers(named_params: list[tuple[str, Any]]) -> None:
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.int32), requires_grad=False)
    parameter.grad = torch.zeros_like(parameter)
    named_params.append(("integers", parameter))


CHANGES: dict[str, Callable[[list[tuple[str, Any]]], None]] = {
    "": lambda named_params: None,
    "without the first": without_first,
    "without any": without_any,
    "another dtype": another_dtype,
    "summed already": already_summed,
    "integers": integers,
}


def error_for_norms() -> str:
    """Return the error for a DTensor of norms. Norms are no sums, although their placement is a subclass of Partial."""
    gradient = DTensor.from_local(torch.ones(2), mesh_of("row"), [Shard(0)], run_check=False)
    return error_message(lambda: uc.get_total_norm([torch.linalg.vector_norm(gradient)]))


def norm_beside_a_mesh_of_two() -> float:
    shards = [DTensor.from_local(torch.ones(2), DeviceMesh("cpu", [0, 1]), [Shard(0)], run_check=False)]
    params = [nn.Parameter(tensor) for tensor in (*shards, torch.zeros(2))]
    params[0].grad, params[1].grad = shards[0], torch.tensor([3.0, 4.0])
    uc.GradientClipByNorm(1.0).clip_(params)
    return float(params[1].grad.norm())
