"""Functions that processes of a `World` run: calls that are rejected, or whose result depends on another process."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from support.processes.torch_layout import parameter_with
from support.processes.torch_sharded import distributed, mesh_of, parameters
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import unified_clip.torch as uc
from unified_clip import ClipConfig
from unified_clip.ownership import mesh_ownership

Parameters = list[nn.Parameter]

ARRAYS = [np.arange(1, 8, dtype=np.float32), np.full((5, 3), 2, np.float32), np.ones((1, 2), np.float32)]

NUMEL = sum(array.size for array in ARRAYS)

PATIENCE = 3


class Outcome(NamedTuple):
    norm: float | None
    error: str
    """The exception's type, its message and its notes. Empty without an exception."""

    unchanged: bool
    local_gradients: list[np.ndarray]
    seconds: float


def run_case(case: str) -> Outcome:
    norm, error = None, ""
    prepare, call = CASES[case]
    params = prepare(parameters(ARRAYS, "FSDP"))
    before, start = local_gradients(params), time.monotonic()
    try:
        norm = call(params, dist.get_rank()).item()
    except Exception as caught:
        error = "\n".join([f"{type(caught).__name__}: {caught}", *getattr(caught, "__notes__", [])])
    unchanged = [array.tobytes() for array in local_gradients(params)] == [array.tobytes() for array in before]
    return Outcome(norm, error, unchanged, before, time.monotonic() - start)


def local_gradients(params: Parameters) -> list[np.ndarray]:
    gradients: list[Any] = [parameter.grad.detach() for parameter in params if parameter.grad is not None]
    return [
        (gradient.to_local() if isinstance(gradient, DTensor) else gradient).numpy().copy() for gradient in gradients
    ]


def gradients_of(params: Parameters) -> list[Any]:
    return [parameter.grad for parameter in params]


# -- gradients

Prepare = Callable[[Parameters], Parameters]


def as_they_are(params: Parameters) -> Parameters:
    return params


def with_value(value: float, rank: int, params: Parameters) -> Parameters:
    if dist.get_rank() == rank:
        gradient: Any = params[1].grad
        gradient.to_local()[0, 0] = value
    return params


def without_gradients(rank: int, params: Parameters) -> Parameters:
    if dist.get_rank() == rank:
        for parameter in params:
            parameter.grad = None
    return params


def on_some(params: Parameters) -> Parameters:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("pp", "dp"))["dp"]
    return [parameter_with(distributed(array, mesh, [Shard(0)])) for array in ARRAYS]


def copies_on_some(params: Parameters) -> Parameters:
    """Put copies on the meshes of half of the processes. The first process of a mesh would count them."""
    return [parameter_with(distributed(array, rows()["tp"], [Replicate()])) for array in ARRAYS]


def on_the_first_two(params: Parameters) -> Parameters:
    mesh = DeviceMesh("cpu", [0, 1])
    gradient = DTensor.from_local(torch.ones(2 * (dist.get_rank() < 2)), mesh, [Shard(0)], run_check=False)
    return [parameter_with(gradient)]


@functools.cache
def mesh_of_each() -> list[DeviceMesh]:
    return [DeviceMesh("cpu", [rank]) for rank in range(dist.get_world_size())]


def on_one_each(params: Parameters) -> Parameters:
    parameters = []
    for rank, mesh in enumerate(mesh_of_each()):
        gradient = DTensor.from_local(torch.ones(2 * (dist.get_rank() == rank)), mesh, [Shard(0)], run_check=False)
        parameters.append(parameter_with(gradient))
    return parameters


def on_some_beside_all(params: Parameters) -> Parameters:
    return on_some(params) + params


def plain(params: Parameters) -> Parameters:
    return parameters(ARRAYS, "plain")


def zeros(params: Parameters) -> Parameters:
    return parameters([np.zeros(3, np.float32)], "plain")


def plain_beside_some(params: Parameters) -> Parameters:
    """Put plain parameters beside parameters on meshes. Gradients on these meshes would be rejected first, so there are
    none."""
    on_meshes = on_some(params)
    for parameter in on_meshes:
        parameter.grad = None
    return on_meshes + plain(params)


def plain_beside_the_first_two(params: Parameters) -> Parameters:
    on_mesh = on_the_first_two(params)
    on_mesh[0].grad = None
    return on_mesh + plain(params)


def of_maxima(params: Parameters) -> Parameters:
    gradient, parameter = (
        DTensor.from_local(torch.ones(3), mesh_of("row"), [Partial("max")], run_check=False) for _ in range(2)
    )
    parameter_of_maxima = nn.Parameter(parameter)
    parameter_of_maxima.grad = gradient
    return [parameter_of_maxima]


# -- groups


@functools.cache
def impatient_group() -> Any:
    return dist.new_group(timeout=timedelta(seconds=PATIENCE))


@functools.cache
def group_without_the_first() -> Any:
    return dist.new_group(list(range(1, dist.get_world_size())))


@functools.cache
def group_of_the_first() -> Any:
    return dist.new_group([0])


@functools.cache
def rows() -> DeviceMesh:
    return init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))


@functools.cache
def mesh_of_the_first() -> DeviceMesh:
    return DeviceMesh("cpu", [0])


# -- calls

Call = Callable[[Parameters, int], Any]


def clip(**arguments: Any) -> Call:
    return lambda params, rank: uc.clip_grad_norm_(params, **{"max_norm": 1.0, **arguments})


def norm_with_derivatives(norm: Callable[[list[Any]], Any]) -> Call:
    return lambda params, rank: norm(
        [parameter.grad.requires_grad_() for parameter in params if parameter.grad is not None]
    )


def clip_with_other_arguments(**arguments: Any) -> Call:
    return lambda params, rank: clip(**arguments if rank == 0 else {})(params, rank)


def clip_by_config(first: dict[str, Any], other_ranks: dict[str, Any], details: bool = False) -> Call:
    def call(params: Parameters, rank: int) -> Any:
        settings = {"rule": "global_norm", "threshold": 1.0, "family": "paddle", **(other_ranks if rank else first)}
        return ClipConfig(**settings).clipper(details=details and rank == 0).clip_(params)

    return call


def clip_by_name(first: str, other_ranks: str, **declared: Any) -> Call:
    def call(params: Parameters, rank: int) -> Any:
        config = ClipConfig(rule="global_norm", threshold=1.0, include=[other_ranks if rank else first])
        return config.clipper(**declared).clip_(dict(zip("abc", params, strict=True)))

    return call


def clip_param_grads(name: str, gradient: Callable[[DTensor], Any]) -> Call:
    def call(params: Parameters, rank: int) -> Any:
        return getattr(uc, name)(1.0)([(parameter, gradient(parameter.grad)) for parameter in params])[0][1].sum()  # type: ignore[arg-type]

    return call


def clip_by_own_norms(**options: Any) -> Call:
    return lambda params, rank: (
        ClipConfig(rule="norm", threshold=1.0)
        .clipper(**{name: value() if callable(value) else value for name, value in options.items()})
        .clip_(params)
    )


def beside_plain(params: Parameters) -> Parameters:
    return params[:2] + plain(params)[2:]


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "other numbers": lambda gradient: gradient + 1,
    "the last bit": lambda gradient: gradient.nextafter(torch.tensor(math.inf)),
    "another order": lambda gradient: gradient.flip(0),
    "negated": torch.neg,
    "NaN": lambda gradient: gradient * math.nan,
}


def beside_unequal(change: Callable[[torch.Tensor], torch.Tensor], params: Parameters) -> Parameters:
    last = parameter_with(torch.tensor([3.0, 4.0, 5.0, 6.0]))
    if dist.get_rank() == 1:
        last.grad = change(last.grad)
    return [*params[:2], last]


def plain_alone(params: Parameters) -> Parameters:
    last = nn.Parameter(torch.zeros(2))
    last.grad = torch.tensor([3.0, 4.0]) if dist.get_rank() == 0 else None
    return [*params[:2], last]


def clip_by_class(first: str, other_ranks: str) -> Call:
    def call(params: Parameters, rank: int) -> Any:
        getattr(uc, other_ranks if rank else first)(1.0).clip_(params)
        return torch.zeros(())

    return call


def clip_in_group(group: Callable[[], Any], **arguments: Any) -> Call:
    return lambda params, rank: clip(process_group=group(), **arguments)(params, rank)


def clip_in_one_of(of_first: Callable[[], Any], of_other_ranks: Callable[[], Any], call_in: Any = None) -> Call:
    def call(params: Parameters, rank: int) -> Any:
        groups = [of_first(), of_other_ranks()]  # all ranks have to create both, in the same order
        group = groups[rank > 0]
        return call_in(params, group) if call_in else clip(process_group=group)(params, rank)

    return call


def clip_with_mesh_ownership(group: Callable[[], Any], mesh: Callable[[], DeviceMesh]) -> Call:
    return lambda params, rank: clip(process_group=group(), ownership=mesh_ownership(mesh()))(params, rank)


def clip_late(params: Parameters, rank: int) -> Any:
    group = impatient_group()
    if rank == 0:
        time.sleep(PATIENCE + 1)
        return torch.zeros(())
    return clip(process_group=group)(params, rank)


def end_before_the_clip(params: Parameters, rank: int) -> Any:
    group = impatient_group()
    if rank == 0:
        os._exit(3)
    return clip(process_group=group)(params, rank)


nan, inf = math.nan, math.inf

CASES: dict[str, tuple[Prepare, Call]] = {
    **{
        f"{value} and p = {p}": (functools.partial(with_value, value, 1), clip(norm_type=p))
        for value in (nan, inf)
        for p in (1.0, 2.0, 3.0, inf)
    },
    **{
        f"no gradients on rank {rank} and p = {p}": (functools.partial(without_gradients, rank), clip(norm_type=p))
        for rank in (0, 1)
        for p in (1.0, 2.0, inf)
    },
    "all raise if not finite": (functools.partial(with_value, nan, 1), clip(error_if_nonfinite=True)),
    "raise if not finite, p = inf": (
        functools.partial(with_value, inf, 1),
        clip(error_if_nonfinite=True, norm_type=inf),
    ),
    "other thresholds": (as_they_are, clip_with_other_arguments(max_norm=0.5)),
    "other thresholds, p = inf": (
        as_they_are,
        lambda params, rank: uc.clip_grad_norm_(params, 1.0 + rank, inf),
    ),
    "fewer parameters": (as_they_are, lambda params, rank: clip()(params[rank == 0 :], rank)),
    "orders 1 and 2": (as_they_are, clip_with_other_arguments(norm_type=1.0)),
    "orders inf and 2": (as_they_are, clip_with_other_arguments(norm_type=inf)),
    "orders 3 and 2": (as_they_are, clip_with_other_arguments(norm_type=3.0)),
    "one raises": (as_they_are, clip_with_other_arguments(error_if_nonfinite=True)),
    "one measures": (
        as_they_are,
        lambda params, rank: clip()(params, rank) if rank else uc.get_total_norm(gradients_of(params)),
    ),
    "one checks": (as_they_are, clip_with_other_arguments(check_numel=True)),
    "one declares ownership": (as_they_are, clip_with_other_arguments(ownership="distinct")),
    "thresholds of single gradients": (
        as_they_are,
        lambda params, rank: uc.GradientClipByNorm(1.0 + rank).clip_(params) or torch.zeros(()),
    ),
    "another name": (
        as_they_are,
        lambda params, rank: uc.GradientClipByGlobalNorm(1.0).clip_(params) if rank else clip()(params, rank),
    ),
    "norms of single gradients": (as_they_are, clip_by_class("GradientClipByNorm", "GradientClipByGlobalNorm")),
    "another rule of a configuration": (as_they_are, clip_by_config({"rule": "norm"}, {})),
    "another family of a configuration": (as_they_are, clip_by_config({"family": "pytorch"}, {})),
    "details": (as_they_are, clip_by_config({}, {}, details=True)),
    **{
        f"{value} if not finite": (functools.partial(with_value, nan, 1), clip_by_config({"nonfinite": value}, {}))
        for value in ("raise", "skip", "zero")
    },
    "others by name": (as_they_are, clip_by_name("a", "b")),
    "a plain one by name": (plain_alone, clip_by_name("c", "c", ownership="replicated")),
    "a copy without a gradient": (plain_alone, clip()),
    **{
        f"unequal copies, {kind}": (functools.partial(beside_unequal, change), clip())
        for kind, change in CHANGES.items()
    },
    "copies by their own norms, counted": (beside_plain, clip_by_own_norms(check_numel=True)),
    "copies by their own norms, in a group": (beside_plain, clip_by_own_norms(process_group=lambda: dist.group.WORLD)),
    "local shards in param_grads": (as_they_are, clip_param_grads("GradientClipByGlobalNorm", DTensor.to_local)),
    "local shards in param_grads, by their own norms": (
        as_they_are, clip_param_grads("GradientClipByNorm", DTensor.to_local)
    ),
    "complete gradients in param_grads": (
        as_they_are, clip_param_grads("GradientClipByGlobalNorm", DTensor.full_tensor)
    ),
    "late": (as_they_are, clip_late),
    "dying": (as_they_are, end_before_the_clip),
    "copies declared as distinct": (
        plain, clip_in_group(lambda: dist.group.WORLD, ownership="distinct", check_numel=True)
    ),
    "copies declared as distinct, unchecked": (plain, clip_in_group(lambda: dist.group.WORLD, ownership="distinct")),
    "copies declared as distinct, by a function": (
        plain, clip_in_group(lambda: dist.group.WORLD, ownership=lambda parameter: True, norm_type=1.0)
    ),
    "equal shards": (
        plain,
        clip_in_group(lambda: dist.group.WORLD, ownership="distinct", check_numel=2 * NUMEL),
    ),
    "distinct declared as copies": (
        on_some,
        clip_in_group(lambda: dist.group.WORLD, ownership="replicated", check_numel=2 * NUMEL),
    ),
    "all copies": (plain, clip_in_group(lambda: dist.group.WORLD, ownership=lambda parameter: False, check_numel=True)),
    "all copies, unchecked": (plain, clip_in_group(lambda: dist.group.WORLD, ownership=lambda parameter: False)),
    "all copies, unchecked, p = 3": (
        plain, clip_in_group(lambda: dist.group.WORLD, ownership=lambda parameter: False, norm_type=3.0)
    ),
    "zeros that one rank owns": (
        zeros, clip_in_group(lambda: dist.group.WORLD, ownership=lambda parameter: dist.get_rank() == 0)
    ),
    "a flag for a group": (as_they_are, clip(process_group=True)),
    "all copies, p = inf": (
        plain,
        clip_in_group(lambda: dist.group.WORLD, ownership=lambda parameter: False, check_numel=True, norm_type=inf),
    ),
    "some processes": (on_some, clip()),
    "some processes beside all": (on_some_beside_all, clip()),
    "some processes in a group": (on_some, clip_in_group(lambda: dist.group.WORLD)),
    "some processes, by a functional name": (
        on_some,
        lambda params, rank: uc.clip_by_global_norm(gradients_of(params), 1.0)[1],
    ),
    "some processes, with derivatives": (on_some, norm_with_derivatives(uc.get_total_norm)),
    "some processes, clipped with derivatives": (
        on_some,
        norm_with_derivatives(lambda tensors: uc.clip_by_global_norm(tensors, 1.0)[1]),
    ),
    "some processes, configured with derivatives": (
        on_some,
        norm_with_derivatives(ClipConfig(rule="global_norm", threshold=1.0, family="paddle").clipper()),
    ),
    "plain in a group": (plain, clip_in_group(lambda: dist.group.WORLD)),
    "plain beside some, in a group": (plain_beside_some, clip_in_group(lambda: dist.group.WORLD)),
    "plain beside the first two, in groups of two": (plain_beside_the_first_two, clip_in_group(lambda: rows()["tp"])),
    "plain, and ownership without a group": (plain, clip(ownership="replicated")),
    "another group": (as_they_are, clip_in_one_of(group_without_the_first, group_of_the_first)),
    "a group that is too small": (as_they_are, clip_in_one_of(group_of_the_first, group_without_the_first)),
    "a group that is too small for single gradients": (
        as_they_are,
        clip_in_one_of(
            group_of_the_first,
            group_without_the_first,
            lambda params, group: uc.GradientClipByNorm(1.0, process_group=group).clip_(params) or torch.zeros(()),
        ),
    ),
    "no group": (as_they_are, clip(process_group=None)),
    "a mesh of others": (plain, clip_in_group(mesh_of_the_first)),
    "a name for a group": (as_they_are, clip(process_group="world")),
    "a list for a group": (as_they_are, clip(process_group=[0, 1])),
    "a name for a group of single gradients": (
        as_they_are,
        lambda params, rank: uc.GradientClipByNorm(1.0, process_group="world").clip_(params) or torch.zeros(()),
    ),
    "copies on some processes, in a group": (copies_on_some, clip_in_group(lambda: dist.group.WORLD)),
    "on the first two, in a group": (on_the_first_two, clip_in_group(lambda: dist.group.WORLD)),
    "ownership on a wider mesh": (on_some, clip_with_mesh_ownership(lambda: rows()["tp"], rows)),
    "ownership on a narrower mesh": (
        on_some, clip_with_mesh_ownership(lambda: dist.group.WORLD, lambda: rows()["tp"])
    ),
    "ownership on a narrower mesh than all": (
        as_they_are, clip_with_mesh_ownership(lambda: "auto", lambda: rows()["tp"])
    ),
    "copies that one rank lacks": (on_one_each, clip_in_group(lambda: dist.group.WORLD, ownership="replicated")),
    "no answer": (plain, clip_in_group(lambda: dist.group.WORLD, ownership=lambda parameter: None)),
    "unknown ownership": (as_they_are, clip(ownership="owned")),
    "a float as the number of elements": (as_they_are, clip(check_numel=10.0)),
    "Partial placements that are no sums": (of_maxima, clip()),
}  # fmt: skip
