"""All ranks raise if no rank owns a gradient: the first of the ranks with copies lacks it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from support.rank_tables import rows_of
from support.rank_threads import ONES, Member, leaf, norm_of, run_ranks

FIRST = "no rank owns the gradient at position"


def errors_of(
    present: Sequence[Sequence[Hashable]], p: float = 2.0, array: np.ndarray = ONES, zeros: Sequence[int] = ()
) -> tuple[set[str], int]:
    """Return the errors of ranks with copies of gradients, and the number of collectives.

    present: For each rank, what identifies its gradients: their position, or a name. array: Each gradient.
    zeros: The indices of gradients of zeros.
    """

    def run(member: Member) -> str:
        identities = list(present[member.rank])
        indices = range(len(identities))
        leaves = [leaf(identity if isinstance(identity, int) else index) for index, identity in enumerate(identities)]
        try:
            arrays = [array * (index not in zeros) for index in indices]
            norm_of(member, arrays, p, leaves=leaves, identities=identities)
        except ValueError as error:
            return str(error)
        return ""

    errors, calls = run_ranks(len(present), run)
    return set(errors), calls


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize(("p", "calls"), [(1.0, 1), (2.0, 1), (3.0, 2), (math.inf, 1)])
def test_gradients_that_all_ranks_have_need_no_further_collective(p: float, calls: int, size: int) -> None:
    assert errors_of([range(3)] * size, p) == ({""}, calls)
    assert errors_of([()] * size, p)[0] == {""}


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("having", [[1], [2], [1, 2]])
def test_a_gradient_that_only_later_ranks_have_raises_on_all_ranks(having: list[int], p: float) -> None:
    (error,), _ = errors_of([[0, 1, 2] if rank in having else [0, 2] for rank in range(3)], p)
    assert error.startswith(f"{FIRST} 1. No gradient was changed.")
    assert {rank for rank, value in rows_of(error)["position 1"].items() if value == "a gradient"} == set(having)


@pytest.mark.parametrize("having", [[0], [0, 1], [0, 2]])
def test_a_gradient_that_later_ranks_lack_is_counted(having: list[int]) -> None:
    assert errors_of([[0, 1, 2] if rank in having else [0, 2] for rank in range(3)])[0] == {""}


def test_missing_gradients_of_two_ranks_do_not_cancel() -> None:
    assert rows_of(errors_of([[1], [0]])[0].pop()) == {"position 0": {0: "None", 1: "a gradient"}}
    rows = rows_of(errors_of([[1, 2], [0, 2], [0, 1]])[0].pop())
    assert rows == {"position 0": {0: "None", 1: "a gradient", 2: "a gradient"}}


def test_the_first_rank_without_any_gradient_is_an_error() -> None:
    (error,), calls = errors_of([[], [0, 1, 2]])
    assert error.startswith(f"{FIRST} 0, position 1, position 2. No gradient was changed.")
    assert rows_of(error) == {f"position {index}": {1: "a gradient"} for index in range(3)}
    assert calls == 5, "the norm, the outlines and the values, each with their lengths"


def test_gradients_of_zeros_and_without_elements_are_no_error() -> None:
    for array in (0 * ONES, ONES[:0]):
        assert errors_of([[0], [0, 1]], array=array)[0] == {""}


def test_zeros_are_no_error_among_gradients_with_the_same_identity() -> None:
    """The first rank may lack any one of them."""
    for zeros in ([0], [1], [2]):
        assert errors_of([["a", "a"], ["a", "a", "a"]], zeros=zeros)[0] == {""}
    assert errors_of([["a"], ["a", "a", "a"]], zeros=[1])[0].pop().startswith(f"{FIRST} 2. ")


def test_a_gradient_of_nan_is_an_error() -> None:
    assert errors_of([[0], [0, 1]], array=np.full(2, np.float32(math.nan)))[0].pop().startswith(f"{FIRST} 1. ")


def test_an_order_of_the_gradients_that_differs_between_ranks_is_no_error() -> None:
    assert errors_of([["a", "b", "a"], ["b", "a", "a"]])[0] == {""}
