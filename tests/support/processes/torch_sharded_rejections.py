"""Functions that processes of a `World` run: calls that one rank rejects, or that differ between ranks."""

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
from support.processes.torch_layout import parameter_with
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
    params = parameters(ARRAYS, "plain")
    ownership = raising if dist.get_rank() == 1 else "replicated"
    return uc.clip_grad_norm_(params, 1.0, p, process_group=dist.group.WORLD, ownership=ownership)


def by_dtype(p: float) -> Any:
    plain = torch.ones(3, dtype=torch.int32 if dist.get_rank() == 1 else torch.float32)
    return uc.get_total_norm([parameters(ARRAYS[:1], "FSDP")[0].grad, plain], p)


def by_configuration(p: float) -> Any:
    params = parameters(ARRAYS[:1], "FSDP")
    plain = nn.Parameter(torch.zeros(2, dtype=torch.complex64 if dist.get_rank() == 1 else torch.float32))
    plain.grad = torch.ones_like(plain)
    groups = [{"name": "one", "rule": "value", "threshold": 1.0, "include": ["plain"]}]
    config = ClipConfig(rule="global_norm", threshold=1.0, norm_type=p, family="paddle", groups=groups)
    return config.clipper(ownership="replicated").clip_({"cut": params[0], "plain": plain})


REJECTIONS: dict[str, Callable[[float], Any]] = {
    "ownership": by_ownership, "dtype": by_dtype, "configuration": by_configuration,
}  # fmt: skip


def hidden_gradient() -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.main_grad = torch.ones(2)  # type: ignore[attr-defined]
    return parameter


def overlapping_parameters() -> list[nn.Parameter]:
    memory = torch.ones(6)
    params = [nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))]
    params[0].grad, params[1].grad = memory[:4], memory[2:]
    return params


def is_clipped(parameter: Any) -> bool:
    raise LookupError("this parameter is not in the table")


WORLD = {"ownership": "replicated"}

WRONG_ARGUMENTS: dict[str, Callable[[list[Any], bool], Any]] = {
    "max_norm": lambda params, wrong: uc.clip_grad_norm_(iter(params), -1.0 if wrong else 1.0, **WORLD),
    "norm_type": lambda params, wrong: uc.clip_grad_norm_(params, 1.0, 0.0 if wrong else 2.0, **WORLD),
    "max_norm and an entry": lambda params, wrong: uc.clip_grad_norm_(
        [*params, "x"] if wrong else params, math.nan if wrong else 1.0, **WORLD
    ),
    "check_numel": lambda params, wrong: uc.clip_grad_norm_(params, 1.0, check_numel="4" if wrong else None, **WORLD),
    "ownership": lambda params, wrong: uc.clip_by_global_norm(
        [parameter.grad for parameter in params], 1.0, ownership="shared" if wrong else "replicated"
    )[1],
    "order": lambda params, wrong: uc.get_total_norm(
        [parameter.grad for parameter in params], -1 if wrong else 2, **WORLD
    ),
    "clip_norm": lambda params, wrong: uc.clip_by_global_norm(
        [parameter.grad for parameter in params], math.nan if wrong else 1.0, **WORLD
    )[1],
    "entry": lambda params, wrong: uc.clip_grad_norm_([*params, "x"] if wrong else params, 1.0, **WORLD),
    "the first entry": lambda params, wrong: uc.clip_grad_norm_(["x", *params] if wrong else params, 1.0),
    "an entry of a dict": lambda params, wrong: uc.clip_grad_norm_(
        {**({"x": "x"} if wrong else {}), **{str(at): parameter for at, parameter in enumerate(params)}}, 1.0
    ),
    "gradient": lambda params, wrong: uc.global_norm(
        [*(parameter.grad for parameter in params), *["x"] * wrong], **WORLD
    ),
    "main_grad": lambda params, wrong: uc.clip_grad_norm_([*params, *[hidden_gradient()] * wrong], 1.0, **WORLD),
    "overlap": lambda params, wrong: uc.clip_grad_norm_(
        [*params, *(overlapping_parameters() if wrong else [])], 1.0, **WORLD
    ),
    "need_clip": lambda params, wrong: uc.GradientClipByGlobalNorm(
        1.0, need_clip=is_clipped if wrong else None, **WORLD
    ).clip_(params),
    "an entry, norms of each": lambda params, wrong: uc.GradientClipByNorm(1.0).clip_(
        [*params, "x"] if wrong else params
    ),
    "overlap, norms of each": lambda params, wrong: uc.GradientClipByNorm(1.0).clip_(
        [*params, *(overlapping_parameters() if wrong else [])]
    ),
    "need_clip, norms of each": lambda params, wrong: uc.GradientClipByNorm(
        1.0, need_clip=is_clipped if wrong else None
    ).clip_(params),
    "a threshold for one gradient": lambda params, wrong: uc.clip_by_norm(params[0].grad, math.nan if wrong else 1.0),
    "one gradient": lambda params, wrong: uc.clip_by_norm(
        params[0].grad.to(torch.int32) if wrong else params[0].grad, 1.0
    ),
}


def reject_argument(argument: str) -> tuple[Attempt, Attempt]:
    params = parameters(ARRAYS, "FSDP")
    first = attempt(lambda: WRONG_ARGUMENTS[argument](params, dist.get_rank() == 1))
    return first, attempt(lambda: uc.clip_grad_norm_(params, math.inf))


def reject_in_one_copy(keywords: dict[str, str]) -> list[Attempt]:
    params = parameters(ARRAYS, "HSDP")
    group = {name: getattr(dist.group, value) for name, value in keywords.items()}
    thresholds = (math.nan if dist.get_rank() == 1 else 1.0, 1.0)
    return [
        attempt(lambda threshold=threshold: uc.clip_grad_norm_(params, threshold, **group)) for threshold in thresholds
    ]


def reject_beside_other_parameters(case: str) -> list[Attempt]:
    """Return the errors of two calls. Rank 1 rejects the first. Some parameters need no collective, or are left out."""
    other_params = parameters(ARRAYS[1:], "FSDP" if case == "left out" else "replicated")
    for parameter in other_params:
        parameter.need_clip = case != "left out"
    params: list[Any] = [*other_params, *parameters(ARRAYS, "HSDP")]
    wrong = [*other_params, "x", *params[len(other_params) :]] if dist.get_rank() == 1 else params
    return [attempt(lambda entries=entries: uc.clip_grad_norm_(entries, math.inf)) for entries in (wrong, params)]


def reject(kind: str, p: float) -> tuple[Attempt, Attempt]:
    return attempt(lambda: REJECTIONS[kind](p)), attempt(lambda: uc.clip_grad_norm_(parameters(ARRAYS, "FSDP"), 1.0))


def reject_alone() -> list[Attempt]:
    """Make invalid calls without collectives on the first rank alone. They must not wait for another rank."""
    if dist.get_rank():
        return []
    sharded, integers = parameters(ARRAYS[:1], "FSDP")[0], torch.ones(2, dtype=torch.int32)
    return [
        attempt(lambda: uc.clip_by_global_norm([sharded.grad, integers], 1.0, use_norm=2.0)[1]),
        attempt(lambda: uc.clip_grads_with_norm_([sharded], -1.0, 2.0)),
        attempt(lambda: uc.clip_by_value(integers.bool(), -1.0, 1.0)),
        attempt(lambda: uc.get_total_norm([torch.ones(2), integers])),
        attempt(lambda: uc.clip_grad_norm_([nn.Parameter(torch.zeros(2))], -1.0)),
        attempt(lambda: uc.clip_by_global_norm([sharded.grad], -1.0, use_norm=2.0)[1]),
        attempt(lambda: uc.clip_grad_norm_([sharded], -1.0, process_group=None)),
    ]


# -- ranks that are not at the same call


def clip_out_of_step() -> list[Attempt]:
    """Fail in a collective on one rank. Then make two calls in this group, and one in a new group."""
    group, fresh = dist.new_group(), dist.new_group()
    params = parameters(ARRAYS, "FSDP")
    if dist.get_rank() == 1:
        with mock.patch.object(TorchGroup, "all_reduce_sum", side_effect=ConnectionError("the network is down")):
            assert "ConnectionError" in attempt(lambda: uc.clip_grad_norm_(params, 1.0, process_group=group)).error
    return [
        attempt(lambda process_group=process_group: uc.clip_grad_norm_(params, 1.0, process_group=process_group))
        for process_group in (group, group, fresh)
    ]


def clip_at_steps(steps: Sequence[int]) -> Attempt:
    clip = ClipConfig(rule="global_norm", threshold=1.0, family="paddle").clipper()
    return attempt(lambda: clip.clip_(parameters(ARRAYS, "FSDP"), step=steps[dist.get_rank()]))


def clip_in_order(names: Sequence[str], by_own_norms: bool, order: Sequence[int]) -> Attempt:
    params: Any = parameters([ARRAYS[position] for position in order], "FSDP")
    params = list(zip(names, params, strict=True)) if names else params
    if dist.get_rank() == 1:
        params.reverse()
    clip = uc.GradientClipByNorm(1.0) if by_own_norms else uc.GradientClipByGlobalNorm(1.0)
    return attempt(lambda: clip.clip_(params) or 0.0)


def clip_in_order_of_groups() -> tuple[Attempt, list[Any]]:
    """Clip by own norms over two process groups with the same ranks. Rank 1 lists the gradients in another order."""
    groups = [dist.new_group(timeout=timedelta(seconds=SHORT)) for _ in range(2)]
    meshes = [DeviceMesh.from_group(group, "cpu") for group in groups]
    gradients = [
        distributed(np.full(4, number + 3, np.float32), mesh, [Shard(0)]) for number, mesh in enumerate(meshes)
    ]
    params = list(map(parameter_with, gradients))
    order = params[::-1] if dist.get_rank() == 1 else params
    result = attempt(lambda: uc.GradientClipByNorm(1.0).clip_(order) or 0.0)
    return result, [parameter.grad.to_local().tolist() for parameter in params]  # type: ignore[union-attr]


def call_without_a_gradient(function: str) -> Attempt:
    gradients = [parameter.grad for parameter in parameters(ARRAYS, "FSDP")]
    if dist.get_rank() == 1:
        gradients[1] = None
    return attempt(lambda: getattr(uc, function)(gradients))


def differ_on_two_dimensions() -> Attempt:
    gradient = distributed(np.ones((4, 4), np.float32), mesh_of("rows"), [Shard(0), Shard(1)])
    return attempt(lambda: uc.clip_by_norm(gradient, 1.0 + (dist.get_rank() == 0)).full_tensor().sum())


def clip_with_other_placements() -> Attempt:
    placements = [Shard(0) if dist.get_rank() else Replicate()]
    gradient = distributed(np.ones(4, np.float32), mesh_of("row"), placements)
    parameter = nn.Parameter(gradient.detach().clone())
    parameter.grad = gradient
    return attempt(lambda: uc.clip_grad_norm_([parameter], math.inf, process_group=dist.group.WORLD))


def reject_on_two_dimensions() -> Attempt:
    gradient = distributed(np.ones((4, 4), np.float32), mesh_of("rows"), [Shard(0), Shard(1)])
    return attempt(
        lambda: uc.clip_by_norm(gradient.int() if dist.get_rank() == 0 else gradient, 1.0).full_tensor().sum()
    )


def clip_without_gradients(check: bool) -> Attempt:
    params = parameters(ARRAYS, "FSDP")
    for parameter in params if dist.get_rank() == 1 else []:
        parameter.grad = None
    return attempt(lambda: uc.clip_grad_norm_(params, 1.0, check_numel=check))
