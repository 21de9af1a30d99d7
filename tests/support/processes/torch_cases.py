"""Calls that processes of a `World` make with DTensors: what they return, and what they reject."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from support.processes.torch_layout import parameter_with
from support.processes.torch_sharded import distributed, mesh_of, parameters, record_collectives
from support.processes.worlds import error_message
from torch import Tensor, nn
from torch.distributed import _functional_collectives as asynchronous
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

import unified_clip.torch as uc
from unified_clip import ClipConfig
from unified_clip._backends.torch.process_group import TorchGroup
from unified_clip.ownership import mesh_ownership

ARRAYS = [np.arange(1, 8, dtype=np.float32), np.full((5, 3), 2, np.float32), np.ones((1, 2), np.float32)]
NUMEL = sum(array.size for array in ARRAYS)
CONFIG = ClipConfig(rule="global_norm", threshold=1.0, family="pytorch")

Parameters = list[nn.Parameter]


def world() -> Any:
    return dist.group.WORLD


def placed(values: Any, placement: Placement, mesh: DeviceMesh | None = None) -> nn.Parameter:
    """Return a parameter on the row of all ranks, or on a mesh. Every process passes the complete gradient."""
    return parameter_with(distributed(np.array(values, np.float32), mesh or mesh_of("row"), [placement]))


def sharded(*values: float) -> nn.Parameter:
    return placed(values, Shard(0))


def plain(*values: float) -> nn.Parameter:
    return parameter_with(torch.tensor(values, dtype=torch.float32))


def local(tensor: Any) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def clip(params: Any, **keywords: Any) -> Tensor:
    return uc.clip_grad_norm_(params, 1.0, **keywords)


# -- gradients of each kind, and what a clip returns: the norm, and the clipped gradients


def clipped(*params: nn.Parameter, **keywords: Any) -> tuple[float, list[Any]]:
    return clip(list(params), **keywords).item(), values(params)


def values(params: Sequence[Any]) -> list[Any]:
    return [(g.full_tensor() if isinstance(g, DTensor) else g.to_dense()).tolist() for g in (p.grad for p in params)]


def tied(by_memory: bool) -> tuple[float, list[Any]]:
    first: Any = sharded(3, 4)
    gradient = first.grad
    if by_memory:
        gradient = DTensor.from_local(gradient.to_local(), gradient.device_mesh, gradient.placements)
    return clipped(first, parameter_with(gradient), check_numel=True)


def left_out() -> tuple[float, list[Any]]:
    excluded: Any = sharded(100)
    excluded.need_clip = False
    return clipped(sharded(3, 4), excluded, check_numel=True)


def sparse() -> tuple[float, list[Any]]:
    parameter = nn.Parameter(torch.zeros(4, 1))
    parameter.grad = torch.sparse_coo_tensor([[1, 1]], [[6.0], [6.0]], (4, 1), check_invariants=True)
    return clipped(sharded(3, 4), parameter, check_numel=True)


def under_way() -> tuple[float, list[Any]]:
    """Clip a gradient whose all-reduce has not finished."""
    sums = asynchronous.all_reduce(torch.tensor([3.0, 4.0]), "sum", world())
    return clipped(parameter_with(DTensor.from_local(sums / dist.get_world_size(), mesh_of("row"), [Replicate()])))


def from_an_iterator() -> tuple[float, list[Any]]:
    parameter = sharded(3, 4)
    return clip(named for named in [("weight", parameter)]).item(), values([parameter])


def in_inference_mode() -> tuple[float, list[Any]]:
    with torch.inference_mode():
        return clipped(sharded(3, 4))


def by_a_threshold(make: Callable[[Tensor], Any]) -> tuple[float, list[Any]]:
    parameter = sharded(3, 4)
    return uc.clip_grad_norm_([parameter], make(torch.tensor(1.0))).item(), values([parameter])


def by_norm_of_pytorch(p: float) -> tuple[float, list[Any]]:
    """With p = inf, PyTorch's norm on each rank is that of the local shard."""
    params = [sharded(3, 4), sharded(12, 0)]
    norm = nn.utils.get_total_norm([parameter.grad for parameter in params], p)
    assert p != math.inf or norm.placements[0].is_partial()
    uc.clip_grads_with_norm_(params, 1.0, norm)
    return norm.full_tensor().item(), values(params)


def beside_a_mesh_of_two() -> tuple[float, list[Any]]:
    """Clip by own norms. One gradient is on the first two ranks."""
    beside = nn.Parameter(DTensor.from_local(torch.ones(2), DeviceMesh("cpu", [0, 1]), [Shard(0)], run_check=False))
    beside.grad, other = beside.detach(), plain(3, 4)
    uc.GradientClipByNorm(1.0).clip_([beside, other])
    return 5.0, values([other])


def on_one_rank(process_group: Any) -> tuple[float, list[Any]]:
    parameter = placed([3, 4], Replicate())
    return clip([parameter], process_group=process_group).item(), values([parameter])


CASES: dict[str, Callable[[], Any]] = {
    "alone": lambda: (uc.clip_grad_norm_(parameter := sharded(3, 4), 1.0).item(), values([parameter])),
    "twice": lambda: clipped(*[sharded(3, 4)] * 2, check_numel=True),
    "tied": lambda: tied(False),
    "tied by memory": lambda: tied(True),
    "left out": left_out,
    "sparse": sparse,
    "without dimensions": lambda: clipped(placed(3, Replicate()), sharded(4)),
    "under way": under_way,
    "from an iterator": from_an_iterator,
    "in inference mode": in_inference_mode,
    "by a tensor": lambda: by_a_threshold(Tensor.clone),
    "by a DTensor": lambda: by_a_threshold(
        lambda one: distribute_tensor(one, mesh_of("row"), [Replicate()], src_data_rank=None)
    ),
    "by PyTorch's norm": lambda: by_norm_of_pytorch(2.0),
    "by PyTorch's maximum": lambda: by_norm_of_pytorch(math.inf),
    "beside a mesh of two": beside_a_mesh_of_two,
    "process_group=None": lambda: on_one_rank(None),
}


def run_case(name: str) -> Any:
    return CASES[name]()


# -- derivatives and graphs


def clip_saved(read: str) -> str:
    """Return PyTorch's error for a backward pass after a saved gradient was clipped in place."""
    parameter: Any = sharded(3, 4)
    gradient = local(parameter.grad) if read == "local tensor" else parameter.grad
    product = (torch.ones_like(gradient).requires_grad_() * gradient).sum()
    clip([parameter])
    return error_message(product.backward)


def clip_compiled() -> list[Any]:
    def scaled(params: list[nn.Parameter]) -> Tensor:
        return clip(params) * 2

    params = [sharded(3, 4), sharded(3, 4)]
    functions = (scaled, torch.compile(scaled, backend="eager"))
    norms = [function([parameter]).item() for function, parameter in zip(functions, params, strict=True)]
    return list(zip(norms, values(params), strict=True))


def differentiate_clip() -> tuple[Tensor, list[float]]:
    gradient: Any = sharded(3, 4).grad.requires_grad_()  # type: ignore[union-attr]
    results, norm = uc.clip_by_global_norm([gradient], 1.0)
    results[0].sum().backward()
    return norm.detach(), gradient.grad.full_tensor().tolist()


def differentiate_norm(p: float, *elements: float) -> tuple[Tensor, list[float]]:
    gradient: Any = sharded(*elements).grad.requires_grad_()  # type: ignore[union-attr]
    norm = uc.get_total_norm([gradient], p)
    norm.backward()
    return norm.detach(), gradient.grad.full_tensor().tolist()


def clip_pairs(by_own_norms: bool) -> list[Any]:
    """Clip (parameter, gradient) tuples. The second process has no gradient for the distributed parameter."""
    weight, bias = sharded(3, 4), plain(12)
    kind = uc.GradientClipByNorm if by_own_norms else uc.GradientClipByGlobalNorm
    pairs = kind(1.0)([(weight, None if dist.get_rank() == 1 else weight.grad), (bias, bias.grad)])
    return [None if gradient is None else local(gradient).tolist() for _, gradient in pairs]


# -- norms of gradients that ranks own in different ways


def rows() -> DeviceMesh:
    return mesh_of("rows")


def with_ownership(*named: tuple[str, nn.Parameter], **keywords: Any) -> float:
    return clip(list(named), process_group=world(), **keywords).item()


def tied_over_stages() -> float:
    """Clip a tied parameter, which is None on the first rank of the last stage. The first stage counts it."""
    own, shared, rank = plain(1, 1), plain(1, 1, 1), dist.get_rank()
    if rank == 2:
        shared.grad = None
    owner = mesh_ownership(rows(), distinct="dp", also_elsewhere=[shared] if rank >= 2 else [])
    return with_ownership(("a", own), ("b", shared), ownership=owner)


def distinct_beside_copies() -> float:
    named = [(name, plain(1, 1)) for name in "abc"]
    if dist.get_rank() == 0:
        named[1][1].grad = None
    return with_ownership(*named, ownership={"b": "distinct", "*": "replicated"})


def frozen_on_a_stage() -> float:
    params = [placed([1, 1], Replicate(), rows()["tp"]) for _ in range(2)]
    frozen = params[dist.get_rank() // 2].requires_grad_(False)
    frozen.grad = None
    owner = mesh_ownership(rows(), distinct="dp")
    return with_ownership(*zip("ab", params, strict=True), ownership=owner)


def in_another_order() -> float:
    named = [(name, plain(*[1.0] * size)) for name, size in (("a", 2), ("b", 3), ("c", 2))]
    owner = mesh_ownership(rows(), distinct="dp")
    return with_ownership(*named[:: -1 if dist.get_rank() % 2 else 1], ownership=owner)


def experts_without_tokens() -> float:
    """Clip experts on the ranks of a stage, with copies along "dp", beside a sharded layer."""
    expert = plain(1, 1, 1)
    if dist.get_rank() % 2 == 0:
        expert.grad = None
    owner = {"*experts*": mesh_ownership(rows(), distinct="tp")}
    return clip([("layer.weight", sharded(1, 1, 1, 1)), ("experts.weight", expert)], ownership=owner).item()


NORMS: dict[str, tuple[Callable[[], float], float]] = {
    "tied over stages": (tied_over_stages, 5 + 2),
    "distinct beside copies": (distinct_beside_copies, 4 + 3 * 2),
    "frozen on a stage": (frozen_on_a_stage, 2 * 2),
    "in another order": (in_another_order, 2 * 7),
    "experts without tokens": (experts_without_tokens, 4 + 3),
}
"""Norms over four ranks, and their squares. Gradients are ones, and may be missing on some ranks."""


def norm_of(name: str) -> float:
    return NORMS[name][0]()


# -- rejected calls


def shards() -> Parameters:
    return parameters(ARRAYS, "FSDP")


def copies() -> Parameters:
    return parameters(ARRAYS, "plain")


def on_some(placement: Placement = Shard(0)) -> Parameters:  # noqa: B008
    """Return parameters on the mesh of one row of two ranks."""
    return [placed(array, placement, rows()["tp"]) for array in ARRAYS]


@functools.cache
def mesh_of_each() -> list[DeviceMesh]:
    return [DeviceMesh("cpu", [rank]) for rank in range(dist.get_world_size())]


@functools.cache
def groups_of_each() -> list[Any]:
    return [dist.new_group([rank]) for rank in range(dist.get_world_size())]


def on_one_each() -> Parameters:
    is_here = [dist.get_rank() == rank for rank in range(dist.get_world_size())]
    locals_ = [torch.ones(2 * here) for here in is_here]
    return [
        parameter_with(DTensor.from_local(each, mesh, [Shard(0)], run_check=False))
        for each, mesh in zip(locals_, mesh_of_each(), strict=True)
    ]


def of_placement(placement: Any) -> Parameters:
    tensors = [DTensor.from_local(torch.ones(3), mesh_of("row"), [placement], run_check=False) for _ in range(2)]
    parameter = nn.Parameter(tensors[0])
    parameter.grad = tensors[1]
    return [parameter]


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "the last bit": lambda gradient: gradient.nextafter(torch.tensor(math.inf)),
    "another order": lambda gradient: gradient.flip(0),
    "negated": torch.neg,
    "NaN": lambda gradient: gradient * math.nan,
    "missing": lambda gradient: None,  # type: ignore[dict-item,return-value]
}


def beside_unequal(change: str) -> Parameters:
    last = plain(3, 4, 5, 6)
    if dist.get_rank() == 1:
        last.grad = CHANGES[change](last.grad)  # type: ignore[arg-type]
    return [*shards()[:2], last]


def terms(change: Callable[[list[Any]], None] = lambda params: None) -> Parameters:
    """Return six parameters whose gradients are terms of sums. Rank 1 changes its list."""
    params: Any = []
    for number in range(6):
        placed = [DTensor.from_local(torch.full((3, 2), number + 1.0), mesh_of("row"), [Partial()]) for _ in range(2)]
        params.append(nn.Parameter(placed[0]))
        params[-1].grad = placed[1]
    if dist.get_rank() == 1:
        change(params)
    return params


def with_gradient(index: int, change: Callable[[Any], Any]) -> Callable[[list[Any]], None]:
    def changing(params: list[Any]) -> None:
        gradient = params[index].grad
        tensor, placements = change(gradient.to_local())
        changed, zeros = (
            DTensor.from_local(each, gradient.device_mesh, placements, run_check=False)
            for each in (tensor, torch.zeros_like(tensor))
        )
        if tensor.dtype != gradient.dtype:
            params[index] = nn.Parameter(zeros)
        params[index].grad = changed

    return changing


def clip_pairs_of(kind: str, read: Callable[[Any], Any]) -> Callable[[Parameters], Any]:
    return lambda params: getattr(uc, kind)(1.0)([(parameter, read(parameter.grad)) for parameter in params])


def with_derivatives(function: Callable[[list[Any]], Any]) -> Callable[[Parameters], Any]:
    return lambda params: function([parameter.grad.requires_grad_() for parameter in params])  # type: ignore[union-attr]


def in_world(**keywords: Any) -> Callable[[Parameters], Any]:
    return lambda params: clip(params, process_group=world(), **keywords)


def is_owner(parameter: Any) -> bool:
    return True


def is_no_owner(parameter: Any) -> bool:
    return False


class Rejected(NamedTuple):
    size: int
    make: Callable[[], Parameters]
    call: Callable[[Parameters], Any]
    error: str | tuple[str, str]
    """A regular expression that the error begins with, or one for rank 0 and one for the others."""


UNDECLARED = "ValueError: .*is on only 2 of these ranks. Pass ownership='replicated'"
FEW = "ValueError: .*with 2 of 4 ranks. .* As process_group, pass the group of all ranks that"
UNEQUAL = "ValueError: plain gradients differ between ranks: position 2. No gradient was changed"
TERMS = "ValueError: Partial gradients differ in shape, dtype or placements: "
DERIVED = "ValueError: .*has 2 of 4 ranks. .* torch.no_grad"

REJECTED: dict[str, Rejected] = {
    "some ranks": Rejected(4, on_some, clip, FEW),
    "some ranks, by a functional name": Rejected(
        4, on_some, lambda params: uc.clip_by_global_norm([p.grad for p in params], 1.0), FEW
    ),
    "some ranks, with derivatives": Rejected(4, on_some, with_derivatives(uc.get_total_norm), DERIVED),
    "some ranks, configured with derivatives": Rejected(4, on_some, with_derivatives(CONFIG.clipper()), DERIVED),
    "some ranks beside all": Rejected(4, lambda: on_some() + shards(), clip, UNDECLARED),
    "some ranks in a group": Rejected(4, on_some, in_world(), UNDECLARED),
    "copies on some ranks": Rejected(4, lambda: on_some(Replicate()), in_world(), UNDECLARED),
    "plain in a group": Rejected(2, copies, in_world(), "ValueError: .*position 0 is a plain tensor. Pass ownership="),
    "ownership without a group": Rejected(
        2, copies, lambda params: clip(params, ownership="replicated"), "ValueError: .*no tensor has a mesh. Pass proc"
    ),
    "local shards in pairs": Rejected(
        2, shards, clip_pairs_of("GradientClipByGlobalNorm", DTensor.to_local),
        "ValueError: .*position 0 is a plain tensor that is smaller than its par",
    ),
    "local shards in pairs, by own norms": Rejected(
        2, shards, clip_pairs_of("GradientClipByNorm", DTensor.to_local),
        "ValueError: position 0 is a plain tensor. Other ranks may have",
    ),
    "another group": Rejected(
        2, shards, lambda params: clip(params, process_group=groups_of_each()[1 - dist.get_rank()]),
        (r"ValueError: rank 0 is not in process_group, .*\[1\]", r"ValueError: rank 1 is .*\[0\]"),
    ),
    "a group that lacks shards": Rejected(
        2, shards, lambda params: clip(params, process_group=groups_of_each()[dist.get_rank()]),
        (r"ValueError: .*\[0, 1\], but .* the ranks \[0\]. Pass a", r"ValueError: .* the ranks \[1\]. Pass a"),
    ),
    "a group that lacks shards, by own norms": Rejected(
        2, shards,
        lambda params: uc.GradientClipByNorm(1.0, process_group=groups_of_each()[dist.get_rank()]).clip_(params),
        (r"ValueError: .*\[0, 1\], but .* the ranks \[0\]. Pass a", r"ValueError: .* the ranks \[1\]. Pass a"),
    ),
    "no group": Rejected(
        2, shards, lambda params: clip(params, process_group=None),
        "ValueError: process_group is None, but the gradient at position 0 is not complete on this rank",
    ),
    "a name for a group": Rejected(
        2, shards, lambda params: clip(params, process_group="world"), "TypeError: process_group is 'world'. Pass a pro"
    ),
    "a flag for a group, by own norms": Rejected(
        2, shards, lambda params: uc.GradientClipByNorm(1.0, process_group=True).clip_(params),
        "TypeError: process_group is True. Pass a process group",
    ),
    "mesh_ownership of a wider mesh": Rejected(
        4, on_some, lambda params: clip(params, process_group=rows()["tp"], ownership=mesh_ownership(rows())),
        r"ValueError: .*ranks \[0, 1, 2, 3\], but the norm is all-reduced over",
    ),
    "mesh_ownership of a narrower mesh": Rejected(
        4, on_some, lambda params: clip(params, process_group=world(), ownership=mesh_ownership(rows()["tp"])),
        r"ValueError: .*all-reduced over the ranks \[0, 1, 2, 3\]. To mesh_ownership, pass the device mesh of all",
    ),
    "copies that one rank lacks": Rejected(
        2, on_one_each, in_world(ownership="replicated"),
        (r"ValueError: .*only on the ranks \[1\]: rank 0 has no copy.", "ValueError: .*only on .* rank 1 has no"),
    ),
    "no answer": Rejected(
        2, copies, in_world(ownership=lambda parameter: None),
        "TypeError: ownership returned None for position 0.*. Return True if",
    ),
    "copies declared as distinct": Rejected(
        2, copies, in_world(ownership="distinct", check_numel=True),
        f"ValueError: .*own {2 * NUMEL} gradient elements together, and check_numel expects {NUMEL}. Some elements",
    ),
    "distinct declared as copies": Rejected(
        4, on_some, in_world(ownership="replicated", check_numel=2 * NUMEL),
        f"ValueError: .*own {NUMEL} gradient elements together, and check_numel expects {2 * NUMEL}. .* Pass `owner",
    ),
    "no owner, checked": Rejected(
        2, copies, in_world(ownership=is_no_owner, check_numel=True, norm_type=math.inf),
        f"ValueError: .*own 0 gradient elements together, and check_numel expects {NUMEL}",
    ),
    "no owner": Rejected(
        2, copies, in_world(ownership=is_no_owner), "ValueError: no rank owns any gradient, because ownership returned"
    ),
    "no owner, p = 3": Rejected(
        2, copies, in_world(ownership=is_no_owner, norm_type=3.0), "ValueError: no rank owns any gradient, because own"
    ),
    "equal sums": Rejected(  # warnings are errors in these processes
        2, copies, in_world(ownership="distinct"),
        "ClipWarning: the 2 ranks own gradients with exactly the same norm, .* as with DistributedDataParallel",
    ),
    "equal sums, by a function": Rejected(
        2, copies, in_world(ownership=is_owner, norm_type=1.0), "ClipWarning: the 2 ranks own gradients with exactly"
    ),
    "Partial placements that are no sums": Rejected(
        2, lambda: of_placement(Partial("max")), clip, r"ValueError: .*placement Partial\(max\), which is not supported"
    ),
    "a DTensor of norms": Rejected(
        2, shards, lambda params: uc.get_total_norm([torch.linalg.vector_norm(params[0].grad)]),
        "ValueError: .*has the placement _NormPartial",
    ),
    "bounds that are tensors": Rejected(
        2, lambda: [sharded(5, 5, 5, 5)],
        lambda params: uc.clip_by_value(params[0].grad, torch.full((2,), -1.0), torch.full((2,), 1.0)),
        r"ValueError: a bound has shape \[2\], and the gradient is distributed. Pass numbers",
    ),
    "agc": Rejected(
        2, shards, lambda params: ClipConfig(rule="norm", adaptive={"rule": "agc"}).clip_(params),
        ".*agc does not support distributed gradients",
    ),
    "check_replicas outside of the group": Rejected(
        4, lambda: parameters(ARRAYS, "HSDP"),
        lambda params: clip(params, process_group=rows()["tp"], check_replicas=True),
        "ValueError: .*at position 0, but some copies are on ranks outside process_group",
    ),
    "check_replicas without a mesh": Rejected(
        2, copies, lambda params: clip(params, check_replicas=True), "ValueError: .*Pass process_group as well"
    ),
    "check_replicas of this process": Rejected(
        2, copies, lambda params: clip(params, check_replicas=True, process_group=None),
        "ValueError: check_replicas is True, but process_group=None means this process alone",
    ),
    **{f"unequal copies: {name}": Rejected(2, functools.partial(beside_unequal, name), clip, UNEQUAL)
       for name in CHANGES},
    "terms: one is missing": Rejected(
        4, lambda: terms(lambda params: setattr(params[0], "grad", None)), clip, f"{TERMS}position 0"
    ),
    "terms: another dtype": Rejected(
        4, lambda: terms(with_gradient(2, lambda term: (term.double(), [Partial()]))), clip, f"{TERMS}position 2"
    ),
    "terms: one is summed already": Rejected(
        4, lambda: terms(with_gradient(1, lambda term: (term, [Replicate()]))), clip, f"{TERMS}position 1"
    ),
}  # fmt: skip


class Outcome(NamedTuple):
    error: str
    is_unchanged: bool
    seconds: float


def attempt(params: Parameters, call: Callable[[Parameters], Any]) -> Outcome:
    """Make a call. Return its error with its type and notes, or ""."""
    before, error, start = gradients_of(params), "", time.monotonic()
    try:
        call(params)
    except Exception as raised:
        error = "\n".join([f"{type(raised).__name__}: {raised}", *getattr(raised, "__notes__", [])])
    return Outcome(error, gradients_of(params) == before, time.monotonic() - start)


def gradients_of(params: Parameters) -> list[bytes]:
    return [local(p.grad.detach()).numpy().tobytes() for p in params if p.grad is not None]


def reject(name: str) -> Outcome:
    case = REJECTED[name]
    return attempt(case.make(), case.call)


def reject_alone() -> list[Outcome]:
    """Make invalid calls without collectives on the first rank alone. They must not wait for another rank."""
    if dist.get_rank():
        return []
    integers = torch.ones(2, dtype=torch.int32)
    calls: list[Callable[[Any], Any]] = [
        lambda params: uc.clip_by_global_norm([params[0].grad, integers], 1.0, use_norm=2.0),
        lambda params: uc.clip_grads_with_norm_(params, -1.0, 2.0),
        lambda params: uc.get_total_norm([torch.ones(2), integers]),
        lambda params: uc.clip_grad_norm_([nn.Parameter(torch.zeros(2))], -1.0),
        lambda params: uc.clip_grad_norm_(params, -1.0, process_group=None),
    ]
    return [attempt([sharded(3, 4)], call) for call in calls]


def reject_in_one_copy(everywhere: bool) -> Outcome:
    """HSDP has two copies on two ranks each. Rank 1 rejects the call."""
    threshold, group = (math.nan if dist.get_rank() == 1 else 1.0), {"process_group": world()} if everywhere else {}
    outcome = attempt(parameters(ARRAYS, "HSDP"), lambda params: uc.clip_grad_norm_(params, threshold, **group))
    assert not attempt(parameters(ARRAYS, "HSDP"), clip).error
    return outcome


def clip_on_two_dimensions(kind: str) -> Outcome:
    """Clip a gradient that is sharded along both dimensions by its own norm. Rank 0 differs."""
    parameter: Any = parameter_with(distributed(np.ones((4, 4), np.float32), rows(), [Shard(0), Shard(1)]))
    differs = dist.get_rank() == 0
    gradient = parameter.grad.int() if differs and kind == "integers" else parameter.grad
    threshold = 2.0 if differs and kind == "threshold" else 1.0
    return attempt([parameter], lambda params: uc.clip_by_norm(gradient, threshold))


def clip_out_of_step() -> list[Outcome]:
    """Fail in a collective on one rank. Then make two calls in this group, and one in a new group."""
    group, fresh = dist.new_group(), dist.new_group()
    if dist.get_rank() == 1:
        with mock.patch.object(TorchGroup, "all_reduce_sum", side_effect=ConnectionError("the network is down")):
            failed = attempt(shards(), lambda params: clip(params, process_group=group))
        assert "ConnectionError" in failed.error
    return [
        attempt(shards(), lambda params, each=each: clip(params, process_group=each)) for each in (group, group, fresh)
    ]


def clip_in_order_of_groups() -> tuple[Outcome, list[Any]]:
    """Clip by own norms over two process groups with the same ranks. Rank 1 lists the gradients in another order."""
    meshes = [DeviceMesh.from_group(dist.new_group(timeout=timedelta(seconds=10)), "cpu") for _ in range(2)]
    params = [placed([number + 3.0] * 4, Shard(0), mesh) for number, mesh in enumerate(meshes)]
    outcome = attempt(params[:: -1 if dist.get_rank() == 1 else 1], uc.GradientClipByNorm(1.0).clip_)
    return outcome, [local(parameter.grad).tolist() for parameter in params]


def clip_with_other_placements() -> Outcome:
    """One rank has a copy, and the other a shard. A norm would count the copy, and only a shard of the other."""
    gradient = distributed(np.ones(4, np.float32), mesh_of("row"), [Shard(0) if dist.get_rank() else Replicate()])
    parameter = nn.Parameter(gradient.detach().clone())
    parameter.grad = gradient
    return attempt([parameter], in_world())


def clip_without_gradients(check: bool) -> Outcome:
    params = shards()
    for parameter in params if dist.get_rank() == 1 else []:
        parameter.grad = None
    return attempt(params, lambda params: clip(params, check_numel=check))


PATIENCE = 3


def wait_in_vain(case: str) -> Outcome:
    """Clip in a group whose first rank comes too late, or ends."""
    group = dist.new_group(timeout=timedelta(seconds=PATIENCE))
    if dist.get_rank() == 0:
        time.sleep(PATIENCE + 1) if case == "late" else os._exit(3)
        return Outcome("", True, 0)
    return attempt(shards(), lambda params: clip(params, process_group=group))


# -- groups of a configuration


def clip_by_groups(kinds: Sequence[str], numel: int | None = None) -> tuple[Outcome, list[np.ndarray], int]:
    """Clip gradients of ones by a configuration with one group for each. On rank 1, a gradient "unequal" differs."""
    rank, makers = dist.get_rank(), {"sharded": Shard(0), "copied": Replicate(), "terms": Partial()}
    named = []
    for number, kind in enumerate(kinds):
        gradient: Any = torch.full((4,), 2.0 if kind == "unequal" and rank == 1 else 1.0)
        if kind in makers:
            gradient = DTensor.from_local(gradient, mesh_of("row"), [makers[kind]], run_check=False)
        named.append((f"{number}", parameter_with(gradient)))
    groups = [{"name": f"group {name}", "include": [name], "threshold": 1.0} for name, _ in named]
    clipper = ClipConfig(rule="global_norm", threshold=1.0, groups=groups).clipper(check_numel=numel)  # type: ignore[arg-type]
    with record_collectives() as collectives:
        outcome = attempt([parameter for _, parameter in named], lambda _: clipper.clip_(named))
    return outcome, [local(parameter.grad).numpy().copy() for _, parameter in named], len(collectives)


def reject_in_second_group() -> list[Outcome]:
    """The `ownership` function of rank 1 raises for a parameter of the second group, and only in the first call."""
    params = [plain(1.0 + dist.get_rank(), 1.0) for _ in range(2)]
    groups: Any = [{"name": "second", "include": ["b"], "threshold": 10.0}]
    config = ClipConfig(rule="global_norm", threshold=10.0, groups=groups)

    def raising(parameter: Any) -> bool:
        if parameter is params[1] and dist.get_rank() == 1:
            raise LookupError("no stage")
        return True

    def clip_groups(owner: Any) -> Callable[[Parameters], Any]:
        clipper = config.clipper(process_group=world(), ownership=owner)
        return lambda params: clipper.clip_(list(zip("ab", params, strict=True)))

    return [attempt(params, clip_groups(owner)) for owner in (raising, "distinct")]
