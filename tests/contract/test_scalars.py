"""Scalars on every path are float64."""

from __future__ import annotations

import importlib
import math
import operator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.kits import Kit

PRECISION = 2.0**-52
numbers = st.floats(2.0**-30, 2.0**30)


class Path:
    def __init__(self, kit: Kit) -> None:
        backend = importlib.import_module(f"unified_clip._backends.{kit.name}").BACKEND
        self._path = backend.path([kit.tensor([1.0])], differentiable=False)
        self.xp = self._path.xp

    def compute(self, function: Any, *values: float) -> float:
        with self._path.scope():
            return self.read(function(*map(self.xp.asarray, values)))

    def read(self, scalar: Any) -> float:
        return float(self._path.read_later([scalar]).values()[0])


@pytest.fixture
def path(kit: Kit) -> Path:
    return Path(kit)


@pytest.mark.parametrize("value", [0.0, 1.0, 2.0**-20, 1e6 + 2.0**-20, math.inf])
def test_a_number_keeps_its_value(path: Path, value: float) -> None:
    assert path.compute(lambda scalar: scalar, value) == pytest.approx(value, rel=PRECISION)


@given(left=numbers, right=numbers)
@example(left=16777217.0, right=16777216.0)
@pytest.mark.parametrize("function", [operator.add, operator.mul, operator.truediv])
def test_arithmetic_is_as_precise_as_the_scalars(path: Path, function: Any, left: float, right: float) -> None:
    assert path.compute(function, left, right) == pytest.approx(function(left, right), rel=4 * PRECISION)


@given(left=numbers, right=numbers)
@example(left=16777217.0, right=16777216.0)
def test_a_difference_loses_no_more_than_its_operands_do(path: Path, left: float, right: float) -> None:
    margin = 4 * PRECISION * (left + right)
    assert path.compute(operator.sub, left, right) == pytest.approx(left - right, abs=margin)


def _choose(path: Path, comparison: Any, left: float, right: float) -> float:
    def choose(left: Any, right: Any) -> Any:
        return path.xp.where(comparison(left, right), path.xp.asarray(1.0), path.xp.asarray(2.0))

    return path.compute(choose, left, right)


@given(left=numbers, right=numbers)
@example(left=1.0, right=1.0)
@example(left=1.0, right=1.0 + 2.0**-40)
@example(left=math.inf, right=math.inf)
@pytest.mark.parametrize("comparison", [operator.lt, operator.le, operator.gt, operator.ge])
def test_where_follows_a_comparison(path: Path, comparison: Any, left: float, right: float) -> None:
    if 0 < abs(left - right) < 4 * PRECISION * left:
        return

    assert _choose(path, comparison, left, right) == (1.0 if comparison(left, right) else 2.0)


def test_no_comparison_with_nan_holds(path: Path) -> None:
    for comparison in (operator.lt, operator.le, operator.gt, operator.ge):
        for values in ((math.nan, 1.0), (1.0, math.nan)):
            assert _choose(path, comparison, *values) == 2.0


@given(angle=st.floats(0.0, math.pi / 2))
def test_the_cosine_of_a_share_of_a_ramp(path: Path, angle: float) -> None:
    assert path.compute(path.xp.cos, angle) == pytest.approx(math.cos(angle), abs=4 * PRECISION)


@pytest.mark.parametrize(
    ("value", "expected"), [(1 + 2.0**-25, 1.0), (1 + 3 * 2.0**-25, 1 + 2.0**-23), (0.1, 0.10000000149011612)]
)
def test_rounding_to_float32(path: Path, value: float, expected: float) -> None:
    assert path.compute(path.xp.to_float32, value) == expected
