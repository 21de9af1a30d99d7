"""Arrays of a list that can overlap in memory are found without a comparison of all pairs."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unified_clip._compute import memory

slices = st.builds(slice, st.integers(0, 3), st.integers(4, 9), st.sampled_from([1, 2, 3, -1]))


def groups(views: list[np.ndarray]) -> list[list[int]]:
    return list(memory._near_each_other(dict(enumerate(views))))


@given(st.lists(st.tuples(st.sampled_from([np.float32, np.float64]), slices, slices), max_size=6))
def test_arrays_that_share_memory_are_in_one_group(choices: list[tuple[type, slice, slice]]) -> None:
    base = np.zeros((9, 9), np.float64)
    views = [base.view(dtype)[rows, columns] for dtype, rows, columns in choices]
    indexed = {index: view for index, view in enumerate(views) if view.size}
    result = list(memory._near_each_other(indexed))
    assert sorted(itertools.chain(*result)) == sorted(set(itertools.chain(*result)))
    for a, b in itertools.combinations(indexed, 2):
        if np.shares_memory(views[a], views[b]):
            assert any(a in group and b in group for group in result)


def test_rows_and_distant_parts_of_rows_are_in_no_group() -> None:
    matrix = np.zeros((50, 300), np.float32)
    assert groups(list(matrix)) == []
    assert groups([matrix[0, :200], matrix[0, 200:], matrix[1, :3], matrix[1, 2:]]) == [[2, 3]]
