"""Collectives, groups and devices of a clip on one rank of many, counted with PyTorch's fake process groups."""

from __future__ import annotations

import gc
import math
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.torch_fake_ranks import RANKS, fake_all_reduces, parameters, plain, row, rows, without_groups
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import unified_clip.torch as uc
from unified_clip._backends.torch import process_group, sharded
from unified_clip._core.distributed import DistributedSpec
from unified_clip._core.types import Leaf
from unified_clip.ownership import mesh_ownership


@pytest.fixture
def collectives() -> Iterator[list[Any]]:
    with fake_all_reduces() as groups:
        yield groups


def hsdp(mesh: DeviceMesh) -> list[nn.Parameter]:
    return parameters(mesh, Replicate(), Shard(0))


WORLD = "WORLD"


def cube(*shape: int) -> DeviceMesh:
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard", "tp"))


LAYOUTS: dict[str, tuple[str, list[str]]] = {
    "DDP": ("plain", []),
    "all Replicate": ("2x4 R R", []),
    "all Replicate, two meshes": ("2x4 R R, 8 R", []),
    "FSDP2": ("8 S0", [WORLD]),
    "HSDP": ("2x4 R S0", ["shard"]),
    "HSDP without gradients": ("2x4 R S0 without 6", ["shard"]),
    "HSDP without some gradients": ("2x4 R S0 without 3", ["shard"]),
    "HSDP beside Replicate": ("2x4 R R, 2x4 R S0", ["shard"]),
    "HSDP beside Replicate on another mesh": ("8 R, 2x4 R S0", ["shard"]),
    "sharded along the first dimension": ("2x4 S0 R", ["replicate"]),
    "HSDP and tensor parallel, one rank of which": ("2x4x1 R S0 S1", ["shard"]),
    "HSDP of one copy": ("1x8x1 R S0 R", [WORLD]),
    "HSDP and tensor parallel": ("2x2x2 R S0 S1", ["shard", "tp"]),
    "HSDP and tensor parallel, each parameter along one dimension": ("2x2x2 R R S1, 2x2x2 R S0 R", ["shard", "tp"]),
    "the outer dimensions of three": ("2x2x2 S0 R S1", ["replicate", "tp"]),
    "three dimensions": ("2x2x2 S0 S1 S1", [WORLD]),
    "slices of a mesh": ("2x2x2 sliced R S0 S1, 2x2x2 sliced R S0 R", ["shard", "tp"]),
    "two dimensions": ("2x4 S0 S1", [WORLD]),
    "each along its own dimension": ("2x4 S0 R, 2x4 R S0", [WORLD]),
    "HSDP beside FSDP2": ("2x4 R S0, 8 S0", [WORLD]),
    "HSDP on two equal meshes": ("2x4 R S0, another 2x4 R S0", [WORLD]),
    "HSDP on a mesh without groups": ("groupless R S0", [WORLD]),
    "HSDP beside plain copies": ("2x4 R S0, plain", [WORLD]),
    "HSDP beside plain copies without gradients": ("2x4 R S0, plain without 1", [WORLD]),
}
"""Parameters, and the groups over which their norm is reduced. "2x4 R S0" are six parameters on a mesh of this shape,
copied along its first dimension and sharded along the second. "without 3": three of them have no gradient."""


def made(text: str, meshes: dict[str, DeviceMesh]) -> list[nn.Parameter]:
    """Return the parameters of one entry. Entries with the same shape are on the same mesh."""
    layout, _, number = text.partition(" without ")
    kind, *placements = layout.removeprefix("another ").split()
    is_sliced = placements[:1] == ["sliced"]
    if kind == "plain":
        params = plain()
    else:
        key = layout.partition(kind)[0] + kind
        shape = [] if kind == "groupless" else list(map(int, kind.split("x")))
        if key not in meshes:
            meshes[key] = {0: groupless, 1: row, 2: rows, 3: lambda: cube(*shape)}[len(shape)]()
        names: Any = meshes[key].mesh_dim_names
        kinds = [Replicate() if each == "R" else Shard(int(each[1:])) for each in placements[is_sliced:]]
        params = parameters(meshes[key][names] if is_sliced else meshes[key], *kinds)
    for parameter in params[: int(number or 0)]:
        parameter.grad = None
    return params


def groupless() -> DeviceMesh:
    return without_groups(torch.arange(RANKS).view(2, 4), "dp", "tp")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_norm_is_reduced_over_the_dimensions_that_shard(collectives: list[Any], layout: str) -> None:
    """The norm is reduced over one dimension after the other, or over all ranks. No group is created."""
    text, expected = LAYOUTS[layout]
    meshes: dict[str, DeviceMesh] = {}
    params = [parameter for entry in text.split(", ") for parameter in made(entry, meshes)]
    with mock.patch.object(dist, "new_group", side_effect=AssertionError("a group was made")):
        uc.clip_grad_norm_(params, 1.0)
    mesh = meshes.get(next((kind for kind in meshes if "x" in kind), ""))
    groups = [dist.group.WORLD if name == WORLD else mesh and mesh.get_group(name) for name in expected]
    assert collectives == groups


@pytest.mark.parametrize(
    "keywords",
    [
        {"process_group": WORLD}, {"ownership": "replicated"}, {"ownership": "distinct"},
        {"ownership": {"*": "distinct"}}, {"ownership": mesh_ownership}, {"check_replicas": True},
    ],
    ids=str,
)  # fmt: skip
def test_declared_ownership_reduces_over_all_ranks(collectives: list[Any], keywords: dict[str, Any]) -> None:
    mesh = rows()
    keywords = {name: mesh_ownership(mesh) if value is mesh_ownership else value for name, value in keywords.items()}
    keywords = {name: dist.group.WORLD if value == WORLD else value for name, value in keywords.items()}
    named = [(str(number), parameter) for number, parameter in enumerate(hsdp(mesh))]
    uc.clip_grad_norm_(named, 1.0, **keywords)
    assert collectives == [dist.group.WORLD]


def test_the_norm_of_a_list_of_gradients_needs_all_ranks(collectives: list[Any]) -> None:
    """A rank that lacks a gradient does not know its placements."""
    params = hsdp(rows())
    uc.get_total_norm([parameter.grad for parameter in params])
    uc.global_norm([None, *(parameter.grad for parameter in params)])
    uc.GradientClipByGlobalNorm(1.0)([(parameter, parameter.grad) for parameter in params])
    mesh = params[0].device_mesh  # type: ignore[attr-defined]
    assert collectives == [dist.group.WORLD, dist.group.WORLD, mesh.get_group("shard")]


@pytest.mark.parametrize(
    ("of_parameters", "of_gradients", "expected"),
    [
        ((Replicate(), Shard(0)), (Replicate(), Partial()), ["shard"] * 2),
        ((Replicate(), Replicate()), (Replicate(), Partial()), ["shard"] * 2),
        ((Replicate(), Shard(0)), (Partial(), Shard(0)), [WORLD, "replicate", WORLD]),
        ((Replicate(), Replicate()), (Partial(), Partial()), [WORLD, WORLD]),
        ((Replicate(), Shard(0)), (Shard(0), Shard(1)), [WORLD]),
    ],
)
def test_gradients_may_need_more_ranks_than_their_parameters(
    collectives: list[Any], of_parameters: Any, of_gradients: Any, expected: list[str]
) -> None:
    """Six `Partial` gradients share the all-reduces of their terms."""
    mesh = rows()
    params = parameters(mesh, *of_parameters)
    for parameter, source in zip(params, parameters(mesh, *of_gradients), strict=True):
        parameter.grad = source.grad
    uc.clip_grad_norm_(params, 1.0)
    assert [name for group in collectives for name in names(mesh, group)] == expected


def names(mesh: DeviceMesh, group: Any) -> list[str]:
    return [name for name in mesh.mesh_dim_names or () if mesh.get_group(name) is group] or [WORLD]


def test_a_clip_checks_the_number_of_elements_over_the_shards(collectives: list[Any]) -> None:
    """Each of 4 ranks has 4 elements of each of 6 gradients, so a gradient has 16 elements."""
    params = parameters(rows(), Replicate(), Shard(0), length=1)
    assert uc.clip_grad_norm_(params, 1e9, check_numel=True) == (6 * 16) ** 0.5
    with pytest.raises(ValueError, match="the ranks own 96 gradient elements together, and check_numel expects 95"):
        uc.clip_grad_norm_(params, 1e9, check_numel=95)
    assert {dist.get_world_size(group) for group in collectives} == {4}


def test_process_group_may_be_the_shard_dimension_of_hsdp(collectives: list[Any]) -> None:
    mesh = rows()
    params = parameters(mesh, Replicate(), Shard(0))
    expected = uc.get_total_norm([parameter.grad for parameter in params], process_group=dist.group.WORLD)
    norm = uc.clip_grad_norm_(params, 1.0, process_group=mesh["shard"])
    assert collectives == [dist.group.WORLD, mesh.get_group("shard")]
    assert norm * 2**0.5 == pytest.approx(expected.item())  # in the fake group WORLD, every rank owns its shard
    with pytest.raises(
        ValueError, match=r"with the ranks \[0, 1, 2, 3, 4, 5, 6, 7\], but process_group has .* \[1, 5\]"
    ):
        uc.clip_grad_norm_(params, 1.0, process_group=mesh["replicate"])


@pytest.mark.parametrize(
    ("types", "bound", "mesh", "backend", "device"),
    [
        (["cpu"], None, "cpu", "gloo", "cpu"),
        (["cuda"], None, "cuda", "nccl", "cuda"),
        (["cuda"], None, None, "nccl", "cuda"),
        (["cpu", "cuda"], None, None, "nccl", "cpu"),
        (["cpu", "cuda"], None, "cpu", "nccl", "cpu"),
        (["cpu", "cuda"], None, "cuda", "nccl", "cuda"),
        (["cpu", "cuda"], None, "cuda", "gloo", "cpu"),
        (["cpu", "cuda"], "cuda:3", "cuda", "nccl", "cuda:3"),
        (["cpu", "cuda"], "cuda:3", None, "nccl", "cuda:3"),
        (["cpu", "cuda"], "cuda:3", "cuda", "gloo", "cpu"),
        (["cpu"], "cuda:3", "cuda", "nccl", "cpu"),
    ],
)
def test_the_group_and_the_mesh_choose_the_device_of_collectives(
    types: list[str], bound: str | None, mesh: str | None, backend: str, device: str
) -> None:
    """`device_id` of `init_process_group` binds a group to a GPU. A mesh has the type of its devices."""
    group = SimpleNamespace(
        _device_types=[torch.device(name) for name in types],
        bound_device_id=bound and torch.device(bound),
        _get_backend=lambda _: SimpleNamespace(name=lambda: backend),
    )
    beside = SimpleNamespace(device_mesh=SimpleNamespace(device_type=mesh))
    assert process_group.device_of(group, [torch.ones(2), *[beside] * (mesh is not None)]) == torch.device(device)


def test_a_group_has_the_attributes_that_choose_a_device(collectives: list[Any]) -> None:
    world: Any = dist.group.WORLD
    assert process_group.device_of(world, []) == torch.device("cpu")
    world.bound_device_id = torch.device("cuda:1")
    groups = [world, dist.new_group([0, 1])]
    assert [process_group.device_of(group, []) for group in groups] == [torch.device("cuda:1")] * 2


def test_process_group_may_be_a_mesh_of_several_dimensions(collectives: list[Any]) -> None:
    mesh = cube(2, 2, 2)
    params = parameters(mesh, Replicate(), Shard(0), Shard(1))
    keywords: list[dict[str, Any]] = [{}, {"process_group": mesh["shard", "tp"]}, {"process_group": mesh["tp"]}]
    norms = [uc.clip_grad_norm_(params, math.inf, **options).item() for options in keywords[:2]]
    assert norms == [np.sqrt(np.float32(6 * 4 * 4))] * 2, "6 parameters with 4 elements on each of 4 ranks"
    assert collectives == [mesh.get_group("shard"), mesh.get_group("tp")] * 2
    keys = [shards_of(params, **options).group().key for options in keywords]
    assert keys[0] is keys[1] is not keys[2]
    with pytest.raises(
        ValueError, match=r"with the ranks \[0, 1, 2, 3, 4, 5, 6, 7\], but process_group has .* \[0, 1\]"
    ):
        uc.clip_grad_norm_(params, 1.0, **keywords[2])


def test_the_groups_of_a_mesh_are_freed_with_it(collectives: list[Any]) -> None:
    groups = weakref.ref(shards_of(parameters(cube(2, 2, 2), Replicate(), Shard(0), Shard(1))).group().key)
    assert groups() is not None
    dist.destroy_process_group()
    try:
        gc.collect()
        assert groups() is None
    finally:
        dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=RANKS)


def shards_of(params: list[nn.Parameter], **keywords: Any) -> sharded.TorchShards:
    leaves = [Leaf(parameter.grad, position, None, parameter) for position, parameter in enumerate(params)]
    return sharded.TorchShards(leaves, leaves, DistributedSpec(**keywords))


def test_ownership_of_a_hundred_thousand_ranks_takes_milliseconds(collectives: list[Any]) -> None:
    ranks = torch.arange(100_000).view(-1, 8)
    mesh, column = without_groups(ranks, "dp", "tp", rank=0), without_groups(ranks[:, 0], rank=0)
    durations = []
    for _ in range(3):
        begin = time.process_time()
        owner = mesh_ownership(mesh)
        assert owner(SimpleNamespace(device_mesh=column)) is False
        durations.append(time.process_time() - begin)
    assert min(durations) < 0.05


def test_a_model_can_be_moved_after_a_clip(collectives: list[Any]) -> None:
    """PyTorch then swaps DTensor parameters. It raises an error if there is a weak reference to them."""
    model = nn.Module()
    model.weight = parameters(row(), Shard(0))[0]
    uc.clip_grad_norm_(list(model.parameters()), 1.0)
    assert model.to(torch.float64).weight.dtype == torch.float64


def test_an_equal_mesh_that_is_passed_later_has_its_own_group(collectives: list[Any]) -> None:
    first, second = rows(), rows()
    assert first == second
    params = hsdp(first)
    for mesh in (first, second):
        uc.clip_grad_norm_(params, 1.0, process_group=mesh["shard"])
    assert collectives == [first.get_group("shard"), second.get_group("shard")]
