"""What processes of a `World` run: calls that one rank rejects, or that ranks make at different steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from support.processes.torch_sharded import distributed, mesh_of, parameters
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

import unified_clip.torch as uc
from unified_clip import ClipConfig
from unified_clip._backends.torch.process_group import TorchGroup

SHORT = 10
"""The timeout in seconds of process groups in which ranks may wait for each other."""

ARRAYS = [np.arange(1, 8, dtype=np.float32), np.full((5, 3), 2, np.float32), np.full(7, 3, np.float32)]


class Attempt(NamedTuple):
    error: str
    """The exception's type and its message; empty where there was none."""

    seconds: float
    norm: float | None


def attempt(call: Callable[[], Any]) -> Attempt:
    start = time.monotonic()
    try:
        norm = float(call())
    except Exception as error:
        return Attempt(f"{type(error).__name__}: {error}", time.monotonic() - start, None)
    return Attempt("", time.monotonic() - start, norm)


# -- one rank rejects the call


def raising(parameter: Any) -> bool:
    raise LookupError("this parameter is not in the table")


def by_ownership(p: float) -> Any:
    given = parameters(ARRAYS, "plain")
    ownership = raising if dist.get_rank() == 1 else "replicated"
    return uc.clip_grad_norm_(given, 1.0, p, process_group=dist.group.WORLD, ownership=ownership)


def by_dtype(p: float) -> Any:
    """A list of gradients, one of which is of integers on one rank."""
    plain = torch.ones(3, dtype=torch.int32 if dist.get_rank() == 1 else torch.float32)
    return uc.get_total_norm([parameters(ARRAYS[:1], "FSDP")[0].grad, plain], p)


def by_configuration(p: float) -> Any:
    """Clipping by value has no order to go by for complex gradients, which one rank has."""
    given = parameters(ARRAYS[:1], "FSDP")
    plain = nn.Parameter(torch.zeros(2, dtype=torch.complex64 if dist.get_rank() == 1 else torch.float32))
    plain.grad = torch.ones_like(plain)
    groups = [{"name": "one", "rule": "value", "threshold": 1.0, "include": ["plain"]}]
    config = ClipConfig(rule="global_norm", threshold=1.0, norm_type=p, family="paddle", groups=groups)
    return config.clipper(ownership="replicated").clip_({"cut": given[0], "plain": plain})


REJECTIONS: dict[str, Callable[[float], Any]] = {
    "ownership": by_ownership, "dtype": by_dtype, "configuration": by_configuration,
}  # fmt: skip


def hidden_gradient() -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.main_grad = torch.ones(2)  # type: ignore[attr-defined]
    return parameter


def overlapping() -> list[nn.Parameter]:
    memory = torch.ones(6)
    found = [nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))]
    found[0].grad, found[1].grad = memory[:4], memory[2:]
    return found


def is_clipped(parameter: Any) -> bool:
    raise LookupError("this parameter is not in the table")


WORLD = {"ownership": "replicated"}

BEFORE_THE_GRADIENTS: dict[str, Callable[[list[Any], bool], Any]] = {
    "max_norm": lambda given, wrong: uc.clip_grad_norm_(iter(given), -1.0 if wrong else 1.0, **WORLD),
    "norm_type": lambda given, wrong: uc.clip_grad_norm_(given, 1.0, 0.0 if wrong else 2.0, **WORLD),
    "max_norm and an entry": lambda given, wrong: uc.clip_grad_norm_(
        [*given, "x"] if wrong else given, math.nan if wrong else 1.0, **WORLD
    ),
    "check_numel": lambda given, wrong: uc.clip_grad_norm_(given, 1.0, check_numel="4" if wrong else None, **WORLD),
    "ownership": lambda given, wrong: uc.clip_by_global_norm(
        [each.grad for each in given], 1.0, ownership="shared" if wrong else "replicated"
    )[1],
    "order": lambda given, wrong: uc.get_total_norm([each.grad for each in given], -1 if wrong else 2, **WORLD),
    "clip_norm": lambda given, wrong: uc.clip_by_global_norm(
        [each.grad for each in given], math.nan if wrong else 1.0, **WORLD
    )[1],
    "entry": lambda given, wrong: uc.clip_grad_norm_([*given, "x"] if wrong else given, 1.0, **WORLD),
    "the first entry": lambda given, wrong: uc.clip_grad_norm_(["x", *given] if wrong else given, 1.0),
    "an entry of a dict": lambda given, wrong: uc.clip_grad_norm_(
        {**({"x": "x"} if wrong else {}), **{str(at): each for at, each in enumerate(given)}}, 1.0
    ),
    "gradient": lambda given, wrong: uc.global_norm([*(each.grad for each in given), *["x"] * wrong], **WORLD),
    "main_grad": lambda given, wrong: uc.clip_grad_norm_([*given, *[hidden_gradient()] * wrong], 1.0, **WORLD),
    "overlap": lambda given, wrong: uc.clip_grad_norm_([*given, *(overlapping() if wrong else [])], 1.0, **WORLD),
    "need_clip": lambda given, wrong: uc.GradientClipByGlobalNorm(
        1.0, need_clip=is_clipped if wrong else None, **WORLD
    ).clip_(given),
    "an entry, norms of each": lambda given, wrong: uc.GradientClipByNorm(1.0).clip_([*given, "x"] if wrong else given),
    "overlap, norms of each": lambda given, wrong: uc.GradientClipByNorm(1.0).clip_(
        [*given, *(overlapping() if wrong else [])]
    ),
    "need_clip, norms of each": lambda given, wrong: uc.GradientClipByNorm(
        1.0, need_clip=is_clipped if wrong else None
    ).clip_(given),
    "a threshold for one gradient": lambda given, wrong: uc.clip_by_norm(given[0].grad, math.nan if wrong else 1.0),
    "one gradient": lambda given, wrong: uc.clip_by_norm(
        given[0].grad.to(torch.int32) if wrong else given[0].grad, 1.0
    ),
}


def rejected_early(how: str) -> tuple[Attempt, Attempt]:
    """What a call raised that one rank rejects by its arguments, and the next one."""
    given = parameters(ARRAYS, "FSDP")
    first = attempt(lambda: BEFORE_THE_GRADIENTS[how](given, dist.get_rank() == 1))
    return first, attempt(lambda: uc.clip_grad_norm_(given, math.inf))


def rejected_in_one_copy(keywords: dict[str, str]) -> list[Attempt]:
    """What two calls of HSDP raised, of which rank 1 rejects the first."""
    given = parameters(ARRAYS, "HSDP")
    group = {name: getattr(dist.group, value) for name, value in keywords.items()}
    limits = (math.nan if dist.get_rank() == 1 else 1.0, 1.0)
    return [attempt(lambda limit=limit: uc.clip_grad_norm_(given, limit, **group)) for limit in limits]


def rejected_beside_others(case: str) -> list[Attempt]:
    """What two calls raised, of which rank 1 rejects the first. Some of the parameters need no other rank, or all."""
    others = parameters(ARRAYS[1:], "FSDP" if case == "left out" else "replicated")
    for parameter in others:
        parameter.need_clip = case != "left out"
    given: list[Any] = [*others, *parameters(ARRAYS, "HSDP")]
    wrong = [*others, "x", *given[len(others) :]] if dist.get_rank() == 1 else given
    return [attempt(lambda each=each: uc.clip_grad_norm_(each, math.inf)) for each in (wrong, given)]


def rejected(how: str, p: float) -> tuple[Attempt, Attempt]:
    """What the call raised, and the next one, which no rank rejects."""
    return attempt(lambda: REJECTIONS[how](p)), attempt(lambda: uc.clip_grad_norm_(parameters(ARRAYS, "FSDP"), 1.0))


def rejected_alone() -> list[Attempt]:
    """Calls that need no other rank, and so must not wait for one; of the first rank alone."""
    if dist.get_rank():
        return []
    cut, integers = parameters(ARRAYS[:1], "FSDP")[0], torch.ones(2, dtype=torch.int32)
    return [
        attempt(lambda: uc.clip_by_global_norm([cut.grad, integers], 1.0, use_norm=2.0)[1]),
        attempt(lambda: uc.clip_grads_with_norm_([cut], -1.0, 2.0)),
        attempt(lambda: uc.clip_by_value(integers.bool(), -1.0, 1.0)),
        attempt(lambda: uc.get_total_norm([torch.ones(2), integers])),
        attempt(lambda: uc.clip_grad_norm_([nn.Parameter(torch.zeros(2))], -1.0)),
        attempt(lambda: uc.clip_by_global_norm([cut.grad], -1.0, use_norm=2.0)[1]),
        attempt(lambda: uc.clip_grad_norm_([cut], -1.0, process_group=None)),
    ]


# -- ranks that are not at the same call


def out_of_step() -> list[Attempt]:
    """One rank's first call fails on its way, and is caught. Then come the others' first call, one more, and one in
    another group."""
    group, fresh = dist.new_group(), dist.new_group()
    given = parameters(ARRAYS, "FSDP")
    if dist.get_rank() == 1:
        with mock.patch.object(TorchGroup, "all_reduce_sum", side_effect=ConnectionError("the network is down")):
            assert "ConnectionError" in attempt(lambda: uc.clip_grad_norm_(given, 1.0, process_group=group)).error
    return [
        attempt(lambda each=each: uc.clip_grad_norm_(given, 1.0, process_group=each)) for each in (group, group, fresh)
    ]


def of_step(steps: Sequence[int]) -> Attempt:
    clip = ClipConfig(rule="global_norm", threshold=1.0, family="paddle").clipper()
    return attempt(lambda: clip.clip_(parameters(ARRAYS, "FSDP"), step=steps[dist.get_rank()]))


def in_order(names: Sequence[str], each: bool, order: Sequence[int]) -> Attempt:
    """One rank lists the parameters in another order."""
    given: Any = parameters([ARRAYS[at] for at in order], "FSDP")
    given = list(zip(names, given, strict=True)) if names else given
    if dist.get_rank() == 1:
        given.reverse()
    clip = uc.GradientClipByNorm(1.0) if each else uc.GradientClipByGlobalNorm(1.0)
    return attempt(lambda: clip.clip_(given) or 0.0)


def in_order_of_groups() -> tuple[Attempt, list[Any]]:
    """Norms of single gradients over two process groups with the same ranks. Rank 1 lists them in another order."""
    groups = [dist.new_group(timeout=timedelta(seconds=SHORT)) for _ in range(2)]
    meshes = [DeviceMesh.from_group(group, "cpu") for group in groups]
    given = [distributed(np.full(4, number + 3, np.float32), mesh, [Shard(0)]) for number, mesh in enumerate(meshes)]
    listed = [nn.Parameter(torch.zeros_like(gradient)) for gradient in given]
    for parameter, gradient in zip(listed, given, strict=True):
        parameter.grad = gradient
    order = listed[::-1] if dist.get_rank() == 1 else listed
    found = attempt(lambda: uc.GradientClipByNorm(1.0).clip_(order) or 0.0)
    return found, [parameter.grad.to_local().tolist() for parameter in listed]  # type: ignore[union-attr]


def without_one(function: str) -> Attempt:
    """One rank has a None in the place of a gradient, whose shape it does not know."""
    gradients = [each.grad for each in parameters(ARRAYS, "FSDP")]
    if dist.get_rank() == 1:
        gradients[1] = None
    return attempt(lambda: getattr(uc, function)(gradients))


def differing_on_two_dimensions() -> Attempt:
    """Thresholds of single gradients, one of which is another, along both dimensions of a mesh."""
    gradient = distributed(np.ones((4, 4), np.float32), mesh_of("rows"), [Shard(0), Shard(1)])
    return attempt(lambda: uc.clip_by_norm(gradient, 1.0 + (dist.get_rank() == 0)).full_tensor().sum())


def with_other_placements() -> Attempt:
    """A clip of a parameter that only rank 1 has as a shard."""
    placements = [Shard(0) if dist.get_rank() else Replicate()]
    gradient = distributed(np.ones(4, np.float32), mesh_of("row"), placements)
    parameter = nn.Parameter(gradient.detach().clone())
    parameter.grad = gradient
    return attempt(lambda: uc.clip_grad_norm_([parameter], math.inf, process_group=dist.group.WORLD))


def rejected_on_two_dimensions() -> Attempt:
    """A gradient along both dimensions of a mesh, whose dtype one rank rejects."""
    gradient = distributed(np.ones((4, 4), np.float32), mesh_of("rows"), [Shard(0), Shard(1)])
    return attempt(
        lambda: uc.clip_by_norm(gradient.int() if dist.get_rank() == 0 else gradient, 1.0).full_tensor().sum()
    )


def counted_without_gradients(check: bool) -> Attempt:
    given = parameters(ARRAYS, "FSDP")
    for parameter in given if dist.get_rank() == 1 else []:
        parameter.grad = None
    return attempt(lambda: uc.clip_grad_norm_(given, 1.0, check_numel=check))
