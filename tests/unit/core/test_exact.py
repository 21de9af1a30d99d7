"""The accumulator and its rounding, compared with fractions."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference

from unified_clip._compute import kernels, memory, sparse_rows
from unified_clip._compute.kernels import sum_exactly
from unified_clip._core.exact import BLOCK, UNIT, WORDS, Accumulator, nearest

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(FINITE, st.sampled_from(["float16", "bfloat16", "float32", "float64"]))
def test_nearest_is_what_numpy_rounds_to(value: float, dtype: str) -> None:
    if dtype == "bfloat16":  # ml_dtypes rounds through float32, so start from one
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    with np.errstate(over="ignore"):
        assert nearest(value, dtype) == float(np.asarray(value).astype(reference.NUMPY[dtype]))


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.0, -0.0])
def test_nearest_keeps_infinities_and_zeros(value: float) -> None:
    assert math.copysign(1, nearest(value, "bfloat16")) == math.copysign(1, value)
    assert nearest(value, "bfloat16") == value


def test_nearest_rounds_once() -> None:
    above_half = 1 + 2.0**-8 + 2.0**-40  # float32 drops the last bit, and what is left is half way
    assert nearest(above_half, "bfloat16") == 1 + 2.0**-7
    assert nearest(Fraction(3, 2**150), "float32") == 2.0**-148  # half way between two subnormal numbers, to even
    assert nearest(-above_half, "bfloat16") == -1 - 2.0**-7


@given(st.integers(min_value=0, max_value=2**4400), st.sampled_from([1, 2]), st.sampled_from(["float32", "float64"]))
def test_roots_are_correctly_rounded(total: int, p: int, dtype: str) -> None:
    exact = Fraction(total, 2**UNIT)
    expected = reference.nearest_root(exact, dtype) if p == 2 else reference.nearest(exact, dtype)
    assert Accumulator(total).root(p, dtype) == expected


COUNT = st.integers(0, 9)


@given(st.lists(st.tuples(st.integers(0, 2**60), COUNT, COUNT, st.booleans(), st.booleans())))
def test_merging_is_addition_in_any_order(parts: list[tuple[int, int, int, bool, bool]]) -> None:
    accumulators = [Accumulator(*part) for part in parts]
    merged = sum(accumulators, Accumulator())
    assert merged == sum(reversed(accumulators), Accumulator())
    assert merged.total == sum(part[0] for part in parts)
    assert merged.nan == any(part[3] for part in parts)


def test_nan_comes_before_infinity() -> None:
    assert math.isnan(Accumulator(nan=True, infinite=True).root(2, "float32") or 0.0)
    assert Accumulator(infinite=True).root(2, "float32") == math.inf


def test_a_certificate_is_refused_where_the_error_reaches_a_rounding_boundary() -> None:
    half_way = (2**24 + 1) ** 2 << UNIT
    assert Accumulator(half_way).root(2, "float32") == 2.0**24
    assert Accumulator(half_way + 1).root(2, "float32") == 2.0**24 + 2
    for of_sums, shift in ((Accumulator.from_block_sums, 40), (Accumulator.from_compensated_sums, 80)):
        error = half_way >> shift
        assert of_sums(half_way + error).root(2, "float32") is None
        assert of_sums(half_way + error + (error >> 20)).root(2, "float32") == 2.0**24 + 2


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**4380),
            st.integers(0, 9),
            st.integers(0, 9),
            st.booleans(),
            st.booleans(),
        )
    ),
)
def test_words_of_accumulators_add_up_to_those_of_their_sum(parts: list[tuple[int, int, int, bool, bool]]) -> None:
    accumulators = [Accumulator(*part) for part in parts]
    words = [accumulator.to_words() for accumulator in (Accumulator(), *accumulators)]
    assert all(len(each) == WORDS and all(0 <= word < 2**32 for word in each) for each in words)
    assert Accumulator.from_words([sum(column) for column in zip(*words, strict=True)]) == sum(
        accumulators, Accumulator()
    )


@given(st.lists(FINITE, max_size=40), st.sampled_from([1, 2]))
def test_exact_sums_lose_nothing(values: list[float], p: int) -> None:
    got = sum_exactly(np.array(values, np.float64), p)
    assert got.slack == 0
    assert Fraction(got.total, 2**UNIT) == sum((abs(Fraction(value)) ** p for value in values), Fraction(0))


@pytest.mark.nightly
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50),
    st.sampled_from([1, 2]),
)
def test_block_sums_keep_their_promise(values: list[float], p: int) -> None:
    repeated = np.resize(np.array(values, np.float32), 3 * BLOCK + 17)
    got = kernels._block_sums([(repeated, "float32")], p)
    exact = sum((abs(Fraction(value)) ** p for value in repeated.tolist()), Fraction(0))
    assert abs(Fraction(got.total, 2**UNIT) - exact) <= Fraction(got.slack, 2**UNIT)
    assert got.slack <= (got.total >> 39) + 1


def test_the_exact_sum_is_needed_and_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    near = [(np.array([2.0**24, 2.0**12, 2.0**12, 1.0], np.float32), "float32")]
    clear = [(np.array([3.0, 4.0], np.float32), "float32")]
    taken = []
    monkeypatch.setattr(kernels, "KERNELS", None)
    exact_sum = kernels._exact_sum
    monkeypatch.setattr(kernels, "_exact_sum", lambda parts, p: taken.append(p) or exact_sum(parts, p))
    assert kernels.array_list(clear).norm(2, False, 1) == 5.0
    assert taken == []
    assert kernels.array_list(near).norm(2, False, 1) == 2.0**24
    assert taken == [2]


@given(st.lists(FINITE, min_size=1, max_size=30))
def test_bfloat16_is_rounded_once_from_float64(values: list[float]) -> None:
    with np.errstate(over="ignore"):
        got = kernels.round_to(np.array(values), "bfloat16")
    assert got.tolist() == [nearest(value, "bfloat16") for value in values]


def test_views_at_an_address_read_and_write_that_memory() -> None:
    owner = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = memory.view_at(owner.ctypes.data, (4, 3), (1, 4), "float32")
    assert view.tolist() == owner.T.tolist()
    view[1, 2] = -1
    assert owner[2, 1] == -1
    assert memory.view_at(0, (0, 3), (3, 1), "bfloat16").shape == (0, 3)
    assert memory.view_at(owner.ctypes.data, (), (), "float32").shape == ()


def test_overlap_is_found_exactly() -> None:
    base = np.arange(40.0)
    windows = np.lib.stride_tricks.as_strided
    assert not memory._overlaps_itself(windows(base, (2, 3), (24, 16)))  # offsets 0, 2, 4 and 3, 5, 7
    assert memory._overlaps_itself(windows(base, (2, 3), (16, 16)))
    assert memory._overlaps_itself(windows(base, (3, 4), (8, 8)))
    assert memory._overlaps_itself(windows(base, (3, 4), (24, 16)))  # 6 is among offsets 0, 2, 4, 6 and 6, 8, 10, 12
    hard = [windows(base, (2,) * 20, tuple(8 * n for n in (1,) * 20)) for _ in range(2)]
    assert memory._shares_memory(*hard)


@pytest.mark.parametrize("steps", [(0, 0), (0, 4), (4, 4)])
def test_overlap_of_a_large_expanded_view_takes_no_memory_to_find(steps: tuple[int, int]) -> None:
    view = np.lib.stride_tricks.as_strided(np.zeros(8000, np.float32), (4000, 4000), steps)
    tracemalloc.start()
    try:
        assert memory._overlaps_itself(view)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_overlap_where_the_answer_is_too_hard_is_taken_for_overlap() -> None:
    base = np.zeros(4000)
    windows = np.lib.stride_tricks.as_strided
    a = windows(base, (7, 9, 11, 13), tuple(8 * n for n in (181, 97, 53, 29)))
    b = windows(base[1:], (7, 9, 11, 13), tuple(8 * n for n in (179, 101, 59, 31)))
    assert memory._shares_memory(a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slices_and_rows_without_a_wider_format_are_summed_exactly(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on processors where NumPy has nothing wider than float64.
    array = np.random.default_rng(0).standard_normal((5, 7)).astype(dtype)
    rows = np.array([[0, 1, 0, 1, 1]])
    expected = kernels.slice_norms(array, dtype, [1], dtype), sparse_rows.merge_rows(rows, array, dtype)[1]
    for module in (kernels, sparse_rows):
        monkeypatch.setattr(module, "wider_than", lambda dtype: None)
    got = kernels.slice_norms(array, dtype, [1], dtype), sparse_rows.merge_rows(rows, array, dtype)[1]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)
