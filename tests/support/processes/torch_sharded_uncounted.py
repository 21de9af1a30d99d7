"""Functions that processes of a `World` run: clips of gradients that some ranks lack."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from support.processes.torch_layout import parameter_with
from support.processes.torch_sharded import mesh_of, record_collectives
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import unified_clip.torch as uc
from unified_clip.errors import ClipWarning
from unified_clip.ownership import mesh_ownership


class Layout(NamedTuple):
    mesh: Callable[[], DeviceMesh | None]
    placements: Sequence[Any]
    keywords: Callable[[], dict[str, Any]]
    first: Sequence[int]
    """The ranks with the first copy of the gradients of rank 3."""

    names: bool = True


def world(**keywords: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"process_group": dist.group.WORLD, **keywords}


def of_mesh(**options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"process_group": dist.group.WORLD, "ownership": mesh_ownership(mesh_of("rows"), **options)}


def by_pattern() -> dict[str, Any]:
    owners = {pattern: mesh_ownership(mesh_of("rows"), distinct="dp") for pattern in ("b", "*")}
    return {"process_group": dist.group.WORLD, "ownership": owners}


LAYOUTS = {
    "copies on all ranks": Layout(lambda: mesh_of("row"), [Replicate()], world(), [0]),
    "copies of shards": Layout(lambda: mesh_of("rows"), [Replicate(), Shard(0)], world(), [1]),
    "copies of shards, without names": Layout(lambda: mesh_of("rows"), [Replicate(), Shard(0)], world(), [1], False),
    "copies in a group": Layout(
        lambda: mesh_of("row"), [Replicate()], lambda: {"process_group": mesh_of("rows")["tp"]}, [2]
    ),
    "plain copies": Layout(lambda: None, (), world(ownership="replicated"), [0]),
    "plain copies of stages": Layout(lambda: None, (), of_mesh(distinct="dp"), [2]),
    "plain copies of stages, without names": Layout(lambda: None, (), of_mesh(distinct="dp"), [2], False),
    "patterns": Layout(lambda: None, (), by_pattern, [2]),
    "copies of a mesh": Layout(lambda: mesh_of("rows")["tp"], [Replicate()], world(ownership="replicated"), [0]),
    "copies of stages": Layout(lambda: mesh_of("rows")["tp"], [Replicate()], of_mesh(distinct="dp"), [2]),
    "copies of distinct stages": Layout(lambda: mesh_of("rows")["tp"], [Replicate()], world(ownership="distinct"), [2]),
    "beside tensor parallel": Layout(lambda: mesh_of("rows")["dp"], [Shard(0)], of_mesh(), [2]),
}


class Clipped(NamedTuple):
    norm: float
    error: str
    unchanged: bool
    collectives: int


def _parameter(local: torch.Tensor, mesh: DeviceMesh | None, placements: Sequence[Any]) -> nn.Parameter:
    return parameter_with(local if mesh is None else DTensor.from_local(local, mesh, placements, run_check=False))


def _clip(parameters: Sequence[Any], locals_: Sequence[torch.Tensor], p: float = 2.0, **keywords: Any) -> Clipped:
    before, norm, error = [local.clone() for local in locals_], math.nan, ""
    with record_collectives() as calls, warnings.catch_warnings():
        warnings.simplefilter("ignore", ClipWarning)  # different gradients of ones have the same sum
        try:
            norm = uc.clip_grad_norm_(parameters, 1.0, p, **keywords).item()
        except ValueError as raised:
            error = str(raised)
    return Clipped(norm, error, all(map(torch.equal, locals_, before)), len(calls))


def clip_without(name: str, lacking: Collection[int], p: float = 2.0, value: float = 1.0) -> Clipped:
    """Clip three gradients of ones. The second one is None on the ranks `lacking`, and has another value elsewhere."""
    layout = LAYOUTS[name]
    locals_ = [torch.ones(2, 2), torch.full((2, 2), value), torch.ones(2, 2)]
    parameters = [_parameter(local, layout.mesh(), layout.placements) for local in locals_]
    if dist.get_rank() in lacking:
        parameters[1].grad = None
    named = list(zip("abc", parameters, strict=True)) if layout.names else parameters
    return _clip(named, locals_, p, **layout.keywords())


# -- calls with a correct norm, although ranks differ


def clip_a_tied_parameter() -> Clipped:
    """Clip a tied parameter, which is None on the first rank of the last stage. The first stage counts it."""
    rank, locals_ = dist.get_rank(), [torch.ones(2), torch.ones(3)]
    parameters = [_parameter(local, None, ()) for local in locals_]
    tied = [parameters[1]] if rank >= 2 else []
    if rank == 2:
        parameters[1].grad = None
    owner = mesh_ownership(mesh_of("rows"), distinct="dp", also_elsewhere=tied)
    return _clip(parameters, locals_, process_group=dist.group.WORLD, ownership=owner)


def clip_distinct_beside_copies() -> Clipped:
    locals_ = [torch.ones(2), torch.ones(3), torch.ones(2)]
    parameters = [_parameter(local, None, ()) for local in locals_]
    if dist.get_rank() == 0:
        parameters[1].grad = None
    ownership = {"b": "distinct", "*": "replicated"}
    return _clip(list(zip("abc", parameters, strict=True)), locals_, **world(ownership=ownership)())


def clip_frozen(placement: Any) -> Clipped:
    locals_ = [torch.ones(2, 2), torch.ones(2, 2)]
    parameters = [_parameter(local, mesh_of("rows")["tp"], [placement]) for local in locals_]
    frozen = parameters[dist.get_rank() // 2]
    frozen.grad = None
    frozen.requires_grad_(False)
    return _clip(parameters, locals_, **of_mesh(distinct="dp")())


def clip_in_another_order() -> Clipped:
    locals_ = [torch.ones(2), torch.ones(3), torch.ones(2)]
    named = list(zip("abc", [_parameter(local, None, ()) for local in locals_], strict=True))
    order = -1 if dist.get_rank() % 2 else 1
    return _clip(named[::order], locals_, **of_mesh(distinct="dp")())


def clip_experts(has_tokens: Sequence[bool]) -> Clipped:
    """Clip experts on the ranks of a stage, with copies along "dp", beside a sharded layer.

    has_tokens: Whether the experts of each stage rank have a gradient.
    """
    locals_ = [torch.ones(2, 2), torch.ones(3)]
    shared = _parameter(locals_[0], mesh_of("row"), [Shard(0)])
    expert = _parameter(locals_[1], None, ())
    if not has_tokens[dist.get_rank() % 2]:
        expert.grad = None
    named = [("layer.weight", shared), ("experts.weight", expert)]
    return _clip(named, locals_, ownership={"*experts*": mesh_ownership(mesh_of("rows"), distinct="tp")})


def clip_by_function(ranks: Sequence[int], placement: Any) -> Clipped:
    locals_ = [torch.ones(2, 2), torch.ones(3)]
    parameters = [_parameter(local, mesh_of("rows")["tp"], [placement]) for local in locals_]
    return _clip(parameters, locals_, **world(ownership=lambda parameter: dist.get_rank() in ranks)())


def clip_partial_sums(lacking: Collection[int]) -> Clipped:
    """Clip copies of partial sums. Ranks 0 and 1 share one sum, and ranks 2 and 3 share a copy of it."""
    locals_ = [torch.ones(2), torch.ones(2)]
    parameters = [_parameter(local, mesh_of("rows"), [Replicate(), Partial()]) for local in locals_]
    if dist.get_rank() in lacking:
        parameters[0].grad = None
    return _clip(parameters, locals_, process_group=dist.group.WORLD)
