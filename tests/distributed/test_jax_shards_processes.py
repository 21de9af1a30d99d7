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
from support.processes.worlds import World
from support.rank_tables import rows_of

from unified_clip._backends.jax import sharded


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


@pytest.mark.parametrize(
    ("kind", "options", "norm"),
    [
        ("copies", {"ownership": jax_sharded.is_counted, "check_numel": 4}, 5.0),
        ("listed by all", {"ownership": "distinct", "check_numel": True}, 13.0),
    ],
)
def test_ownership_declares_arrays_on_some_processes(
    three_ranks: World, kind: str, options: dict[str, Any], norm: float
) -> None:
    assert three_ranks.run(jax_sharded.norm_on_meshes_of_some, kind, FIRST, SECOND, options) == [norm] * 3


def test_arrays_on_some_processes_need_ownership(three_ranks: World) -> None:
    message = "is only on devices of rank {}. Pass ownership"
    for failure in three_ranks.attempt(jax_sharded.norm_on_meshes_of_some, "listed by all", FIRST, SECOND, {}):
        assert message.format("0") in str(failure) or message.format("1, 2") in str(failure)
    for failure in three_ranks.attempt(jax_sharded.norm_on_meshes_of_some, "copies", FIRST, SECOND, {})[1:]:
        assert message.format("1, 2") in str(failure)


def test_check_numel_rejects_wrong_ownership(three_ranks: World) -> None:
    options = {"ownership": "distinct", "check_numel": True}
    for failure in three_ranks.attempt(jax_sharded.norm_on_meshes_of_some, "copies", FIRST, SECOND, options):
        assert "the ranks own 8 gradient elements together, and check_numel expects 4" in str(failure)


@pytest.mark.parametrize("devices", [1, 2])
def test_all_processes_have_the_norm_of_an_array_on_the_last_one(three_ranks: World, devices: int) -> None:
    assert three_ranks.run(jax_sharded.norm_of_an_array_on_the_last, FIRST, devices) == [5.0] * 3


# -- four processes: groups, and groups that lack shards


@pytest.fixture
def four_ranks(rank_worlds: Callable[[int], World]) -> World:
    return rank_worlds(4)


@pytest.mark.parametrize(
    ("declared", "committed", "norm"),
    [({"ownership": "distinct"}, True, math.sqrt(50)), ({"ownership": "replicated"}, True, 5.0), ({}, False, 5.0)],
)
def test_own_arrays_of_processes_count_by_their_ownership(
    four_ranks: World, declared: dict[str, Any], committed: bool, norm: float
) -> None:
    norms = four_ranks.run(jax_sharded.norm_of_own, "indices", committed, False, declared)
    assert norms == [float(np.float32(norm))] * 4


def test_a_group_of_one_process_needs_no_other_process(four_ranks: World) -> None:
    assert four_ranks.run(jax_sharded.clipped_by_the_first) == [5.0, None, None, None]


@pytest.mark.parametrize("group", ["none given", "a tuple of indices", "all indices"])
def test_a_group_may_be_given_in_several_ways(four_ranks: World, group: str) -> None:
    assert four_ranks.run(jax_sharded.norm_over, group) == [5.0] * 4


LACKS = r"on devices of the ranks \[0, 1, 2, 3\], but process_group has the ranks \[\d(, \d)?\]. Pass a group of all"


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("the other halves", LACKS),
        ("this process", LACKS),
        (
            "an axis",
            "is 'shard', but this call is not inside shard_map, where axes have names. Pass a jax.sharding.Mesh",
        ),
        ("a process too many", r"is range\(0, 5\), but there are 4 processes. Pass process indices from 0 to 3"),
        ("a negative index", r"is \[-1\], but there are 4 processes"),
        ("no axis", r"is \(\), which contains no process. To use only the gradients of this process, pass None"),
        ("a flag", r"TypeError: process_group is \[True\]. Pass the name of a mesh axis"),
        ("an array", r"TypeError: process_group is array\(\[0, 1\]\). Pass the name of a mesh axis"),
        (
            "devices",
            r"TypeError: process_group is \[.*\]. Pass the name of a mesh axis, .*several processes, outside of",
        ),
    ],
)
def test_groups_that_do_not_fit_are_an_error_on_every_process(four_ranks: World, group: str, message: str) -> None:
    for failure in four_ranks.attempt(jax_sharded.norm_over, group):
        assert re.search(message, str(failure)), str(failure)


def test_a_process_that_is_not_in_the_group_is_named(four_ranks: World) -> None:
    here = four_ranks.attempt(jax_sharded.norm_of_own, "the first two processes", False, False, {})
    assert here[:2] == [5.0, 5.0]
    for rank, failure in enumerate(here[2:], 2):
        assert f"rank {rank} is not in process_group, which has the ranks [0, 1]. Pass a group with" in str(failure)


def test_a_group_without_the_processes_of_an_array_is_rejected(four_ranks: World) -> None:
    for failure in four_ranks.attempt(jax_sharded.norm_of_the_other_half):
        assert "Pass a group of all ranks that have the model" in str(failure)


def test_copies_in_a_group_are_compared(four_ranks: World) -> None:
    failures = four_ranks.attempt(jax_sharded.norm_of_own, "indices", False, True, {})
    for failure in failures:
        assert "plain gradients differ between ranks: position 0. " in str(failure)
    assert four_ranks.run(jax_sharded.replicas_in_group, "indices", None) == [5.0] * 4
    drifted = four_ranks.attempt(jax_sharded.replicas_in_group, "indices", 3)
    assert drifted[:2] == [5.0, 5.0], "the other group has other copies"
    for failure in drifted[2:]:
        assert rows_of(str(failure))["position 0"].keys() == {2, 3}
    for failure in four_ranks.attempt(jax_sharded.replicas_in_group, "a mesh", None):
        assert "at position 0, but some copies are on ranks outside process_group. Leave process_group" in str(failure)


@pytest.mark.parametrize("group", ["indices", "a mesh"])
def test_traced_code_accepts_only_names_of_axes(four_ranks: World, group: str) -> None:
    for failure in four_ranks.attempt(jax_sharded.traced, group):
        assert "which is not supported in traced code. Pass axis names of shard_map" in str(failure)


def test_a_new_job_has_new_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    group = sharded.group_of((0,))
    assert sharded.group_of((0,)) is group
    monkeypatch.setattr(sharded, "_job", lambda: (object(), 0))
    assert sharded.group_of((0,)) is not group
