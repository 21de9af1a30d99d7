"""PyTorch: `check_replicas=True` compares the copies of a gradient on four ranks."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from support.processes import torch_sharded_replicas as replicas
from support.processes.torch_sharded_replicas import CALLS, CASES, DRIFTED, copies_of
from support.processes.worlds import World
from support.rank_tables import ranks_by_value, rows_of
from support.tiers import nightly

Worlds = Callable[[int], World]


@pytest.mark.parametrize("p", [2.0, *nightly(1.0, 3.0, math.inf)])
@pytest.mark.parametrize("case", CASES)
def test_equal_copies_are_clipped(torch_worlds: Worlds, case: str, p: float) -> None:
    unchecked = torch_worlds(4).run(replicas.clip_and_check, case, None, p, False)
    results = torch_worlds(4).run(replicas.clip_and_check, case, None, p)
    assert [result.error for result in results] == [""] * 4
    assert [result.norm for result in results] == [result.norm for result in unchecked]
    assert not any(result.unchanged for result in results)


@pytest.mark.parametrize("p", [2.0, *nightly(1.0, 3.0, math.inf)])
@pytest.mark.parametrize("rank", [3, *nightly(0, 1, 2)])
@pytest.mark.parametrize("case", CASES)
def test_a_copy_that_drifted_is_named_on_all_ranks(torch_worlds: Worlds, case: str, rank: int, p: float) -> None:
    copies = copies_of(case, rank)
    results = torch_worlds(4).run(replicas.clip_and_check, case, rank, p)
    assert len({(result.error, result.unchanged) for result in results}) == 1
    error, unchanged = results[0].error, results[0].unchanged
    if len(copies) == 1:
        assert error == "", "there are no copies"
        return
    place = f"position 1 (parameter '{DRIFTED}')"
    assert error.startswith(f"copies of gradients differ between ranks: {place}. No gradient was changed.")
    assert sorted(ranks_by_value(error, place)) == sorted([[rank], [r for r in copies if r != rank]])
    assert unchanged


@pytest.mark.parametrize("name", CALLS)
def test_every_function_with_check_replicas_compares_copies(torch_worlds: Worlds, name: str) -> None:
    for error in torch_worlds(4).run(replicas.error_of, name, True):
        assert error.startswith("copies of gradients differ between ranks: position 0. No gradient was changed.")
        assert ranks_by_value(error, "position 0") == [[0, 1, 2], [3]]
    assert torch_worlds(4).run(replicas.error_of, name, False) == [""] * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (replicas.sparse_copies, "copies of gradients differ between ranks: position 0. "),
        (replicas.sparse_beside_a_mesh, "plain gradients differ between ranks: position 1. "),
    ],
)
def test_sparse_copies_with_other_rows_differ(torch_worlds: Worlds, call: Callable[[int], str], message: str) -> None:
    """Their values are equal."""
    for error in torch_worlds(4).run(call, 1):
        assert error.startswith(message)
        ((place, _),) = rows_of(error).items()
        assert ranks_by_value(error, place) == [[0, 1, 2], [3]]
    assert torch_worlds(4).run(call, 0) == [""] * 4


def test_the_comparison_needs_no_collective_of_its_own(torch_worlds: Worlds) -> None:
    assert [result.collectives for result in torch_worlds(4).run(replicas.clip_and_check, "HSDP", None)] == [1] * 4


def test_a_configuration_of_one_rank_that_rejects_its_gradients_stops_all_ranks_of_a_mesh(torch_worlds: Worlds) -> None:
    for number, error in enumerate(torch_worlds(4).run(replicas.reject_by_a_configuration, 1)):
        assert error.startswith("position 1 is int32" if number == 1 else "rank 1 rejected this call: TypeError: posit")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            replicas.error_by_a_function,
            "check_replicas cannot infer which ranks have copies of position 0: ownership is",
        ),
        (
            replicas.error_within_a_copy,
            "gradient at position 0 (parameter 'first.weight'), but some copies are on ranks outside process_group",
        ),
        (replicas.error_without_a_mesh, "Pass process_group as well, such as torch.distributed.group.WORLD"),
        (replicas.error_of_this_process, "check_replicas is True, but process_group=None means this process alone"),
    ],
)
def test_copies_that_cannot_be_compared_are_an_error(
    torch_worlds: Worlds, call: Callable[[], str], message: str
) -> None:
    for error in torch_worlds(4).run(call):
        assert message in error
