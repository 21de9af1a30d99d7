"""The formula of a clip, and the coefficients that tensors before and after it show."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.parity.cases import dense

from unified_clip.causes.scaling import EXACT, Scaling, coefficient_bounds, scaling
from unified_clip.parity.judge import oracle
from unified_clip.recorder.clips import coefficient, combined_norm

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("n", "threshold", "eps", "expected"),
    [
        (2.0, 1.0, 0.0, 0.5),
        (2.0, 2.0, 0.0, 1.0),
        (2.0, 2.0, 1e-6, 2 / (2 + 1e-6)),
        (0.0, 0.0, 0.0, 0.0),
        (0.0, -1.0, 0.0, NAN),
        (INF, 1.0, 0.0, 0.0),
        (NAN, INF, 0.0, 1.0),
        (NAN, 1.0, 0.0, NAN),
        (1.0, NAN, 0.0, NAN),
    ],
)
def test_the_coefficient_is_that_of_the_formula(n: float, threshold: float, eps: float, expected: float) -> None:
    assert coefficient(n, threshold, eps) == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def test_an_infinite_norm_gives_nan_in_one_family() -> None:
    assert math.isnan(coefficient(INF, 1.0, 0.0, infinite_norm_gives_nan=True))


@pytest.mark.parametrize(
    ("norms", "p", "expected"),
    [
        ([3.0, 4.0], 2, 5.0),
        ([3.0, 4.0], 1, 7.0),
        ([3.0, 4.0], INF, 4.0),
        ([], 2, 0.0),
        ([0.0, 0.0], 3, 0.0),
        ([INF, 1.0], 3, INF),
        ([INF, NAN], 2, NAN),
        ([3.0, 4.0], 0, NAN),
        ([0.0, 0.0], -1, NAN),
        ([INF], -1, NAN),
        ([1.0] * 10, 1e-3, INF),
    ],
)
def test_norms_of_parts_combine(norms: list[float], p: float, expected: float) -> None:
    assert combined_norm(norms, p) == pytest.approx(expected, rel=1e-15, nan_ok=True)


@pytest.mark.parametrize(
    ("before", "after", "bounds"),
    [
        ([1.0, 2.0], [NAN, 1.0], (INF, -INF)),
        ([0.0, 2.0], [1.0, 1.0], (INF, -INF)),
        ([0.0, INF], [0.0, NAN], (-INF, INF)),
        ([1.0], [0.5], (0.5 - 2**-25, 0.5 + 2**-25)),
        ([1.0], [1e-40], (1e-40 - 2**-126, 1e-40 + 2**-126)),
    ],
    ids=["NaN from a number", "a number from zero", "nothing that bounds it", "half an ULP", "may be flushed"],
)
def test_bounds_of_the_coefficient(before: list[float], after: list[float], bounds: tuple[float, float]) -> None:
    assert coefficient_bounds(dense(before), dense(after)) == pytest.approx(bounds, rel=2**-24)


@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20),
    coef=st.floats(1e-3, 1),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
)
def test_the_coefficient_that_scaled_a_gradient_is_allowed(values: list[float], coef: float, dtype: str) -> None:
    before = dense(values, dtype)
    after = oracle.scaled(before, coef)
    result: Scaling = scaling(before, after, after)
    assert result.is_expected
    assert result.allows(coef, EXACT)


def test_a_gradient_that_became_zero_is_reported() -> None:
    tensors: list[Any] = [dense([3.0, 4.0]), dense([3.0, 4.0]), dense([0.0, 0.0])]
    result = scaling(*tensors)
    assert (result.is_zero, result.is_unchanged, result.unchanged_is_expected) == (True, False, True)
    assert result.distance == pytest.approx(float(np.float32(1.0)))
