"""What processes of a `World` run: calls that cannot be answered, or whose answer lies with another process."""

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
from support.processes.torch_sharded import distributed, mesh_of, parameters
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import unified_clip.torch as uc
from unified_clip import ClipConfig
from unified_clip.ownership import mesh_ownership

Parameters = list[nn.Parameter]

ARRAYS = [np.arange(1, 8, dtype=np.float32), np.full((5, 3), 2, np.float32), np.ones((1, 2), np.float32)]


PATIENCE = 3


class Outcome(NamedTuple):
    norm: float | None
    error: str
    """The exception's type, its message and its notes; empty where there was none."""

    unchanged: bool
    """Whether all gradients have the bits they had."""

    held: list[np.ndarray]
    """What this process had of the gradients."""

    seconds: float


def outcome(case: str) -> Outcome:
    norm, error = None, ""
    prepare, call = CASES[case]
    given = prepare(parameters(ARRAYS, "FSDP"))
    before, start = held(given), time.monotonic()
    try:
        norm = call(given, dist.get_rank()).item()
    except Exception as caught:
        error = "\n".join([f"{type(caught).__name__}: {caught}", *getattr(caught, "__notes__", [])])
    unchanged = [each.tobytes() for each in held(given)] == [each.tobytes() for each in before]
    return Outcome(norm, error, unchanged, before, time.monotonic() - start)


def held(given: Parameters) -> list[np.ndarray]:
    gradients: list[Any] = [each.grad.detach() for each in given if each.grad is not None]
    return [(each.to_local() if isinstance(each, DTensor) else each).numpy().copy() for each in gradients]


# -- gradients

Prepare = Callable[[Parameters], Parameters]


def as_they_are(given: Parameters) -> Parameters:
    return given


def with_value(value: float, rank: int, given: Parameters) -> Parameters:
    """In the second gradient, on one process."""
    if dist.get_rank() == rank:
        gradient: Any = given[1].grad
        gradient.to_local()[0, 0] = value
    return given


def without_gradients(rank: int, given: Parameters) -> Parameters:
    if dist.get_rank() == rank:
        for each in given:
            each.grad = None
    return given


def on_some(given: Parameters) -> Parameters:
    """On a part of the processes: one mesh for every two of them, or for each."""
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("pp", "dp"))["dp"]
    found = []
    for array in ARRAYS:
        gradient = distributed(array, mesh, [Shard(0)])
        found.append(nn.Parameter(torch.zeros_like(gradient)))
        found[-1].grad = gradient
    return found


def copies_on_some(given: Parameters) -> Parameters:
    """As `on_some`, but every process of a mesh has all, of which the first would count."""
    mesh, found = rows()["tp"], []
    for array in ARRAYS:
        gradient = distributed(array, mesh, [Replicate()])
        found.append(nn.Parameter(torch.zeros_like(gradient)))
        found[-1].grad = gradient
    return found


def on_the_first_two(given: Parameters) -> Parameters:
    """On a mesh that some of the processes are not on, which have the DTensor all the same."""
    mesh = DeviceMesh("cpu", [0, 1])
    gradient = DTensor.from_local(torch.ones(2 * (dist.get_rank() < 2)), mesh, [Shard(0)], run_check=False)
    found = nn.Parameter(torch.zeros_like(gradient))
    found.grad = gradient
    return [found]


@functools.cache
def mesh_of_each() -> list[DeviceMesh]:
    return [DeviceMesh("cpu", [rank]) for rank in range(dist.get_world_size())]


def on_one_each(given: Parameters) -> Parameters:
    """Every process lists what each of them holds alone."""
    found = []
    for rank, mesh in enumerate(mesh_of_each()):
        gradient = DTensor.from_local(torch.ones(2 * (dist.get_rank() == rank)), mesh, [Shard(0)], run_check=False)
        found.append(nn.Parameter(torch.zeros_like(gradient)))
        found[-1].grad = gradient
    return found


def on_some_beside_all(given: Parameters) -> Parameters:
    return on_some(given) + given


def plain(given: Parameters) -> Parameters:
    return parameters(ARRAYS, "plain")


def zeros(given: Parameters) -> Parameters:
    return parameters([np.zeros(3, np.float32)], "plain")


def plain_beside_some(given: Parameters) -> Parameters:
    """Those on a part of the processes have no gradient, which would be refused first."""
    found = on_some(given)
    for each in found:
        each.grad = None
    return found + plain(given)


def plain_beside_the_first_two(given: Parameters) -> Parameters:
    """Those on a mesh of the first two processes have no gradient."""
    found = on_the_first_two(given)
    found[0].grad = None
    return found + plain(given)


def of_maxima(given: Parameters) -> Parameters:
    gradient, parameter = (
        DTensor.from_local(torch.ones(3), mesh_of("row"), [Partial("max")], run_check=False) for _ in range(2)
    )
    found = nn.Parameter(parameter)
    found.grad = gradient
    return [found]


# -- groups


@functools.cache
def impatient() -> Any:
    """A group that waits a short time only."""
    return dist.new_group(timeout=timedelta(seconds=PATIENCE))


@functools.cache
def of_the_last() -> Any:
    """All but the first process."""
    return dist.new_group(list(range(1, dist.get_world_size())))


@functools.cache
def of_the_first() -> Any:
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
    return lambda given, rank: uc.clip_grad_norm_(given, **{"max_norm": 1.0, **arguments})


def with_derivatives(norm: Callable[[list[Any]], Any]) -> Call:
    return lambda given, rank: norm([each.grad.requires_grad_() for each in given if each.grad is not None])


def one_differs(**arguments: Any) -> Call:
    """The first process passes something else."""
    return lambda given, rank: clip(**arguments if rank == 0 else {})(given, rank)


def configured(first: dict[str, Any], others: dict[str, Any], details: bool = False) -> Call:
    """By configurations; with `details`, which the first process alone asks for."""

    def call(given: Parameters, rank: int) -> Any:
        settings = {"rule": "global_norm", "threshold": 1.0, "family": "paddle", **(others if rank else first)}
        return ClipConfig(**settings).clipper(details=details and rank == 0).clip_(given)

    return call


def chosen(first: str, others: str, **declared: Any) -> Call:
    """Of the parameters with such names: a, b, c."""

    def call(given: Parameters, rank: int) -> Any:
        config = ClipConfig(rule="global_norm", threshold=1.0, include=[others if rank else first])
        return config.clipper(**declared).clip_(dict(zip("abc", given, strict=True)))

    return call


def in_pairs(name: str, gradient: Callable[[DTensor], Any]) -> Call:
    """Of parameters on several processes, and what becomes of their gradients."""

    def call(given: Parameters, rank: int) -> Any:
        return getattr(uc, name)(1.0)([(each, gradient(each.grad)) for each in given])[0][1].sum()  # type: ignore[arg-type]

    return call


def each_by_its_own(**stated: Any) -> Call:
    return lambda given, rank: (
        ClipConfig(rule="norm", threshold=1.0)
        .clipper(**{name: value() if callable(value) else value for name, value in stated.items()})
        .clip_(given)
    )


def beside_plain(given: Parameters) -> Parameters:
    return given[:2] + plain(given)[2:]


UNEQUAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "other numbers": lambda gradient: gradient + 1,
    "the last bit": lambda gradient: gradient.nextafter(torch.tensor(math.inf)),
    "another order": lambda gradient: gradient.flip(0),
    "negated": torch.neg,
    "NaN": lambda gradient: gradient * math.nan,
}
"""What the second process does with its copy."""


def beside_unequal(change: Callable[[torch.Tensor], torch.Tensor], given: Parameters) -> Parameters:
    last = nn.Parameter(torch.zeros(4))
    last.grad = torch.tensor([3.0, 4.0, 5.0, 6.0])
    if dist.get_rank() == 1:
        last.grad = change(last.grad)
    return [*given[:2], last]


def plain_alone(given: Parameters) -> Parameters:
    """The last one is a copy, which the first process has a gradient of."""
    last = nn.Parameter(torch.zeros(2))
    last.grad = torch.tensor([3.0, 4.0]) if dist.get_rank() == 0 else None
    return [*given[:2], last]


def by(first: str, others: str) -> Call:
    """By instances of classes."""

    def call(given: Parameters, rank: int) -> Any:
        getattr(uc, others if rank else first)(1.0).clip_(given)
        return torch.zeros(())

    return call


def in_group(group: Callable[[], Any], **arguments: Any) -> Call:
    return lambda given, rank: clip(process_group=group(), **arguments)(given, rank)


def in_one_of(of_first: Callable[[], Any], of_others: Callable[[], Any], how: Any = None) -> Call:
    def call(given: Parameters, rank: int) -> Any:
        groups = [of_first(), of_others()]  # which all have to make, in one order
        group = groups[rank > 0]
        return how(given, group) if how else clip(process_group=group)(given, rank)

    return call


def of_a_mesh(group: Callable[[], Any], mesh: Callable[[], DeviceMesh]) -> Call:
    return lambda given, rank: clip(process_group=group(), ownership=mesh_ownership(mesh()))(given, rank)


def late(given: Parameters, rank: int) -> Any:
    group = impatient()
    if rank == 0:
        time.sleep(PATIENCE + 1)
        return torch.zeros(())
    return clip(process_group=group)(given, rank)


def dying(given: Parameters, rank: int) -> Any:
    group = impatient()
    if rank == 0:
        os._exit(3)
    return clip(process_group=group)(given, rank)


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
    "other thresholds": (as_they_are, one_differs(max_norm=0.5)),
    "other thresholds, p = inf": (
        as_they_are,
        lambda given, rank: uc.clip_grad_norm_(given, 1.0 + rank, inf),
    ),
    "fewer parameters": (as_they_are, lambda given, rank: clip()(given[rank == 0 :], rank)),
    "orders 1 and 2": (as_they_are, one_differs(norm_type=1.0)),
    "orders inf and 2": (as_they_are, one_differs(norm_type=inf)),
    "orders 3 and 2": (as_they_are, one_differs(norm_type=3.0)),
    "one raises": (as_they_are, one_differs(error_if_nonfinite=True)),
    "one measures": (
        as_they_are,
        lambda given, rank: clip()(given, rank) if rank else uc.get_total_norm([each.grad for each in given]),
    ),
    "one checks": (as_they_are, one_differs(check_numel=True)),
    "one knows who counts": (as_they_are, one_differs(ownership="distinct")),
    "thresholds of single gradients": (
        as_they_are,
        lambda given, rank: uc.GradientClipByNorm(1.0 + rank).clip_(given) or torch.zeros(()),
    ),
    "another name": (
        as_they_are,
        lambda given, rank: uc.GradientClipByGlobalNorm(1.0).clip_(given) if rank else clip()(given, rank),
    ),
    "norms of single gradients": (as_they_are, by("GradientClipByNorm", "GradientClipByGlobalNorm")),
    "another rule of a configuration": (as_they_are, configured({"rule": "norm"}, {})),
    "another family of a configuration": (as_they_are, configured({"family": "pytorch"}, {})),
    "details": (as_they_are, configured({}, {}, details=True)),
    **{
        f"{what} if not finite": (functools.partial(with_value, nan, 1), configured({"nonfinite": what}, {}))
        for what in ("raise", "skip", "zero")
    },
    "others by name": (as_they_are, chosen("a", "b")),
    "a plain one by name": (plain_alone, chosen("c", "c", ownership="replicated")),
    "a copy without a gradient": (plain_alone, clip()),
    **{
        f"unequal copies, {how}": (functools.partial(beside_unequal, change), clip())
        for how, change in UNEQUAL.items()
    },
    "copies by their own norms, counted": (beside_plain, each_by_its_own(check_numel=True)),
    "copies by their own norms, in a group": (beside_plain, each_by_its_own(process_group=lambda: dist.group.WORLD)),
    "parts of parameters in pairs": (as_they_are, in_pairs("GradientClipByGlobalNorm", DTensor.to_local)),
    "parts of parameters in pairs, each by its own": (as_they_are, in_pairs("GradientClipByNorm", DTensor.to_local)),
    "whole ones of parameters in pairs": (as_they_are, in_pairs("GradientClipByGlobalNorm", DTensor.full_tensor)),
    "late": (as_they_are, late),
    "dying": (as_they_are, dying),
    "copies as others": (plain, in_group(lambda: dist.group.WORLD, ownership="distinct", check_numel=True)),
    "copies as others, unchecked": (plain, in_group(lambda: dist.group.WORLD, ownership="distinct")),
    "copies as others, by a function": (
        plain, in_group(lambda: dist.group.WORLD, ownership=lambda parameter: True, norm_type=1.0)
    ),
    "equal shards": (
        plain,
        in_group(lambda: dist.group.WORLD, ownership="distinct", check_numel=2 * sum(each.size for each in ARRAYS)),
    ),
    "others as copies": (
        on_some,
        in_group(lambda: dist.group.WORLD, ownership="replicated", check_numel=2 * sum(each.size for each in ARRAYS)),
    ),
    "all copies": (plain, in_group(lambda: dist.group.WORLD, ownership=lambda parameter: False, check_numel=True)),
    "all copies, unchecked": (plain, in_group(lambda: dist.group.WORLD, ownership=lambda parameter: False)),
    "all copies, unchecked, p = 3": (
        plain, in_group(lambda: dist.group.WORLD, ownership=lambda parameter: False, norm_type=3.0)
    ),
    "zeros that one rank counts": (
        zeros, in_group(lambda: dist.group.WORLD, ownership=lambda parameter: dist.get_rank() == 0)
    ),
    "a flag for a group": (as_they_are, clip(process_group=True)),
    "all copies, p = inf": (
        plain,
        in_group(lambda: dist.group.WORLD, ownership=lambda parameter: False, check_numel=True, norm_type=inf),
    ),
    "some processes": (on_some, clip()),
    "some processes beside all": (on_some_beside_all, clip()),
    "some processes in a group": (on_some, in_group(lambda: dist.group.WORLD)),
    "some processes, by a functional name": (
        on_some,
        lambda given, rank: uc.clip_by_global_norm([each.grad for each in given], 1.0)[1],
    ),
    "some processes, with derivatives": (on_some, with_derivatives(uc.get_total_norm)),
    "some processes, clipped with derivatives": (
        on_some,
        with_derivatives(lambda tensors: uc.clip_by_global_norm(tensors, 1.0)[1]),
    ),
    "some processes, configured with derivatives": (
        on_some,
        with_derivatives(ClipConfig(rule="global_norm", threshold=1.0, family="paddle").clipper()),
    ),
    "plain in a group": (plain, in_group(lambda: dist.group.WORLD)),
    "plain beside some, in a group": (plain_beside_some, in_group(lambda: dist.group.WORLD)),
    "plain beside the first two, in groups of two": (plain_beside_the_first_two, in_group(lambda: rows()["tp"])),
    "plain, and only told who counts": (plain, clip(ownership="replicated")),
    "another group": (as_they_are, in_one_of(of_the_last, of_the_first)),
    "a group that is too small": (as_they_are, in_one_of(of_the_first, of_the_last)),
    "a group that is too small for single gradients": (
        as_they_are,
        in_one_of(
            of_the_first,
            of_the_last,
            lambda given, group: uc.GradientClipByNorm(1.0, process_group=group).clip_(given) or torch.zeros(()),
        ),
    ),
    "no group": (as_they_are, clip(process_group=None)),
    "a mesh of others": (plain, in_group(mesh_of_the_first)),
    "a name for a group": (as_they_are, clip(process_group="world")),
    "a list for a group": (as_they_are, clip(process_group=[0, 1])),
    "a name for a group of single gradients": (
        as_they_are,
        lambda given, rank: uc.GradientClipByNorm(1.0, process_group="world").clip_(given) or torch.zeros(()),
    ),
    "copies on some processes, in a group": (copies_on_some, in_group(lambda: dist.group.WORLD)),
    "on the first two, in a group": (on_the_first_two, in_group(lambda: dist.group.WORLD)),
    "who counts on a wider mesh": (on_some, of_a_mesh(lambda: rows()["tp"], rows)),
    "who counts on a narrower mesh": (on_some, of_a_mesh(lambda: dist.group.WORLD, lambda: rows()["tp"])),
    "who counts on a narrower mesh than all": (as_they_are, of_a_mesh(lambda: "auto", lambda: rows()["tp"])),
    "copies that nobody has": (on_one_each, in_group(lambda: dist.group.WORLD, ownership="replicated")),
    "no answer": (plain, in_group(lambda: dist.group.WORLD, ownership=lambda parameter: None)),
    "unknown ownership": (as_they_are, clip(ownership="owned")),
    "numbers that are no counts": (as_they_are, clip(check_numel=10.0)),
    "terms that are no sums": (of_maxima, clip()),
}  # fmt: skip
