"""Bounds on the difference between configurations of two families, compared with exact arithmetic and with clips."""

from __future__ import annotations

import itertools
import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from unified_clip import ClipConfig
from unified_clip.config.families import FamilyDifference, family_difference

FAMILIES = ("pytorch", "tensorflow", "paddle")
PAIRS = list(itertools.combinations(FAMILIES, 2))
RULES = ("norm", "global_norm")
ROUNDING = Fraction(2) ** -23
"""More than the relative error of a float32 coefficient and product."""

TINY = float(np.finfo(np.float32).tiny)
POSITIVE = st.floats(1e-30, 1e30)


def config(**data: Any) -> ClipConfig:
    return ClipConfig(**{"rule": "global_norm", "threshold": 1.0} | data)


def difference(a: ClipConfig, b: ClipConfig) -> FamilyDifference:
    result = family_difference(a, b)
    assert result is not None
    assert result == family_difference(b, a)
    return result


def eps_of(settings: ClipConfig) -> Fraction:
    return Fraction(repr(settings.as_clip_rule(1.0).convention.eps))


def exact_coefficient(settings: ClipConfig, n: Fraction) -> Fraction:
    denominator = n + eps_of(settings)
    threshold = Fraction(settings.threshold)  # type: ignore[arg-type]
    return Fraction(1) if denominator <= threshold else threshold / denominator


def exact_distance(a: ClipConfig, b: ClipConfig, n: Fraction) -> Fraction:
    coefs = exact_coefficient(a, n), exact_coefficient(b, n)
    return abs(coefs[0] - coefs[1]) / max(coefs)


def bounds_in_sentence(text: str) -> list[Fraction]:
    """Return the numbers in a sentence: the numerator of the bound for a norm n, and the bound for all norms."""
    match = re.fullmatch(r".*at most (\S+) / n, .* is at most (\S+)\.( If the norm is infinite.*)?", text)
    assert match is not None
    return [Fraction(number) for number in match.groups()[:2]]


@st.composite
def norms_near_threshold(draw: st.DrawFn, threshold: float) -> Fraction:
    far = draw(st.one_of(st.floats(0, 1e30, exclude_min=True), POSITIVE))
    near = Fraction(threshold) + draw(st.sampled_from([-2, -1, 0, 1, 2])) * Fraction(1, 10**6)
    return draw(st.sampled_from([Fraction(far), near]).filter(lambda n: n > 0))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("left", "right"), PAIRS)
@given(st.data(), POSITIVE)
def test_exact_coefficients_differ_by_at_most_the_stated_bound(
    left: str, right: str, rule: str, data: st.DataObject, threshold: float
) -> None:
    a, b = (config(rule=rule, threshold=threshold, family=family) for family in (left, right))
    n = data.draw(norms_near_threshold(threshold))
    result, distance = difference(a, b), exact_distance(a, b, n)
    if "pytorch" in (left, right):
        numerator, largest = bounds_in_sentence(result.sentence)
        assert largest == Fraction(repr(result.relative))
        assert distance <= min(numerator / n, largest)
    else:
        assert result.relative == distance == 0


@given(POSITIVE, st.floats(0, 10), st.floats(0, 10))
@example(1.0, 1e-6, 0.0)
@example(1e-9, 1e-6, 1e-8)
@example(1e-9, 1e-6, 0.0)
@example(1e30, 1e-309, 0.0)
@example(3.823256507465481e29, 0.0, 2.829209815524456e-294)
def test_the_stated_bound_is_reached(threshold: float, eps: float, other_eps: float) -> None:
    """The bound is rounded up to two digits, so it is at most 1.12 times the largest difference."""
    assume(eps != other_eps)
    a, b = config(threshold=threshold, eps=eps), config(threshold=threshold, eps=other_eps)
    worst = max(Fraction(threshold) - min(eps_of(a), eps_of(b)), Fraction(1, 10**400))
    distance, largest = exact_distance(a, b, worst), Fraction(repr(difference(a, b).relative))
    assert distance <= largest
    assert largest <= distance * Fraction(112, 100) or largest < Fraction(1, 10**300)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("left", "right"), PAIRS)
@given(threshold=st.floats(1e-3, 1e3), values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=4))
def test_clipped_gradients_differ_by_at_most_the_stated_bound_and_rounding(
    left: str, right: str, rule: str, threshold: float, values: list[float]
) -> None:
    gradient = np.array(values, np.float32)
    configs = [config(rule=rule, threshold=threshold, family=family) for family in (left, right)]
    results = [clip([gradient.copy()])[0].tolist() for clip in configs]
    bound = Fraction(difference(*configs).relative) + 2 * ROUNDING
    for x, y in zip(*results, strict=True):
        if max(abs(x), abs(y)) > TINY:
            assert abs(Fraction(x) - Fraction(y)) <= bound * Fraction(max(abs(x), abs(y)))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("threshold", [0.25, 1.0, 4.0])
def test_a_norm_at_the_threshold(left: str, right: str, rule: str, threshold: float) -> None:
    """Families without eps leave it unchanged. PyTorch's multiplies it by less than 1."""
    gradient = np.array([threshold], np.float64)
    configs = [config(rule=rule, threshold=threshold, family=family) for family in (left, right)]
    first, second = (clip([gradient])[0].item() for clip in configs)
    if left == "pytorch":
        assert 0 < 1 - first / second <= difference(*configs).relative
        assert (first == threshold, second == threshold) == (False, True)
    else:
        assert first == second == threshold


NOT_FINITE = {"an infinity": [math.inf, 1.0], "NaN": [math.nan, 1.0], "both": [math.nan, math.inf],
              "a norm beyond float32": [3e38, 3e38]}  # fmt: skip


@pytest.mark.parametrize("gradient", NOT_FINITE.values(), ids=NOT_FINITE)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("nonfinite", ["family", "zero"])
def test_norms_that_are_not_finite(left: str, right: str, rule: str, nonfinite: str, gradient: list[float]) -> None:
    configs = [config(rule=rule, family=family, nonfinite=nonfinite) for family in (left, right)]
    first, second = (clip([np.array(gradient, np.float32)])[0] for clip in configs)
    result = difference(*configs)
    is_infinite = not any(map(math.isnan, gradient))
    assert np.array_equal(first, second, equal_nan=True) == (not (result.differs_if_infinite and is_infinite))
    assert ("If the norm is infinite" in result.sentence) == result.differs_if_infinite
    assert result.differs_if_infinite == (
        "tensorflow" in (left, right) and rule == "global_norm" and nonfinite == "family"
    )


@pytest.mark.parametrize(
    "data",
    [
        {"rule": "value"},
        {"rule": "none", "threshold": None},
        {"threshold": math.inf},
        {"threshold": 0.0, "nonfinite": "zero"},
    ],
)
def test_families_that_make_no_difference(data: dict[str, Any]) -> None:
    families: list[dict[str, Any]] = [{}, {}] if "rule" in data else [{"family": "pytorch"}, {"family": "tensorflow"}]
    result = difference(*(config(**data, **family) for family in families))
    assert (result.same, result.relative, result.sentence) == (True, 0, "Both configurations have the same effect.")


GROUP = {"name": "head", "include": ["head.*"], "threshold": 5.0}
OTHERWISE = [
    {"threshold": 2.0}, {"rule": "norm"}, {"rule": "value"}, {"norm_type": 1.0}, {"nonfinite": "skip"},
    {"exclude": ["*.bias"]}, {"include": ["a.*"]}, {"groups": [GROUP]}, {"rule": "none", "threshold": None},
    {"threshold": {"schedule": "linear", "start": 1.0, "end": 2.0, "steps": 3}},
]  # fmt: skip


@pytest.mark.parametrize("settings", OTHERWISE, ids=map(str, OTHERWISE))
@pytest.mark.parametrize("family", [None, "paddle"])
def test_no_difference_is_stated_if_another_setting_differs(settings: dict[str, Any], family: str | None) -> None:
    a, b = config(family=family), config(**settings)
    assert family_difference(a, b) is None
    assert family_difference(b, a) is None


def test_the_largest_difference_of_all_groups_counts() -> None:
    a, b = (config(threshold=5.0, family=family, groups=[GROUP | {"threshold": 0.5}]) for family in FAMILIES[::2])
    assert difference(a, b) == FamilyDifference(
        2e-6,
        False,
        "For a norm of n, the relative difference between the two clip coefficients is at most 1e-06 / n, apart from "
        "rounding. With the configuration's thresholds, the difference is at most 2e-06.",
    )


@pytest.mark.parametrize(
    ("schedule", "smallest"),
    [
        ({"schedule": "linear", "start": 4.0, "end": 0.5, "steps": 9}, 0.5),
        ({"schedule": "cosine", "start": 0.25, "end": 2.0, "steps": 9}, 0.25),
        ({"schedule": "piecewise", "values": [1.0, 0.0, 0.1], "boundaries": [3, 6]}, 0.1),
    ],
)
@given(step=st.integers(0, 12), share=st.floats(0.5, 2))
def test_a_schedule_has_the_difference_of_its_smallest_threshold(
    schedule: dict[str, Any], smallest: float, step: int, share: float
) -> None:
    a, b = (config(threshold=schedule, family=family) for family in FAMILIES[::2])
    relative = difference(a, b).relative
    assert 1e-6 / smallest <= relative <= 1.11e-6 / smallest
    gradient = np.array([smallest * share])
    first, second = (clip([gradient], step=step)[0].item() for clip in (a, b))
    assert abs(first - second) <= (relative + 1e-15) * max(first, second)


def test_a_schedule_that_is_always_0_has_no_difference() -> None:
    schedule = {"schedule": "linear", "start": 0.0, "end": 0.0, "steps": 9}
    a, b = (config(threshold=schedule, family=family) for family in FAMILIES[::2])
    assert difference(a, b).same


def test_an_explicit_eps_counts() -> None:
    assert difference(config(eps=1e-8), config()).relative == 9.9e-7
    assert difference(config(eps=1e-6, family="paddle"), config()).same
