"""JAX: with `process_group`, some of the processes compute a norm. Groups that lack shards are rejected."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import reference
from support.kits import Kit
from support.processes import jax_groups
from support.processes.worlds import World
from support.rank_tables import rows_of
from support.tiers import nightly

import unified_clip.numpy as np_uc
from unified_clip._backends.jax import sharded


@pytest.fixture(autouse=True)
def _eager_is_exact(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("the exact results are those of eager calls on the host path")


@pytest.fixture
def four_ranks(rank_worlds: Callable[[int], World]) -> World:
    return rank_worlds(4)


def check_shards(array: np.ndarray, shards: dict[Any, np.ndarray]) -> None:
    for place, shard in shards.items():
        np.testing.assert_array_equal(shard, array[tuple(slice(*along) for along in place)], strict=True)


HALVES = [(0, 1), (0, 1), (2, 3), (2, 3)]


@pytest.mark.parametrize("p", [2.0, math.inf, *nightly(1.0)])
@pytest.mark.parametrize("group", ["indices", "a tuple of indices", "a mesh"])
@pytest.mark.parametrize("ranks", ["all", "half"])
def test_two_of_four_processes_have_the_norm_of_one(four_ranks: World, ranks: str, group: str, p: float) -> None:
    """The model has a copy on each half of the processes, or each half has its own model."""
    for rank, clip in enumerate(four_ranks.run(jax_groups.clip_model, ranks, group, p)):
        expected = jax_groups.model(ranks, rank)
        n = reference.norm(expected, p)
        assert clip.norm == float(np_uc.clip_grad_norm_(expected, 1.5, p)) == n
        for array, shards in zip(expected, clip.shards, strict=True):
            check_shards(array, shards)
        assert set(clip.ranks) == {HALVES[rank]}


@pytest.mark.parametrize("group", ["none given", "all indices"])
def test_a_group_may_have_all_processes(four_ranks: World, group: str) -> None:
    for clip in four_ranks.run(jax_groups.clip_model, "all", group, 2.0):
        assert (clip.norm, clip.ranks) == (reference.norm(jax_groups.model("all", 0)), [(0, 1, 2, 3)])


@pytest.mark.parametrize("spec", [("shard",), ("device", "shard"), (), ("device",)])
def test_an_array_is_clipped_by_its_own_norm_over_two_of_four_processes(four_ranks: World, spec: Any) -> None:
    (array, *_) = jax_groups.model("all", 0)
    for shards in four_ranks.run(jax_groups.clip_by_own_norm, array, spec, "indices"):
        check_shards(np_uc.clip_by_norm(array, 1.5), shards)


@pytest.mark.parametrize(
    ("declared", "committed", "norm"),
    [({"ownership": "distinct"}, True, math.sqrt(50)), ({"ownership": "replicated"}, True, 5.0), ({}, False, 5.0)],
)
def test_own_arrays_of_processes_count_by_their_ownership(
    four_ranks: World, declared: dict[str, Any], committed: bool, norm: float
) -> None:
    norms = four_ranks.run(jax_groups.norm_of_own, "indices", committed, False, declared)
    assert norms == [float(np.float32(norm))] * 4


def test_a_group_of_one_process_needs_no_other_process(four_ranks: World) -> None:
    assert four_ranks.run(jax_groups.clipped_by_the_first) == [5.0, None, None, None]


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
    for failure in four_ranks.attempt(jax_groups.clip_model, "all", group, 2.0):
        assert re.search(message, str(failure)), str(failure)


def test_a_process_that_is_not_in_the_group_is_named(four_ranks: World) -> None:
    here = four_ranks.attempt(jax_groups.norm_of_own, "the first two processes", False, False, {})
    assert here[:2] == [5.0, 5.0]
    for rank, failure in enumerate(here[2:], 2):
        assert f"rank {rank} is not in process_group, which has the ranks [0, 1]. Pass a group with" in str(failure)


def test_a_group_without_the_processes_of_an_array_is_rejected(four_ranks: World) -> None:
    for failure in four_ranks.attempt(jax_groups.norm_of_the_other_half):
        assert "Pass a group of all ranks that have the model" in str(failure)


def test_copies_in_a_group_are_compared(four_ranks: World) -> None:
    failures = four_ranks.attempt(jax_groups.norm_of_own, "indices", False, True, {})
    for failure in failures:
        assert "plain gradients differ between ranks: position 0. " in str(failure)
    assert four_ranks.run(jax_groups.replicas, "indices", None) == [5.0] * 4
    drifted = four_ranks.attempt(jax_groups.replicas, "indices", 3)
    assert drifted[:2] == [5.0, 5.0], "the other group has other copies"
    for failure in drifted[2:]:
        assert rows_of(str(failure))["position 0"].keys() == {2, 3}
    for failure in four_ranks.attempt(jax_groups.replicas, "a mesh", None):
        assert "at position 0, but some copies are on ranks outside process_group. Leave process_group" in str(failure)


def test_an_error_reaches_the_processes_of_the_group(four_ranks: World) -> None:
    for rank, (error, norm) in enumerate(four_ranks.run(jax_groups.rejected_in_a_half)):
        assert norm == 5.0
        own = "max_norm is nan"
        assert error.startswith([own, f"rank 0 rejected this call: ValueError: {own}", "", ""][rank])
        assert bool(error) == (rank < 2)


@pytest.mark.parametrize("group", ["indices", "a mesh"])
def test_traced_code_accepts_only_names_of_axes(four_ranks: World, group: str) -> None:
    for failure in four_ranks.attempt(jax_groups.traced, group):
        assert "which is not supported in traced code. Pass axis names of shard_map" in str(failure)


def test_a_new_job_has_new_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    group = sharded.group_of((0,))
    assert sharded.group_of((0,)) is group
    monkeypatch.setattr(sharded, "_job", lambda: (object(), 0))
    assert sharded.group_of((0,)) is not group
