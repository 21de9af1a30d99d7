"""What a clip costs one rank of many: collectives, groups and devices, counted with PyTorch's fake process groups."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import unified_clip.torch as uc
from unified_clip._backends.torch import checked_lists, sharded
from unified_clip._distributed.ranks import KeptByIdentity, Ranks
from unified_clip._native import KERNELS
from unified_clip.ownership import mesh_ownership

RANKS = 8


@pytest.fixture
def collectives() -> Iterator[list[Any]]:
    """The groups of all collectives of rank 1 of 8, which all send what it does."""
    groups = []

    def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, **_: Any) -> None:
        groups.append(group)
        if op == dist.ReduceOp.SUM:
            tensor.mul_(dist.get_world_size(group))

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=RANKS)
    with mock.patch.object(dist, "all_reduce", all_reduce):
        yield groups
    dist.destroy_process_group()


def parameters(mesh: DeviceMesh, *placements: Any, number: int = 6) -> list[nn.Parameter]:
    shape = torch.Size([length * 8 for length in (2, 2)])

    def local() -> Any:
        return DTensor.from_local(torch.ones(2, 2), mesh, placements, run_check=False, shape=shape, stride=(16, 1))

    found = [nn.Parameter(local()) for _ in range(number)]
    for parameter in found:
        parameter.grad = local()
    return found


def row() -> DeviceMesh:
    return init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))


def rows() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))


def plain() -> list[nn.Parameter]:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    return [parameter]


def hsdp(mesh: DeviceMesh) -> list[nn.Parameter]:
    return parameters(mesh, Replicate(), Shard(0))


WORLD = "WORLD"

LAYOUTS: dict[str, tuple[Callable[[], tuple[DeviceMesh | None, list[nn.Parameter]]], list[str]]] = {
    "DDP": (lambda: (None, plain()), []),
    "all Replicate": (lambda: (mesh := rows(), parameters(mesh, Replicate(), Replicate())), []),
    "FSDP2": (lambda: (mesh := row(), parameters(mesh, Shard(0))), [WORLD]),
    "HSDP": (lambda: (mesh := rows(), hsdp(mesh)), ["shard"]),
    "HSDP on equal meshes": (lambda: (mesh := rows(), hsdp(mesh) + hsdp(rows())), ["shard"]),
    "two dimensions": (lambda: (mesh := rows(), parameters(mesh, Shard(0), Shard(1))), [WORLD]),
    "HSDP beside plain copies": (lambda: (mesh := rows(), hsdp(mesh) + plain()), [WORLD]),
    "six Partial": (lambda: (mesh := row(), parameters(mesh, Partial())), ["dp", WORLD]),
    "Partial and sharded": (lambda: (mesh := rows(), parameters(mesh, Partial(), Shard(0))), ["replicate", WORLD]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_collectives_over_the_smallest_group(collectives: list[Any], layout: str) -> None:
    make, expected = LAYOUTS[layout]
    mesh, given = make()
    uc.clip_grad_norm_(given, 1.0)
    groups = [dist.group.WORLD if name == WORLD else mesh and mesh.get_group(name) for name in expected]
    assert collectives == groups


def test_the_shard_dimension_of_hsdp_may_be_passed(collectives: list[Any]) -> None:
    mesh = rows()
    given = parameters(mesh, Replicate(), Shard(0))
    expected = uc.get_total_norm([parameter.grad for parameter in given], process_group=dist.group.WORLD)
    norm = uc.clip_grad_norm_(given, 1.0, process_group=mesh["shard"])
    assert collectives == [dist.group.WORLD, mesh.get_group("shard")]
    assert norm * 2**0.5 == pytest.approx(expected.item())  # of the world, too, every fake rank counts all it has
    with pytest.raises(
        ValueError, match=r"with the ranks \[0, 1, 2, 3, 4, 5, 6, 7\], but process_group has .* \[1, 5\]"
    ):
        uc.clip_grad_norm_(given, 1.0, process_group=mesh["replicate"])


@pytest.mark.parametrize(
    ("supported", "used", "device"),
    [
        (["cpu", "cuda"], "cuda", "cuda"),
        (["cpu", "cuda"], "cpu", "cpu"),
        (["cuda"], "cuda", "cuda"),
        (["cuda"], "cpu", "cuda"),
        (["cpu"], "cuda", "cpu"),
    ],
)
def test_nccl_reduces_for_gpus_also_where_gloo_could(supported: list[str], used: str, device: str) -> None:
    """The tensor that is reduced is on a device of the backend that reduces it."""
    group: Any = SimpleNamespace(_device_types=list(map(torch.device, supported)))
    seen = []
    with FakeTensorMode(), mock.patch.multiple(dist, all_reduce=lambda tensor, *_: seen.append(tensor.device.type)):
        parameter = nn.Parameter(torch.zeros(2, device=used))
        made = mock.Mock(key=group, size=2, _device_type=sharded.payload_device(group, [parameter]))
        with pytest.raises(RuntimeError):  # fake tensors have no values
            sharded.TorchGroup.all_reduce(made, [1, 2], "SUM")
    assert seen == [device]


def test_ranks_are_read_once_for_a_mesh(collectives: list[Any]) -> None:
    mesh = rows()
    owner = mesh_ownership(mesh)
    given = parameters(mesh, Shard(0), Shard(1)) + parameters(mesh["shard"], Shard(0))
    uc.clip_grad_norm_(given, 1.0, ownership=owner)
    with mock.patch.object(Ranks, "__init__", side_effect=AssertionError("ranks were read again")):
        uc.clip_grad_norm_(given, 1.0, ownership=owner)


def test_ownership_of_a_hundred_thousand_ranks_takes_milliseconds(collectives: list[Any]) -> None:
    ranks = torch.arange(100_000).view(-1, 8)
    mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp"), _init_backend=False, _rank=0)
    column = DeviceMesh("cpu", ranks[:, 0], _init_backend=False, _rank=0)
    took = []
    for _ in range(3):
        begin = time.process_time()
        owner = mesh_ownership(mesh)
        assert owner(SimpleNamespace(device_mesh=column)) is False
        took.append(time.process_time() - begin)
    assert min(took) < 0.05


EXPERT, DENSE = "0.experts.weight", "0.dense.weight"


def experts(**owners: Any) -> float:
    """The norm of a plain expert beside FSDP2, of which each rank has 2 and 4 elements of 1."""
    named = [(DENSE, parameters(row(), Shard(0))[0]), (EXPERT, plain()[0])]
    return uc.clip_grad_norm_(named, 100.0, **owners).item() ** 2 / RANKS


def test_patterns_of_names_declare_the_ownership_of_some_parameters(collectives: list[Any]) -> None:
    mesh = rows()
    assert experts(ownership={"*.experts.*": "distinct"}) == pytest.approx(4 + 2)
    assert experts(ownership={"*.experts.*": "replicated"}) == pytest.approx(4)
    assert experts() == pytest.approx(4), "plain tensors beside FSDP2 are taken for copies"
    assert experts(ownership={"*.dense.*": "distinct"}) == pytest.approx(4)
    assert experts(ownership={"*.weight": "replicated", "*.experts.*": "distinct"}) == pytest.approx(4)
    assert experts(ownership={"*.experts.*": mesh_ownership(mesh, distinct="shard")}) == pytest.approx(4 + 2)
    assert experts(ownership={"*.experts.*": mesh_ownership(mesh, distinct="replicate")}) == pytest.approx(4)


def test_patterns_need_names_that_they_match(collectives: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"the pattern '\*\.expert\.\*' .* matches no parameter .* '0\.dense\.weight'"):
        experts(ownership={"*.expert.*": "distinct"})
    with pytest.raises(ValueError, match=r"position 0 has no name\. Pass model\.named_parameters\(\)"):
        uc.clip_grad_norm_(plain(), 1.0, process_group=dist.group.WORLD, ownership={"*.experts.*": "distinct"})
    part = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))["tp"]
    wrong = mesh_ownership(DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",), _init_backend=False, _rank=1))
    with pytest.raises(ValueError, match=r"ownership is for a device mesh with the ranks \[0, 1\]"):
        experts(ownership={"*.experts.*": wrong})
    with pytest.raises(ValueError, match="on 4 of them"):
        uc.clip_grad_norm_(
            [("a", parameters(part, Shard(0))[0]), ("b", parameters(row(), Shard(0))[0])],
            1.0,
            ownership={"b": "distinct"},
        )


# -- lists of parameters that an earlier call has checked

Parameters = list[Any]


def grow(given: Parameters) -> Parameters:
    return [*given, *parameters(rows(), Replicate(), Shard(1), number=1)]


def lay_out_anew(given: Parameters) -> Parameters:
    """Another placement of one gradient, of which this rank is not the first."""
    given[0].grad = parameters(given[0].device_mesh, Shard(0), Replicate(), number=1)[0].grad
    return given


def lose_placements(given: Parameters) -> Parameters:
    given[0].grad = torch.ones(given[0].shape)
    return given


def lose_a_gradient(given: Parameters) -> Parameters:
    given[1].grad = None
    return given


def use_main_grad(given: Parameters) -> Parameters:
    given[2].main_grad = torch.ones(2)
    return given


def leave_one_out(given: Parameters) -> Parameters:
    given[1].need_clip = False
    return given


def share_memory(given: Parameters) -> Parameters:
    given[1].grad = given[0].grad
    return given


def replace_all(given: Parameters) -> Parameters:
    """The same addresses, as far as Python reuses them."""
    given.clear()
    return parameters(rows(), Replicate(), Replicate())


def change_nothing(given: Parameters) -> Parameters:
    return list(given)


def renew_gradients(given: Parameters) -> Parameters:
    for parameter in given:
        parameter.grad = None if parameter.grad is None else parameter.grad.clone()
    return given


def replace_all_but_one(given: Parameters) -> Parameters:
    given[1:] = parameters(given[0].device_mesh, Replicate(), Shard(0), number=5)
    given[2].grad = None
    return given


CHANGES: dict[Callable[[Parameters], Parameters], bool] = {
    change_nothing: True,
    renew_gradients: True,
    grow: False,
    lay_out_anew: False,
    lose_placements: False,
    lose_a_gradient: False,
    use_main_grad: False,
    leave_one_out: False,
    share_memory: False,
    replace_all: False,
    replace_all_but_one: False,
    lambda given: given[1:]: False,
}
"""What may change after a clip, and whether the list is still the one that was checked."""


def outcome(given: Parameters, groups: list[Any], **declared: Any) -> Any:
    """The norm, the gradients and the collectives of a clip, or the error."""
    groups.clear()
    try:
        norm = uc.clip_grad_norm_(given, 1.0, **declared).item()
    except (ValueError, RuntimeError) as error:
        return str(error)
    gradients = [parameter.grad for parameter in given]
    return norm, [None if g is None else getattr(g, "_local_tensor", g).tolist() for g in gradients], list(groups)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_list_is_checked_again_if_anything_has_changed(
    collectives: list[Any], change: Callable[[Parameters], Parameters]
) -> None:
    found = []
    for forgets in (False, True):
        given: Parameters = parameters(rows(), Replicate(), Shard(0))
        given[2].grad = None
        uc.clip_grad_norm_(given, 1.0)
        given = change(given)
        with mock.patch.object(sharded.TorchShards, "recalled", wraps=sharded.TorchShards.recalled) as recalled:
            if forgets:
                checked_lists._CHECKED = KeptByIdentity()
            found.append(outcome(given, collectives))
        assert recalled.called is (CHANGES[change] and not forgets and KERNELS is not None)
    assert found[0] == found[1]


def test_another_declaration_is_checked_again(collectives: list[Any]) -> None:
    mesh = rows()
    given = parameters(mesh, Replicate(), Shard(0), number=3) + parameters(mesh["shard"], Shard(0), number=3)
    declarations: list[dict[str, Any]] = [
        {"ownership": "replicated"},
        {"ownership": "distinct"},
        {"ownership": mesh_ownership(mesh)},
        {"ownership": mesh_ownership(mesh, distinct="replicate")},
        {"ownership": mesh_ownership(mesh, also_elsewhere=given[:1])},
        {"process_group": mesh["shard"]},
        {"ownership": "distinct", "check_numel": 5},
    ]
    for declared in declarations * 2:
        found = []
        for forgets in (False, True):
            for parameter in given:
                parameter.grad.fill_(1.0)  # type: ignore[union-attr]
            if forgets:
                checked_lists._CHECKED = KeptByIdentity()
            found.append(outcome(given, collectives, **declared))
        assert found[0] == found[1]
    assert "5 expected" in found[0]


@pytest.mark.parametrize("kind", ["a function", "a rule of also_elsewhere"])
def test_functions_of_the_caller_are_called_at_each_clip(collectives: list[Any], kind: str) -> None:
    mesh, counts = rows(), [True]
    rule = mesh_ownership(mesh, "replicate", also_elsewhere=lambda parameter: not counts[0])
    given = parameters(mesh["shard"], Shard(0))
    owner = (lambda parameter: counts[0]) if kind == "a function" else rule
    assert uc.clip_grad_norm_(given, 100.0, process_group=dist.group.WORLD, ownership=owner) > 0
    counts[0] = False
    assert uc.clip_grad_norm_(given, 100.0, process_group=dist.group.WORLD, ownership=owner) == 0


def test_a_list_is_not_kept_alive(collectives: list[Any]) -> None:
    given = parameters(rows(), Replicate(), Shard(0))
    uc.clip_grad_norm_(given, 1.0)
    alive = weakref.ref(given[0])
    del given
    gc.collect()
    assert alive() is None
