"""The norm of gradients that are distributed over ranks."""

from __future__ import annotations

import copy
import math
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import reference
from support.rank_threads import (
    Member,
    RankShards,
    Sums,
    norm_of,
    run_ranks,
)

from unified_clip import ClipWarning
from unified_clip._compute import kernels
from unified_clip._core.distributed import DistributedSpec
from unified_clip._core.gradients import GradientList
from unified_clip._distributed.groups import SingleProcess


def scattered(array: np.ndarray, size: int, random: np.random.Generator) -> list[np.ndarray]:
    owners = random.integers(0, size, array.size)
    return [random.permutation(array[owners == rank]) for rank in range(size)]


NUMBERS = {
    "float32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "complex64": st.complex_numbers(width=64, allow_nan=False, allow_infinity=False),
    "complex128": st.complex_numbers(allow_nan=False, allow_infinity=False),
}


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", NUMBERS)
@given(data=st.data(), size=st.integers(1, 5), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_the_norm_does_not_depend_on_the_ownership_of_elements(dtype: str, data: Any, size: int, seed: int) -> None:
    array = np.array(data.draw(st.lists(NUMBERS[dtype], max_size=40)), dtype)
    shards = scattered(array, size, np.random.default_rng(seed))
    for p in (1.0, 2.0, math.inf):
        norms, _ = run_ranks(size, lambda group, p=p: norm_of(group, [shards[group.rank]], p))
        ((norm, kind),) = set(norms)
        expected = reference.norm([array], p)
        assert kind == reference.norm_dtype([dtype])
        if np.iscomplexobj(array) and p != 2:  # within 1 ULP
            exact = np.dtype(kind).type(expected)
            with np.errstate(over="ignore"):
                near = [float(np.nextafter(exact, np.dtype(kind).type(end))) for end in (0, math.inf)]
            assert norm in (expected, *near)
        else:
            assert norm == expected
    if array.size and not np.iscomplexobj(array):
        norms, calls = run_ranks(size, lambda group: norm_of(group, [shards[group.rank]], 3.0))
        assert len(set(norms)) == 1
        n = kernels.general_norm([(array, dtype)], 3.0, dtype)
        assert norms[0][0] == pytest.approx(n, rel=1e-15 if dtype == "float64" else 2e-7)
        assert calls <= 2


def test_a_float64_gradient_on_one_rank_makes_the_norm_float64() -> None:
    arrays = [np.array([3.0], np.float32), np.array([1e-12])]
    for p in (1.0, 2.0, 3.0, math.inf):
        norms, _ = run_ranks(2, lambda group, p=p: norm_of(group, [arrays[group.rank]], p))
        assert {dtype for _, dtype in norms} == {"float64"}


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_a_norm_may_exceed_the_largest_number_of_its_dtype(p: float) -> None:
    arrays = [np.full(2, 3e38, np.float32), np.full(2, 3e38, np.float32)]
    assert run_ranks(2, lambda group: norm_of(group, [arrays[group.rank]], p))[0] == [(math.inf, "float32")] * 2


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_ranks_repeat_a_sum_that_is_in_doubt(size: int) -> None:
    array = np.array([2.0**24, 2.0**12, 2.0**12] + [2.0**-3] * 70, np.float32)
    shards = np.array_split(array, size)
    norms, calls = run_ranks(size, lambda group: norm_of(group, [shards[group.rank]], 2.0))
    assert norms == [(2.0**24 + 2, "float32")] * size
    assert calls == 2


def test_a_single_process_has_the_norm_of_its_gradients() -> None:
    assert norm_of(SingleProcess(), [np.array([3.0, 4.0], np.float32)], 2.0) == (5.0, "float32")
    assert norm_of(SingleProcess(), [np.array([3.0, 4.0], np.float32)], math.inf) == (4.0, "float32")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_nan_and_inf_reach_all_ranks(p: float, value: float) -> None:
    norms, _ = run_ranks(3, lambda group: norm_of(group, [np.array([1.0, value if group.rank == 1 else 2.0])], p))
    assert [str(n) for n, _ in norms] == [str(value)] * 3


@given(size=st.integers(1, 4), seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_per_tensor_norms_take_three_collectives_for_all_tensors(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    doubtful = np.array([2.0**24, 2.0**12, 2.0**12] + [2.0**-3] * 70, np.float32)
    arrays = [random.standard_normal(size * 4).astype(np.float32), doubtful]
    shards = [np.array_split(array, size) for array in arrays]

    def run(group: Member) -> dict[int, float]:
        return RankShards(group, [cut[group.rank] for cut in shards]).tensor_norms(2, {"threshold": 1.0}, Sums)

    norms, calls = run_ranks(size, run)
    assert norms == [{index: reference.norm([array]) for index, array in enumerate(arrays)}] * size
    assert calls == 3  # to compare, to sum, and to sum the doubtful tensor exactly


@pytest.mark.parametrize(
    ("keywords", "is_given"),
    [
        ({}, False),
        ({"process_group": None}, False),
        ({"check_numel": False}, False),
        ({"check_numel": True}, True),
        ({"check_numel": 0}, True),
        ({"ownership": "distinct"}, True),
        ({"ownership": bool}, True),
        ({"process_group": "a group"}, True),
    ],
)
def test_a_spec_is_given_if_a_keyword_declares_something(keywords: dict[str, Any], is_given: bool) -> None:
    assert DistributedSpec(**keywords).is_given == is_given


@pytest.mark.parametrize(
    ("ownership", "is_declared"),
    [
        (None, False),
        ("replicated", False),
        ("distinct", True),
        (bool, True),
        ({"*": "replicated"}, False),
        ({"a": "replicated", "*": "distinct"}, True),
    ],
)
def test_ranks_may_have_different_parameters_if_owners_are_declared(ownership: Any, is_declared: bool) -> None:
    assert DistributedSpec(ownership=ownership).declares_owners == is_declared


def test_equal_sums_of_declared_owners_warn_unless_all_gradients_are_zero() -> None:
    spec = DistributedSpec(ownership="distinct")

    def norm(array: np.ndarray) -> float:
        return run_ranks(2, lambda group: norm_of(group, [array], 2.0, spec=spec))[0][0][0]

    assert norm(np.zeros(4, np.float32)) == 0.0
    with pytest.raises(ClipWarning, match="the 2 ranks own gradients with exactly the same norm"):  # an error in tests
        norm(np.ones(4, np.float32))


def test_invalid_declarations_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"ownership is 'owned'. Pass 'replicated', 'distinct', None, or a"):
        DistributedSpec(ownership="owned")
    with pytest.raises(
        ValueError, match=r"pass a dict with one of these values for each name pattern, as in \{'\*\.experts\."
    ):
        DistributedSpec(ownership={"*": "owned"})
    with pytest.raises(TypeError, match=r"check_numel is '5'. Pass a bool, a whole number, or None"):
        DistributedSpec(check_numel="5")  # type: ignore[arg-type]
    for ownership in ("replicated", "distinct", bool):  # as if the default process group is not initialized yet
        with pytest.raises(ValueError, match=r"process_group=None means this .* call init_process_group before"):
            DistributedSpec(process_group=None, ownership=ownership)


def test_a_copied_spec_has_the_same_process_group() -> None:
    spec = DistributedSpec(process_group=threading.Lock(), ownership="distinct")
    assert copy.deepcopy(spec) is spec


def test_slices_of_a_distributed_gradient_are_rejected() -> None:
    gradients: Any = GradientList.__new__(GradientList)
    gradients.shards = RankShards(SingleProcess(), [np.ones((2, 2))])
    with pytest.raises(ValueError, match="`axes` is not supported for distributed gradients"):
        gradients.check_slices()
