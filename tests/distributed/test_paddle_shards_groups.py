"""Paddle: with `process_group`, some of the processes compute a norm. Groups that lack shards are rejected."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import reference
from support.processes import paddle_groups
from support.processes.worlds import World
from support.tiers import nightly

import unified_clip.numpy as np_uc


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[World]:
    world = World(paddle_groups.start, 4)
    yield world
    world.close()


def assert_clipped(expected: list[np.ndarray], after: list[np.ndarray], rank: int) -> None:
    for number, (array, result) in enumerate(zip(expected, after, strict=True)):
        np.testing.assert_array_equal(result, paddle_groups.local_shard(array, number, rank), strict=True)


@pytest.mark.parametrize("p", [2.0, math.inf, *nightly(1.0)])
@pytest.mark.parametrize("group", paddle_groups.GROUPS)
@pytest.mark.parametrize("model", ["all", "half"])
def test_two_of_four_processes_have_the_norm_of_one(four_ranks: World, model: str, group: str, p: float) -> None:
    """The model has a copy on each half of the processes, or each half has its own model."""
    for rank, clip in enumerate(four_ranks.run(paddle_groups.clip_model, model, group, p, False)):
        expected = paddle_groups.model(model, rank)
        n = reference.norm(expected, p)
        assert clip.norm == float(np_uc.clip_grad_norm_(expected, 1.5, p)) == n
        assert_clipped(expected, clip.after, rank)
        needs_second = p == 2 or p == math.inf  # for the last bit of a number between two, or to count elements
        assert clip.ranks == [paddle_groups.HALVES[rank // 2]] * (1 + needs_second)


@pytest.mark.parametrize("model", ["all", "half"])
def test_each_gradient_is_clipped_by_its_own_norm_over_two_processes(four_ranks: World, model: str) -> None:
    for rank, clip in enumerate(four_ranks.run(paddle_groups.clip_model, model, "a group", 2.0, True)):
        expected = [np_uc.clip_by_norm(array, 1.5) for array in paddle_groups.model(model, rank)]
        assert_clipped(expected, clip.after, rank)
        assert len(clip.ranks) == 3, "to compare, to add up, and exactly, because a norm is between two numbers"
        assert clip.ranks == [paddle_groups.HALVES[rank // 2]] * 3


@pytest.mark.parametrize(
    ("ownership", "differs", "norm"),
    [("distinct", True, math.sqrt(125)), ("replicated", False, 5.0)],
)
def test_plain_gradients_of_each_process(four_ranks: World, ownership: str, differs: bool, norm: float) -> None:
    assert four_ranks.run(paddle_groups.norm_of_plain, ownership, differs) == [float(np.float32(norm))] * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (paddle_groups.norm_over_a_half_that_lacks_rows, "process mesh with the ranks [0, 1, 2, 3], but process_group"),
        (paddle_groups.norm_over_another_half, "is not in process_group, which has the ranks ["),
        (paddle_groups.norm_over_a_mesh_without_a_group, "a gradient is sharded over the ranks ["),
    ],
)
def test_groups_that_do_not_fit_are_an_error_on_every_process(four_ranks: World, call: Any, message: str) -> None:
    for failure in four_ranks.attempt(call):
        assert message in str(failure)


def test_an_error_reaches_the_processes_of_the_group(four_ranks: World) -> None:
    for rank, (error, norm) in enumerate(four_ranks.run(paddle_groups.rejected_in_a_half)):
        assert norm == reference.norm(paddle_groups.model("half", rank))
        own = "max_norm is nan"
        assert error.startswith([own, f"rank 0 rejected this call: ValueError: {own}", "", ""][rank])
        assert bool(error) == (rank < 2)
