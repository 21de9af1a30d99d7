"""Declared replicas of gradients are compared between ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.rank_tables import ranks_by_value, rows_of
from support.rank_threads import (
    ONES,
    Member,
    RankShards,
    Sums,
    common_error,
    norm_of,
    run_ranks,
)

from unified_clip._compute.host import HOST
from unified_clip._core import entry
from unified_clip._core.distributed import AWAITED, DistributedSpec
from unified_clip._core.types import Leaf

HSDP = [("a", 2, True), ("b", 2, True), ("a", 2, False), ("b", 2, False)]
"""The shards of four ranks: two copies of two shards."""


def errors_of_replicas(
    gradients: Sequence[Sequence[np.ndarray]], sets: Sequence[Any], p: float = 2.0
) -> tuple[list[str], int]:
    """Return the error of each rank, and the number of collectives. `sets`: the replica set of each rank."""

    def run(member: Member) -> str:
        try:
            norm_of(member, gradients[member.rank], p, replicas=[sets[member.rank]] * len(gradients[member.rank]))
        except ValueError as error:
            return str(error)
        return ""

    return run_ranks(len(gradients), run)


@pytest.mark.parametrize(("p", "calls"), [(1.0, 1), (2.0, 1), (math.inf, 2)])
def test_equal_replicas_need_no_further_collective(p: float, calls: int) -> None:
    gradients = [[ONES, 2 * ONES], [3 * ONES, ONES], [ONES, 2 * ONES], [3 * ONES, ONES]]
    assert errors_of_replicas(gradients, HSDP, p) == ([""] * 4, calls)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("rank", range(4))
def test_the_rank_and_the_tensor_that_drifted_are_named(rank: int, p: float) -> None:
    gradients = [[ONES, ONES.copy()] for _ in range(4)]
    gradients[rank][1][2] = np.nextafter(np.float32(1), np.float32(2))
    errors, _ = errors_of_replicas(gradients, HSDP, p)
    assert len(set(errors)) == 1
    assert errors[0].startswith("copies of gradients differ between ranks: position 1. No gradient was changed.")
    (values,) = rows_of(errors[0]).values()
    assert values.keys() == {rank, (rank + 2) % 4}
    assert len(set(values.values())) == 2


def test_ranks_with_equal_copies_are_in_one_row() -> None:
    gradients = [[ONES], [ONES], [2 * ONES], [ONES], [2 * ONES], [ONES], [3 * ONES]]
    errors, _ = errors_of_replicas(gradients, [("a", 7, rank == 0) for rank in range(7)])
    assert ranks_by_value(errors[0], "position 0") == [[0, 1, 3, 5], [2, 4], [6]]


def test_two_sets_that_differ_are_named() -> None:
    gradients = [[ONES], [ONES], [2 * ONES], [3 * ONES]]
    errors, _ = errors_of_replicas(gradients, HSDP)
    # The gradients of ranks 0 and 1 are equal shards.
    assert ranks_by_value(errors[0], "position 0") == [[0, 1], [2], [3]]
    errors, _ = errors_of_replicas([[ONES], [4 * ONES], [2 * ONES], [3 * ONES]], HSDP)
    assert ranks_by_value(errors[0], "position 0") == [[0], [2], [1], [3]]


def test_a_replica_without_a_gradient_is_named() -> None:
    errors, _ = errors_of_replicas([[ONES, ONES], [ONES, ONES], [ONES], [ONES, ONES]], HSDP)
    (values,) = rows_of(errors[0]).values()
    assert values.keys() == {0, 2}
    assert values[2] == "None" != values[0]
    errors, _ = errors_of_replicas([[ONES], [ONES], [], [ONES]], HSDP)
    message = "1 copies, 1 of them the first: there should be 2"
    assert [rows_of(error)["position 0"][0][: len(message)] for error in errors] == [message] * 4


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_drift_is_not_reported_for_a_norm_of_nan(p: float) -> None:
    nan = np.array([math.nan], np.float32)
    assert errors_of_replicas([[nan], [nan], [-nan], [-nan]], HSDP, p)[0] == [""] * 4


@pytest.mark.parametrize("p", [2.0, 3.0])
def test_two_sets_whose_contents_are_exchanged_differ(p: float) -> None:
    errors, _ = errors_of_replicas([[ONES], [2 * ONES], [2 * ONES], [ONES]], HSDP, p)
    assert all(rows_of(error)["position 0"].keys() == {0, 1, 2, 3} for error in errors)


def drift_of(size: int, options_of_rank: Callable[[int], dict[str, Any]]) -> str:
    """Return the error of ranks with copies of a gradient of ones. `options_of_rank`: the options of `norm_of`."""

    def run(member: Member) -> Any:
        options = {"replicas": [("a", size, member.rank == 0)], **options_of_rank(member.rank)}
        return norm_of(member, options.pop("arrays", [ONES]), 2.0, **options)

    return common_error(size, run)


def test_replicas_of_another_shape_differ() -> None:
    leaves = [Leaf(ONES.reshape(3, 1), 0, "w"), Leaf(ONES, 0, "w")]
    (values,) = rows_of(drift_of(2, lambda rank: {"leaves": [leaves[rank]]})).values()
    assert [values[rank].partition(" checksum")[0] for rank in (0, 1)] == ["'w' [3, 1]", "'w' [3]"]


def test_only_gradients_that_drifted_are_named_if_positions_differ() -> None:
    """Another rank has one more parameter before them."""
    drifted = np.nextafter(ONES, 2)

    def options_of_rank(rank: int) -> dict[str, Any]:
        leaves = [Leaf(None, index + rank, name) for index, name in enumerate("ab")]
        arrays, sets = [ONES, drifted if rank else ONES], [("a", 2, rank == 0)] * 2
        return {"leaves": leaves, "arrays": arrays, "replicas": sets}

    message = drift_of(2, options_of_rank)
    assert list(rows_of(message)) == ["position 1 (parameter 'b')"], "the position on the first rank"


@pytest.mark.parametrize("firsts", [[True, False, False], [True, True]])
def test_copies_that_are_equal_and_not_those_declared_are_an_error(firsts: list[bool]) -> None:
    errors, _ = errors_of_replicas([[ONES]] * len(firsts), [("a", 2, is_first) for is_first in firsts])
    message = f"{len(firsts)} copies, {sum(firsts)} of them the first: there should be 2, one of them the first"
    for error in errors:
        assert rows_of(error)["position 0"].keys() == set(range(len(firsts)))
        assert message in error


def test_messages_have_global_ranks() -> None:
    def run(member: Member) -> str:
        member.ranks = [4, 6, 9]
        with pytest.raises(ValueError) as drifted:
            norm_of(member, [(1 + member.rank // 2) * ONES], 2.0, replicas=[("a", 3, member.rank == 0)])
        with pytest.raises(ValueError) as differing:
            norm_of(member, [ONES], 2.0, {"threshold": float(member.rank == 2)})
        assert ranks_by_value(str(drifted.value), "position 0") == [[4, 6], [9]]
        assert rows_of(str(differing.value)) == {"threshold": {4: "0.0", 6: "0.0", 9: "1.0"}}

    run_ranks(3, run)


def test_a_rank_whose_copies_are_unknown_rejects_the_call_after_its_sums() -> None:
    """Before them, the other ranks would wait for a sum, not for a rejection."""

    def run(member: Member) -> str:
        shards = RankShards(member, [ONES], replicas=ValueError("unknown") if member.rank else [("a", 2, True)])
        shards.awaits_sums = lambda measures: True  # type: ignore[method-assign]
        path: Any = SimpleNamespace(xp=HOST)

        def call() -> None:
            AWAITED.send_rejection = partial(shards.send_rejection, "total")
            shards.norm(path, range(1), 2.0, {}, Sums, function="", is_first=True)

        with pytest.raises(ValueError) as raised:
            entry.run_eagerly(call)
        return str(raised.value)

    first, second = run_ranks(2, run)[0]
    assert first.startswith("rank 1 rejected this call: ValueError: unknown")
    assert second == "unknown"


@pytest.mark.parametrize("value", [1, 0, 1.0, None, "yes", np.bool_(True), np.ones(2)])
def test_check_replicas_is_a_bool(value: Any) -> None:
    with pytest.raises(TypeError, match=r"check_replicas is .*\. Pass True or False"):
        DistributedSpec(check_replicas=value)


def test_a_rank_that_does_not_compare_replicas_is_named() -> None:
    def run(member: Member) -> str:
        options = {"replicas": [("a", 2, False)]} if member.rank else {}
        with pytest.raises(ValueError, match="check_replicas") as raised:
            norm_of(member, [ONES], 2.0, **options)
        return str(raised.value)

    (first, second), _ = run_ranks(2, run)
    assert first == second
    assert rows_of(first) == {"check_replicas": {0: "None", 1: "True"}}


def test_replicas_of_another_dtype_differ() -> None:
    """The bits are equal."""
    arrays = [np.ones(3, np.float32), np.ones(3, np.float32).view(np.int32)]
    message = drift_of(2, lambda rank: {"leaves": [Leaf(arrays[rank], 0)]})
    assert ranks_by_value(message, "position 0") == [[0], [1]]


def test_replicas_with_other_stored_rows_differ() -> None:
    message = drift_of(2, lambda rank: {"rows": [np.array([[rank]])]})
    assert ranks_by_value(message, "position 0") == [[0], [1]]
