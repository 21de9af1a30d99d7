"""Ranks compare the arguments and parameters of a call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.rank_threads import (
    BrokenGroup,
    Member,
    common_error,
    norm_of,
    norm_of_ones,
    run_ranks,
)

from unified_clip._core.exact import WORDS
from unified_clip._distributed import consensus
from unified_clip._distributed.consensus import Call, Consensus

PAYLOAD = WORDS + 1 + consensus.CHECKED + 2 + consensus.COMPARED
"""The number of integers in the first all-reduce of a call."""


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize(
    ("first_rank", "other_ranks", "expected"),
    [
        ({"compared": {"threshold": 1.0}}, {"compared": {"threshold": 1.0 + 2**-52}}, "1.0000000000000002 on ranks"),
        ({"compared": {"threshold": 1.0}}, {}, "threshold: None on ranks 1, 2; 1.0 on rank 0"),
        ({"compared": {"error_if_nonfinite": True}}, {"compared": {"error_if_nonfinite": False}}, "True on rank 0"),
        ({"parameters": 7}, {"parameters": 8}, "the number of parameters: 8 on ranks 1, 2; 7 on rank 0"),
        ({"parameters": 7}, {}, "the number of parameters: None on ranks 1, 2; 7 on rank 0"),
        ({"numel": 2**40}, {"numel": 2**40 + 1}, f"the number of gradient elements: {2**40 + 1} on ranks 1, 2"),
    ],
)  # fmt: skip
def test_a_difference_is_reported_with_the_value_of_each_rank(
    p: float, first_rank: Any, other_ranks: Any, expected: str
) -> None:
    array = np.ones(2, np.float32)
    message = common_error(3, lambda group: norm_of(group, [array], p, **(other_ranks if group.rank else first_rank)))
    assert message.startswith("the ranks disagree about ")
    assert expected in message


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
        return Consensus(group, Call()).compare() if p is None else norm_of(group, [array], p)

    assert f"norm_type: {orders[1]} on ranks 1, 2; {orders[0]} on rank 0" in common_error(3, run)


@pytest.mark.parametrize("orders", [(1.0, 2.0), (3.0, math.inf), (2.5, 3.0)])
def test_orders_that_differ_are_found(orders: Any) -> None:
    array = np.ones(2, np.float32)
    message = common_error(3, lambda group: norm_of(group, [array], orders[group.rank > 0]))
    assert f"norm_type: {orders[1]} on ranks 1, 2; {orders[0]} on rank 0" in message


def test_a_message_about_many_ranks_is_short() -> None:
    message = common_error(40, lambda group: norm_of(group, [np.ones(1)], 2.0, {"threshold": float(group.rank % 9)}))
    assert "0.0 on ranks 0, 9, 18, 27 and others; 1.0 on ranks 1, 10, 19, 28 and others; " in message
    assert "5.0 on rank" not in message
    assert len(message) < 500


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
def test_a_parameter_that_differs_between_ranks_is_named(p: float) -> None:
    message = common_error(
        3, lambda group: norm_of_ones(group, p=p, names=["a [2]", "b [3]" if group.rank else "c [3]"])
    )
    assert "the parameter at position 1: b [3] on ranks 1, 2; c [3] on rank 0" in message


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_only_ranks_with_parameter_names_compare_them(p: float) -> None:
    known = ["a [2]", "b [3]"]
    norms, _ = run_ranks(3, lambda group: norm_of_ones(group, p=p, names=None if group.rank == 1 else known))
    assert len(set(norms)) == 1
    assert "at position 1" in common_error(
        3, lambda group: norm_of_ones(group, p=p, names=[known, None, ["a [2]", "b"]][group.rank])
    )
    assert len(set(run_ranks(2, lambda group: norm_of_ones(group, p=p))[0])) == 1


def test_a_difference_names_the_functions_that_the_ranks_called() -> None:
    def run(group: Member) -> None:
        name = "clip_by_global_norm" if group.rank else "clip_grad_norm_"
        Consensus(group, Call({"eps": 1e-6 if group.rank else 0.0}, remarks=lambda: {"function": name})).compare()

    message = common_error(3, run)
    assert (
        "eps: 1e-06 on ranks 1, 2; 0.0 on rank 0. The called functions are clip_by_global_norm on ranks 1, 2; clip"
        in message
    )


def test_gradients_that_are_missing_are_named_where_elements_are_counted() -> None:
    def run(group: Member) -> Any:
        return norm_of_ones(group, numel=0 if group.rank == 1 else 4, without=range(5) if group.rank == 1 else ())

    message = common_error(2, run)
    assert "the number of gradient elements: 4 on rank 0; 0 on rank 1. There is no gradient for 5 of the" in message
    assert (
        "(position 0, position 1, position 2, ...) on rank 1. Set gradients of zeros for these parameters, or"
        in message
    )


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

    for first, second in run_ranks(3, run)[0]:
        assert (
            "the number of calls that use this process group: 1 on ranks 0, 2; 2 on rank 1. A rank skipped a" in first
        )
        assert (
            "the number of calls that use this process group: 2 on ranks 0, 2; 3 on rank 1. A rank skipped a" in second
        )
