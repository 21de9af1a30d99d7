"""JAX: arrays that are sharded over several processes are clipped to the same bits as on one process."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import reference
from support.kits import Kit
from support.processes import jax_sharded
from support.processes.jax_sharded import assert_equal
from support.processes.worlds import World

import unified_clip.numpy as np_uc


@pytest.fixture(autouse=True)
def _eager_is_exact(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("the exact results are those of eager calls on the host path")


# -- two processes with two devices each


@pytest.fixture
def world(rank_worlds: Callable[[int], World]) -> World:
    return rank_worlds(2)


@pytest.mark.parametrize(
    ("committed", "options", "norm"),
    [(False, {}, 5.0), (True, {"ownership": "replicated"}, 5.0), (True, {"ownership": "distinct"}, math.sqrt(41.0))],
)
def test_an_array_of_one_process_beside_those_of_all(
    world: World, committed: bool, options: dict[str, Any], norm: float
) -> None:
    assert world.run(jax_sharded.norm_with_own_array, committed, options) == [float(np.float32(norm))] * 2


@pytest.mark.parametrize("mesh_is_set", [False, True])
def test_uncommitted_arrays_stay_uncommitted_also_where_a_mesh_is_set(world: World, mesh_is_set: bool) -> None:
    assert world.run(jax_sharded.clip_with_a_copy, mesh_is_set) == [(5.0, 2.5, [False, True])] * 2


@pytest.mark.parametrize("spec", [(), ("x",), (None, "x")])
def test_sparse_rows_over_several_processes(world: World, spec: tuple[Any, ...]) -> None:
    norm = reference.norm([np.array([[2, 2], [4, 4], [2, 2]], np.float32)])
    assert world.run(jax_sharded.norm_of_rows, spec, {}) == [norm] * 2


def test_sparse_rows_of_one_process(world: World) -> None:
    for ownership, squares in (("replicated", 68.0), ("distinct", 100.0)):
        norms = world.run(jax_sharded.norm_of_own_rows, {"ownership": ownership})
        assert norms == [float(np.float32(math.sqrt(squares)))] * 2


@pytest.mark.parametrize(
    ("spec", "drifted", "ranks"),
    [
        ((), 3, "ranks 0, 1"),
        (("x",), 3, "rank 1"),
        (("y",), 3, "rank 0"),
        ((("x", "y"),), 3, None),
        (("x",), 1, "rank 0"),
    ],
)
def test_check_replicas_compares_copies_on_devices(world: World, spec: Any, drifted: int, ranks: str | None) -> None:
    assert world.run(jax_sharded.replicas, spec, None) == [reference.norm([np.arange(4, dtype=np.float32)])] * 2
    for failure in world.attempt(jax_sharded.replicas, spec, drifted):
        if ranks is None:
            assert isinstance(failure, float), "no device has a copy of another's shard"
        else:
            place = r"position 0 \(parameter 'weight'\)"
            assert re.search(rf"copies of gradients differ between ranks: {place}\. ", str(failure))
            for where in (f"rank {drifted // 2}", ranks):
                assert re.search(rf"^  {place} +{where} \(.*\) +.* checksum \w+$", str(failure), re.MULTILINE)


NEEDS_OWNERSHIP = "is only on devices of rank [01]. Pass ownership"


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        ("norm_with_own_array", (True, {}), NEEDS_OWNERSHIP),
        ("replicas_on_some", ("replicated",), "position 0 is on only some of these ranks. Leave check_replicas out"),
        ("norm_of_four", ({"process_group": None},), "process_group is None, but other processes have shards"),
        ("norm_of_rows", (("x",), {"process_group": None}), "process_group is None, but other processes have shards"),
        ("clipped_by_own_norm", ({"process_group": None},), "process_group is None, but other processes have shards"),
        ("norm_of_own_rows", ({},), NEEDS_OWNERSHIP),
        (
            "norm_of_arrays_of_each",
            (),
            "ownership is 'replicated', but .* only on .*: rank [01] has no copy. Pass ownership='distinct'",
        ),
        ("clip_within_bounds", (), r"a bound has shape \[4\], and the gradient is distributed. Pass"),
    ],
)
def test_errors_are_raised_on_every_process(world: World, function: str, args: tuple[Any, ...], message: str) -> None:
    for failure in world.attempt(getattr(jax_sharded, function), *args):
        assert re.search(message, str(failure))


def test_uncommitted_arrays_with_other_bits_on_a_rank_are_no_copies(world: World) -> None:
    message = r"plain gradients differ between ranks: position 1\. (?s:.*) Pass ownership='replicated'"
    for failure in world.attempt(jax_sharded.norm_with_unequal_copy, {}):
        assert re.search(message, str(failure))
    norm = reference.norm([np.array([3.0, 4.0, 3.0, 4.0], np.float32)])
    assert world.run(jax_sharded.norm_with_unequal_copy, {"ownership": "distinct"}) == [norm] * 2


# -- three processes, and arrays on the devices of some processes


@pytest.fixture
def three_ranks(rank_worlds: Callable[[int], World]) -> World:
    return rank_worlds(3)


FIRST, SECOND = np.array([3.0, 0.0, 0.0, 4.0], np.float32), np.array([0.0, 12.0, 0.0, 0.0], np.float32)


def join_gradients(kind: str, shards: list[list[np.ndarray]]) -> list[np.ndarray]:
    if kind == "listed by all":
        return [np.concatenate(gradient_shards) for gradient_shards in zip(*shards, strict=True)]
    return [*shards[0], np.concatenate([*shards[1], *shards[2]])]


@pytest.mark.parametrize(
    ("kind", "options", "norm"),
    [
        ("copies", {"ownership": "replicated", "check_numel": True}, 5.0),
        ("copies", {"ownership": jax_sharded.is_counted, "check_numel": 4}, 5.0),
        ("stages", {"ownership": "distinct", "check_numel": 8}, 13.0),
        ("listed by all", {"ownership": "distinct", "check_numel": True}, 13.0),
    ],
)
def test_ownership_declares_arrays_on_some_processes(
    three_ranks: World, kind: str, options: dict[str, Any], norm: float
) -> None:
    results = three_ranks.run(jax_sharded.clip_on_meshes_of_some, kind, FIRST, SECOND, 1.0, options)
    assert [rank_norm for rank_norm, _ in results] == [norm] * 3
    expected = [FIRST.copy(), (FIRST if kind == "copies" else SECOND).copy()]
    np_uc.clip_grads_with_norm_(expected, 1.0, norm)
    assert_equal(join_gradients(kind, [shards for _, shards in results]), expected)


def test_arrays_on_some_processes_need_ownership(three_ranks: World) -> None:
    message = "is only on devices of rank {}. Pass ownership"
    for failure in three_ranks.attempt(jax_sharded.clip_on_meshes_of_some, "listed by all", FIRST, SECOND, 1.0, {}):
        assert message.format("0") in str(failure) or message.format("1, 2") in str(failure)
    for failure in three_ranks.attempt(jax_sharded.clip_on_meshes_of_some, "copies", FIRST, SECOND, 1.0, {})[1:]:
        assert message.format("1, 2") in str(failure)


def test_check_numel_rejects_wrong_ownership(three_ranks: World) -> None:
    options = {"ownership": "distinct", "check_numel": True}
    for failure in three_ranks.attempt(jax_sharded.clip_on_meshes_of_some, "copies", FIRST, SECOND, 1.0, options):
        assert "the ranks own 8 gradient elements together, and check_numel expects 4" in str(failure)


@pytest.mark.parametrize("kind", ["copies", "stages", "listed by all"])
def test_the_norm_of_one_array_covers_the_processes_that_have_it(three_ranks: World, kind: str) -> None:
    results = three_ranks.run(jax_sharded.clip_on_meshes_of_some, kind, FIRST, SECOND, 1.0, None)
    expected = [np_uc.clip_by_norm(array, 1.0) for array in (FIRST, FIRST if kind == "copies" else SECOND)]
    assert_equal(join_gradients(kind, [shards for _, shards in results]), expected)


@pytest.mark.parametrize("devices", [1, 2])
def test_all_processes_have_the_norm_of_an_array_on_the_last_one(three_ranks: World, devices: int) -> None:
    assert three_ranks.run(jax_sharded.norm_of_an_array_on_the_last, FIRST, devices) == [5.0] * 3
