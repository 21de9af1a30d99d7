"""PyTorch: all ranks raise if no rank owns a gradient. A call with a correct norm does not raise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pytest
from support.processes import torch_sharded_uncounted as uncounted
from support.processes.torch_sharded_uncounted import LAYOUTS
from support.processes.worlds import World
from support.rank_tables import rows_of
from support.tiers import nightly
from torch.distributed.tensor import Replicate, Shard

Worlds = Callable[[int], World]


def correct(results: Sequence[Any], squares: float) -> bool:
    return [(result.norm, result.error) for result in results] == [(np.float32(squares**0.5), "")] * len(results)


@pytest.mark.parametrize("p", [2.0, *nightly(1.0)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_gradient_that_the_counting_rank_lacks_raises_on_its_ranks(torch_worlds: Worlds, name: str, p: float) -> None:
    results = torch_worlds(4).run(uncounted.clip_without, name, LAYOUTS[name].first, p)
    named = "position 2 (or another gradient of the same size)" if "stages, without" in name else "position 1"
    results = results[2:] if "group" in name else results
    assert len({result.error for result in results}) == 1
    assert results[0].error.startswith(f"no rank owns the gradient at {named}")
    ((place, row),) = rows_of(results[0].error).items()
    assert place.startswith(named)
    assert {row[rank] for rank in LAYOUTS[name].first if rank in row} <= {"None"}
    assert "a gradient" in row.values()
    assert all(result.unchanged for result in results)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_gradient_that_no_rank_has_needs_no_further_collective(torch_worlds: Worlds, name: str) -> None:
    complete = torch_worlds(4).run(uncounted.clip_without, name, [])
    without = torch_worlds(4).run(uncounted.clip_without, name, range(4))
    assert {result.error for result in (*complete, *without)} == {""}
    assert {result.collectives for result in (*complete, *without)} == {1}
    assert without[0].norm == pytest.approx(complete[0].norm * (2 / 3) ** 0.5)


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.first != [3]])
def test_a_gradient_that_a_later_rank_lacks_is_counted(torch_worlds: Worlds, name: str) -> None:
    complete = torch_worlds(4).run(uncounted.clip_without, name, [])
    lacking = torch_worlds(4).run(uncounted.clip_without, name, [3])
    assert [(result.norm, result.error) for result in lacking] == [(result.norm, "") for result in complete]


def test_a_tied_parameter_counts_on_the_earlier_stage(torch_worlds: Worlds) -> None:
    assert correct(torch_worlds(4).run(uncounted.clip_a_tied_parameter), 5 + 2)


def test_a_rank_may_lack_gradients_that_differ_between_ranks(torch_worlds: Worlds) -> None:
    assert correct(torch_worlds(4).run(uncounted.clip_distinct_beside_copies), 4 + 3 * 3)


@pytest.mark.parametrize(("placement", "squares"), [(Replicate(), 2 * 4), (Shard(0), 4 * 4)])
def test_stages_may_have_different_frozen_parameters(torch_worlds: Worlds, placement: Any, squares: float) -> None:
    assert correct(torch_worlds(4).run(uncounted.clip_frozen, placement), squares)


def test_ranks_of_a_stage_may_list_parameters_in_another_order(torch_worlds: Worlds) -> None:
    assert correct(torch_worlds(4).run(uncounted.clip_in_another_order), 2 * 7)


@pytest.mark.parametrize("has_tokens", [(True, True), (False, True), (True, False), (False, False)])
def test_experts_may_have_no_gradient(torch_worlds: Worlds, has_tokens: Sequence[bool]) -> None:
    assert correct(torch_worlds(4).run(uncounted.clip_experts, has_tokens), 4 * 4 + 3 * sum(has_tokens))


@pytest.mark.parametrize(
    ("ranks", "placement", "squares"),
    [
        ([0], Replicate(), 7), ([0, 2], Replicate(), 14), ([0, 1], Shard(0), 14), ([0, 1, 2, 3], Shard(0), 28),
        ([2, 3], Replicate(), 7), ([0], Shard(0), 7),
    ],
)  # fmt: skip
def test_the_ranks_of_a_function_are_not_checked(
    torch_worlds: Worlds, ranks: Sequence[int], placement: Any, squares: float
) -> None:
    assert correct(torch_worlds(4).run(uncounted.clip_by_function, ranks, placement), squares)


@pytest.mark.parametrize("lacking", [[], [0, 1], [2, 3], [0, 1, 2, 3]])
def test_copies_of_partial_sums_are_not_checked(torch_worlds: Worlds, lacking: Collection[int]) -> None:
    results = torch_worlds(4).run(uncounted.clip_partial_sums, lacking)
    assert {result.error for result in results} == {""}
