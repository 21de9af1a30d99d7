"""Functions that processes of a `World` run: clips that compare the ranks' copies of gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from support.processes.torch_layout import parameter_with
from support.processes.torch_sharded import mesh_of, record_collectives
from support.processes.worlds import error_message
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import unified_clip.torch as uc
from unified_clip import ClipConfig
from unified_clip.ownership import mesh_ownership

DRIFTED = "second.weight"


class Case(NamedTuple):
    mesh: Callable[[DeviceMesh], DeviceMesh | None]
    placements: Sequence[Any]
    keywords: Callable[[DeviceMesh], dict[str, Any]]
    copies: tuple[int, ...]
    """The dimensions of the mesh along which ranks have copies."""


def no_keywords(mesh: DeviceMesh) -> dict[str, Any]:
    return {}


def mesh_owned(**options: Any) -> Callable[[DeviceMesh], dict[str, Any]]:
    return lambda mesh: {"ownership": mesh_ownership(mesh, **options)}


def declared(ownership: Callable[[DeviceMesh], Any]) -> Callable[[DeviceMesh], dict[str, Any]]:
    return lambda mesh: {"process_group": dist.group.WORLD, "ownership": ownership(mesh)}


CASES: dict[str, Case] = {
    "HSDP": Case(lambda mesh: mesh, [Replicate(), Shard(0)], no_keywords, (0,)),
    "all Replicate": Case(lambda mesh: mesh, [Replicate(), Replicate()], no_keywords, (0, 1)),
    "terms of a sum": Case(lambda mesh: mesh, [Partial(), Replicate()], no_keywords, (1,)),
    "shards": Case(lambda mesh: mesh, [Shard(0), Shard(1)], no_keywords, ()),
    "beside tensor parallel": Case(lambda mesh: mesh["dp"], [Shard(0)], mesh_owned(), (1,)),
    "declared copies of shards": Case(lambda mesh: mesh["dp"], [Shard(0)], declared(lambda mesh: "replicated"), (1,)),
    "declared copies of copies": Case(
        lambda mesh: mesh["dp"], [Replicate()], declared(lambda mesh: "replicated"), (0, 1)
    ),
    "copies beside tensor parallel": Case(lambda mesh: mesh["dp"], [Replicate()], mesh_owned(), (0, 1)),
    "copies of stages": Case(lambda mesh: mesh["tp"], [Replicate()], mesh_owned(distinct="dp"), (1,)),
    "stages": Case(lambda mesh: mesh["tp"], [Shard(0)], mesh_owned(distinct="dp"), ()),
    "plain copies": Case(lambda mesh: None, (), declared(lambda mesh: "replicated"), (0, 1)),
    "plain copies of stages": Case(lambda mesh: None, (), declared(lambda mesh: mesh_ownership(mesh, "dp")), (1,)),
    "plain shards": Case(lambda mesh: None, (), declared(lambda mesh: "distinct"), ()),
    "patterns": Case(lambda mesh: None, (), declared(lambda mesh: {"*.weight": "replicated"}), (0, 1)),
}


class CheckedClip(NamedTuple):
    norm: float
    error: str
    unchanged: bool
    collectives: int


@functools.cache
def rows() -> DeviceMesh:
    return mesh_of("rows")


def copies_of(case: str, rank: int) -> list[int]:
    ranks, place = np.arange(4).reshape(2, 2), divmod(rank, 2)
    along = tuple(slice(None) if dim in CASES[case].copies else place[dim] for dim in range(2))
    return [int(number) for number in ranks[along].ravel()]


def clip_and_check(case: str, drifted: int | None, p: float = 2.0, check: bool = True, **options: Any) -> CheckedClip:
    """Clip two gradients. The second one differs in the last bit of an element on rank `drifted`."""
    mesh, rank = rows(), dist.get_rank()
    submesh_of, placements, keywords, _ = CASES[case]
    named, locals_ = [], []
    for number, name in enumerate(("first.weight", DRIFTED)):
        local = torch.arange(6, dtype=torch.float32).reshape(3, 2) + 100 * copies_of(case, rank)[0] + number
        if number and rank == drifted:
            local[1, 1] = torch.nextafter(local[1, 1], torch.tensor(math.inf))
        submesh = submesh_of(mesh)
        gradient = local if submesh is None else DTensor.from_local(local, submesh, placements, run_check=False)
        named.append((name, parameter_with(gradient)))
        locals_.append(local)
    before, error, norm = [local.clone() for local in locals_], "", math.nan
    with record_collectives() as calls:
        try:
            norm = uc.clip_grad_norm_(named, 1.0, p, **{"check_replicas": check, **keywords(mesh), **options}).item()
        except ValueError as rejection:
            error = str(rejection)
    return CheckedClip(norm, error, all(map(torch.equal, locals_, before)), len(calls))


def reject_by_a_configuration(rejecting: int) -> str:
    kind = torch.int32 if dist.get_rank() == rejecting else torch.float32
    params = [nn.Parameter(torch.zeros(2, dtype=dtype), requires_grad=False) for dtype in (torch.float32, kind)]
    shard = DTensor.from_local(torch.ones(2), rows(), [Replicate(), Shard(0)], run_check=False)
    params[0].grad, params[1].grad = torch.ones(2), torch.ones_like(params[1])
    params.append(parameter_with(shard))
    return error_message(lambda: CONFIG.clipper(check_replicas=True).clip_(params))


def error_with(call: Callable[[nn.Parameter], Any], gradient: torch.Tensor) -> str:
    parameter = nn.Parameter(torch.zeros(gradient.shape))
    parameter.grad = gradient
    return error_message(lambda: call(parameter))


def step_with_config(parameter: nn.Parameter, **keywords: Any) -> None:
    optimizer = torch.optim.SGD([parameter], 0.1)
    with CONFIG.attach_to(optimizer, **keywords):
        optimizer.step()


CONFIG = ClipConfig(rule="global_norm", threshold=1.0, family="pytorch")

CALLS: dict[str, Callable[..., Any]] = {
    "clip_grad_norm_": lambda parameter, **keywords: uc.clip_grad_norm_(parameter, 1.0, **keywords),
    "get_total_norm": lambda parameter, **keywords: uc.get_total_norm([parameter.grad], **keywords),
    "global_norm": lambda parameter, **keywords: uc.global_norm([parameter.grad], **keywords),
    "clip_by_global_norm": lambda parameter, **keywords: uc.clip_by_global_norm([parameter.grad], 1.0, **keywords),
    "GradientClipByGlobalNorm": lambda parameter, **keywords: uc.GradientClipByGlobalNorm(1.0, **keywords)(
        [(parameter, parameter.grad)]
    ),
    "clipper": lambda parameter, **keywords: CONFIG.clipper(**keywords).clip_([parameter]),
    "attach_to": step_with_config,
}


def error_of(name: str, has_drifted: bool) -> str:
    keywords = {"process_group": dist.group.WORLD, "ownership": "replicated", "check_replicas": True}
    gradient = torch.ones(2) + (has_drifted and dist.get_rank() == 3)
    return error_with(functools.partial(CALLS[name], **keywords), gradient)


def sparse_gradient(shift: int) -> torch.Tensor:
    """Return a sparse gradient with one row. With `shift`, the last rank has another row."""
    row = 1 + shift * (dist.get_rank() == 3)
    return torch.sparse_coo_tensor([[row]], torch.ones(1, 3), (4, 3), check_invariants=True)


def sparse_copies(shift: int) -> str:
    keywords = {"process_group": dist.group.WORLD, "ownership": "replicated", "check_replicas": True}
    return error_with(functools.partial(CALLS["clip_grad_norm_"], **keywords), sparse_gradient(shift))


def sparse_beside_a_mesh(shift: int) -> str:
    shard = DTensor.from_local(torch.ones(2), rows(), [Replicate(), Shard(0)], run_check=False)
    beside = parameter_with(shard)
    return error_with(lambda parameter: uc.clip_grad_norm_([beside, parameter], 1.0), sparse_gradient(shift))


def message_of(**keywords: Any) -> str:
    parameter = parameter_with(torch.ones(2))
    return error_message(lambda: uc.clip_grad_norm_([parameter], 1.0, check_replicas=True, **keywords))


def error_by_a_function() -> str:
    return message_of(process_group=dist.group.WORLD, ownership=is_first_rank)


def is_first_rank(parameter: Any) -> bool:
    return dist.get_rank() == 0


def error_within_a_copy() -> str:
    return clip_and_check("HSDP", None, process_group=rows()["tp"]).error


def error_without_a_mesh() -> str:
    return message_of()


def error_of_this_process() -> str:
    return message_of(process_group=None)
