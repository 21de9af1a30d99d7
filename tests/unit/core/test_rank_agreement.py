"""The values that differ between ranks, and the tables in error messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rank_tables import rows_of

from unified_clip._distributed import agreement
from unified_clip._distributed.agreement import Compared, Outline
from unified_clip._distributed.groups import gather_objects
from unified_clip._distributed.owners import Copies

FIELDS = st.dictionaries(st.sampled_from(["eps", "threshold", "norm_type"]), st.sampled_from(["1.0", "2.0"]))


def call(fields: Mapping[str, str], rank: int, size: int) -> Compared:
    return agreement.arguments(fields, dict, Copies("all", size, rank == 0))


def error_of(compared: Sequence[Sequence[Compared]], ranks: Sequence[int]) -> str | None:
    """Return the error message for the values of each rank, as `Consensus` does."""
    keys = agreement.differing([[own.outline for own in values] for values in compared])
    described = [[(own.outline, own.values()) for own in values if own.outline.key in keys] for values in compared]
    return agreement.describe(described, ranks)


@given(st.lists(FIELDS, min_size=1, max_size=4))
def test_a_table_has_exactly_the_arguments_that_differ(fields: list[dict[str, str]]) -> None:
    size = len(fields)
    compared = [[call(own, rank, size)] for rank, own in enumerate(fields)]
    ranks = [10 + rank for rank in range(size)]
    values = {name: [own.get(name, "None") for own in fields] for own in fields for name in own}
    differing = {name: row for name, row in values.items() if len(set(row)) > 1}
    message = error_of(compared, ranks)
    assert (message is None) == (not differing)
    if message is not None:
        assert rows_of(message) == {name: dict(zip(ranks, row, strict=True)) for name, row in differing.items()}


@given(st.lists(st.lists(FIELDS, min_size=2, max_size=2), min_size=1, max_size=5))
def test_sums_over_ranks_are_0_exactly_if_all_values_are_equal(fields: list[list[dict[str, str]]]) -> None:
    size = len(fields)
    outlines = [
        [
            call(first, rank, size).outline,
            Outline("replicas", 7, size, rank == size - 1, hash(tuple(sorted(second.items())))),
        ]
        for rank, (first, second) in enumerate(fields)
    ]
    sums = [sum(column) for column in zip(*map(agreement.summands, outlines), strict=True)]
    assert any(sums) == bool(agreement.differing(outlines)) == any(own != fields[0] for own in fields)


@given(st.lists(st.recursive(st.text() | st.integers(), st.lists), min_size=1, max_size=5), st.integers(0, 4))
def test_objects_of_all_ranks_are_gathered(objects: list[object], rank: int) -> None:
    """The other ranks are simulated: they send what `gather_objects` computes on them."""
    size, rank = len(objects), rank % len(objects)

    def gathered(own_rank: int, sums: list[list[int]]) -> list[object]:
        """Return the objects, or raise StopIteration if the next sum is unknown. `sent` has what this rank sends."""
        results = iter(sums)

        def all_reduce_sum(numbers: Sequence[int]) -> list[int]:
            sent[own_rank] = list(numbers)
            return next(results)

        return gather_objects(all_reduce_sum, own_rank, size, objects[own_rank])

    sums: list[list[int]] = []
    sent: list[list[int]] = [[]] * size
    for _ in range(2):
        for member in range(size):
            try:
                gathered(member, sums)
            except StopIteration:
                continue
        sums.append([sum(column) for column in zip(*sent, strict=True)])
    assert all(-(2**63) <= number < 2**63 for number in sums[1])
    assert gathered(rank, sums) == [json.loads(json.dumps(own)) for own in objects]


@pytest.mark.parametrize("other_mark", [0, 3])
def test_data_that_no_rank_sent_is_an_error(other_mark: int) -> None:
    """The sum of the other rank is not what its mark announces."""

    def all_reduce_sum(numbers: Sequence[int]) -> list[int]:
        is_first = len(numbers) == 4
        return [numbers[0], other_mark, numbers[2], 1] if is_first else [*numbers[:-1], -1]

    with pytest.raises(RuntimeError, match="data that no rank sent"):
        gather_objects(all_reduce_sum, 0, 2, "own")
