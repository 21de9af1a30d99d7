"""Ranks compare the arguments and parameters of a call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.rank_tables import rows_of
from support.rank_threads import (
    BrokenGroup,
    Member,
    common_error,
    norm_of,
    norm_of_ones,
    run_ranks,
)

from unified_clip._compute.checksums import PIECES
from unified_clip._distributed.agreement import CALLS
from unified_clip._distributed.consensus import SUM_WORDS, Consensus

PAYLOAD = SUM_WORDS + 3 + 2 * PIECES
"""The number of integers in the first all-reduce of a call."""


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize(
    ("first_rank", "other_ranks", "expected"),
    [
        (
            {"compared": {"threshold": 1.0}}, {"compared": {"threshold": 1.0 + 2**-52}},
            ("threshold", "1.0", "1.0000000000000002"),
        ),
        ({"compared": {"threshold": 1.0}}, {}, ("threshold", "1.0", "None")),
        (
            {"compared": {"error_if_nonfinite": True}}, {"compared": {"error_if_nonfinite": False}},
            ("error_if_nonfinite", "True", "False"),
        ),
        ({"parameters": 7}, {"parameters": 8}, ("the number of parameters", "7", "8")),
        ({"parameters": 7}, {}, ("the number of parameters", "7", "None")),
        ({"numel": 2**40}, {"numel": 2**40 + 1}, ("the number of gradient elements", str(2**40), str(2**40 + 1))),
    ],
)  # fmt: skip
def test_a_difference_is_reported_with_the_value_of_each_rank(
    p: float, first_rank: Any, other_ranks: Any, expected: tuple[str, str, str]
) -> None:
    array = np.ones(2, np.float32)
    message = common_error(3, lambda group: norm_of(group, [array], p, **(other_ranks if group.rank else first_rank)))
    name, first, other = expected
    assert message.startswith(f"the ranks disagree about {name}. No gradient was changed.")
    assert rows_of(message) == {name: {0: first, 1: other, 2: other}}


@pytest.mark.parametrize(
    "orders",
    [(2.0, math.inf), (math.inf, 2.0), (3.0, 1.0), (None, 2.0), (2.0, None), (None, math.inf), (math.inf, None)],
)
@pytest.mark.parametrize("combine", [sum, max])
def test_orders_that_differ_are_found_with_any_collective(orders: Any, combine: Any, monkeypatch: Any) -> None:
    """Some ranks sum, others take the maximum or measure per tensor (None). `combine`: the collective that runs."""

    def total(member: Member, numbers: Sequence[int]) -> list[int]:
        return member.all_reduce(numbers, combine if len(numbers) == PAYLOAD else sum)  # later collectives are sums

    monkeypatch.setattr(Member, "all_reduce_max", lambda member, numbers: member.all_reduce(numbers, combine))
    monkeypatch.setattr(Member, "all_reduce_sum", total)
    array = np.ones(2, np.float32)

    def run(group: Member) -> Any:
        p = orders[group.rank > 0]
        return Consensus(group).compare() if p is None else norm_of(group, [array], p)

    message = common_error(3, run)
    assert rows_of(message)["norm_type"] == {0: str(orders[0]), 1: str(orders[1]), 2: str(orders[1])}


def test_a_message_about_many_ranks_is_short() -> None:
    message = common_error(40, lambda group: norm_of(group, [np.ones(1)], 2.0, {"threshold": float(group.rank % 9)}))
    assert rows_of(message)["threshold"] == {rank: str(float(rank % 9)) for rank in range(36)}, (
        "four ranks for each value"
    )
    assert "ranks 0, 9, 18, 27 and others" in message
    assert len(message) < 1000


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_check_numel_counts_the_elements_of_all_ranks(p: float) -> None:
    shards = np.array_split(np.ones(7), 3)
    for expected in (7, 8):
        run = lambda group: norm_of(group, [shards[group.rank]], p, numel=expected)  # noqa: B023, E731
        if expected == 7:
            run_ranks(3, run)
        else:
            assert common_error(3, run).startswith("the ranks own 7 gradient elements together, and check")


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_only_ranks_with_parameter_names_compare_them(p: float) -> None:
    known = ["a [2]", "b [3]"]
    norms, _ = run_ranks(3, lambda group: norm_of_ones(group, p=p, names=None if group.rank == 1 else known))
    assert len(set(norms)) == 1
    message = common_error(3, lambda group: norm_of_ones(group, p=p, names=[known, None, ["a [2]", "b"]][group.rank]))
    assert rows_of(message) == {"the parameter at position 1": {0: "b [3]", 2: "b"}}
    assert len(set(run_ranks(2, lambda group: norm_of_ones(group, p=p))[0])) == 1
    message = common_error(2, lambda group: norm_of_ones(group, p=p, names=[known, known[::-1]][group.rank]))
    assert rows_of(message).keys() == {"the parameter at position 0", "the parameter at position 1"}


def test_a_difference_names_the_functions_that_the_ranks_called() -> None:
    def run(group: Member) -> None:
        name = "clip_by_global_norm" if group.rank else "clip_grad_norm_"
        Consensus(group, {"eps": 1e-6 if group.rank else 0.0}, remarks=lambda: {"function": name}).compare()

    names = {0: "clip_grad_norm_", 1: "clip_by_global_norm", 2: "clip_by_global_norm"}
    assert rows_of(common_error(3, run)) == {"eps": {0: "0.0", 1: "1e-06", 2: "1e-06"}, "function": names}


def test_gradients_that_are_missing_are_named_where_elements_are_counted() -> None:
    def run(group: Member) -> Any:
        return norm_of_ones(group, numel=0 if group.rank == 1 else 4, without=range(5) if group.rank == 1 else ())

    message = common_error(2, run)
    assert rows_of(message) == {
        "the number of gradient elements": {0: "4", 1: "0"},
        "parameters without a gradient": {0: "None", 1: "5 (position 0, position 1, position 2, ...)"},
    }
    assert "set gradients of zeros, or leave check_numel out" in message


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_calls_are_counted_per_group_so_a_skipped_call_is_found(p: float) -> None:
    def run(group: Member) -> list[str]:
        errors = []
        if group.rank == 1:
            with pytest.raises(ConnectionError) as caught:
                norm_of_ones(BrokenGroup(group), p=p)
            assert "Rank 1 of 3 waited for the other ranks" in str(caught.value.__notes__)
        for _ in range(2):
            with pytest.raises(ValueError) as differing:
                norm_of_ones(group, p=p)
            errors.append(str(differing.value))
        return errors

    for messages in run_ranks(3, run)[0]:
        for number, message in enumerate(messages, start=1):
            assert rows_of(message) == {CALLS: {0: str(number), 1: str(number + 1), 2: str(number)}}
            assert "A rank skipped a call" in message
