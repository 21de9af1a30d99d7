"""`unified-clip compare`: which numbers are equal, which are rounding, and which differences are reported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.recordings import NORMS, WEIGHTS, add_ulps, cause_kinds, clip_line, per_tensor_line, with_steps

from unified_clip.recording import rounding
from unified_clip.recording.report import model, page, sentences


@pytest.mark.parametrize("norm_type", [5e-324, 1e-300, 1e-3, 1e300, "inf"])
def test_any_norm_type_is_compared(compare_runs: Any, norm_type: Any) -> None:
    comparison = compare_runs([clip_line(1)], [clip_line(1, norm_type=norm_type)])
    assert (comparison.first.stage, comparison.first.b) == ("norm type", float(norm_type))
    watched = compare_runs([clip_line(1)], [clip_line(1, norm_type=0, watched=True)])
    assert watched.first.stage == "norm type"


def test_distances_are_in_ulp_of_float32_or_of_float64_for_larger_numbers() -> None:
    unit = float(np.float32(1))
    assert rounding.distance(unit, float(np.nextafter(np.float32(1), np.float32(2)))).ulps == 1
    assert rounding.distance(1.0, float(np.nextafter(1.0, 2.0))).ulps == 1
    assert rounding.distance(-(2.0**-149), 2.0**-149).ulps == 2
    assert rounding.distance(math.nan, math.nan).ulps == 0
    assert rounding.distance(math.inf, 1.0).ulps == math.inf
    assert rounding.distance(2.0, 1.0).relative == 0.5
    assert rounding.distance(1e39, float(np.nextafter(1e39, 2e39))).ulps == 1  # above the largest float32
    assert rounding.distance(1e39, 1.0).ulps > 1e16


def test_runs_are_the_same_up_to_max_ulp(compare_runs: Any) -> None:
    near = {**NORMS, "a": float(np.nextafter(np.float32(3), np.float32(4)))}
    comparison = compare_runs([clip_line(1), clip_line(2)], [clip_line(1), clip_line(2, near)])
    assert (comparison.first.step, comparison.first.stage, comparison.first.parameter) == (2, "gradient", "a")
    assert comparison.first.ulps == 1
    assert cause_kinds(comparison) == ["rounding"]
    assert "To allow such differences, pass --max-ulp 64." in comparison.findings[0].sentence
    assert [(each.stage, each.differs_at_step) for each in comparison.agreements] == [
        ("weight", None), ("gradient", 2), ("norm", None), ("coefficient", None),
    ]  # fmt: skip
    assert compare_runs([clip_line(1), clip_line(2)], [clip_line(1), clip_line(2, near)], max_ulp=1).first is None


@pytest.mark.parametrize(("dtypes", "ulps"), [(("float64", "float64"), 2.0**29), (("float32", "float64"), 1)])
def test_the_unit_depends_on_the_dtypes_of_both_runs(compare_runs: Any, dtypes: Sequence[str], ulps: float) -> None:
    """Float32 represents both norms."""
    near = {**NORMS, "a": add_ulps(3.0, 1)}
    runs = ([clip_line(1, norms, dtype=dtype)] for norms, dtype in zip((NORMS, near), dtypes, strict=True))
    comparison = compare_runs(*runs)
    assert (comparison.first.parameter, comparison.first.ulps) == ("a", ulps)


def test_norms_and_losses_of_float32_runs_are_compared_in_float32(compare_runs: Any) -> None:
    runs = ([clip_line(1, {**NORMS, "a": a}), {"step": 1, "logged": {"loss": a}}] for a in (0.3, 0.3 + 1e-12))
    comparison = compare_runs(*runs)
    assert comparison.first is None
    assert "loss is equal at all 1 steps." in sentences.report_lines(comparison)


def test_coefficients_whose_difference_changes_no_gradient_are_the_same(compare_runs: Any) -> None:
    assert compare_runs([clip_line(1, eps=0.0)], [clip_line(1, eps=1e-7)]).first is None


def test_another_number_of_norms_is_a_difference(compare_runs: Any) -> None:
    clip = clip_line(1, rule="each", norm=[3.0, 4.0], coef=[1 / 3, 1 / 4], parameters={})
    comparison = compare_runs([clip], [{**clip, "norm": [3.0, 4.0, 5.0], "coef": [1 / 3, 1 / 4, 1 / 5]}])
    assert (comparison.first.stage, comparison.first.a, comparison.first.b) == ("norms", 2, 3)
    assert "2 and 3 norms" in sentences.report_lines(comparison)[3]


def test_weights_are_compared_if_their_norms_have_the_same_norm_type(compare_runs: Any) -> None:
    by_sum = clip_line(1, norm_type=1.0, norm=19.0, weights={"a": 1.5, "b": 3.0, "c": 5.0})
    assert [each.stage for each in compare_runs([clip_line(1)], [by_sum]).agreements] == []
    bounded = {**clip_line(1, rule="value", norm_type=None, norm=None, coef=None), "threshold": [-1.0, 1.0]}
    assert [each.stage for each in compare_runs([clip_line(1)], [bounded]).agreements] == ["weight", "gradient"]


def test_a_threshold_in_float32_equals_the_same_number_in_float64(compare_runs: Any) -> None:
    single = float(np.float32(0.1))
    old, new = clip_line(1, threshold=0.1), clip_line(1, threshold=single)
    assert compare_runs([old], [new], max_ulp=1).first is None
    assert compare_runs([{**old, "dtype": "float64"}], [{**new, "dtype": "float64"}]).first.stage == "threshold"
    for pair in ((old, {**new, "dtype": "float64"}), ({**old, "dtype": "float64"}, new)):
        assert compare_runs(*([each] for each in pair), max_ulp=1).first is None


def test_a_call_that_one_run_lacks_is_a_difference_of_calls(compare_runs: Any) -> None:
    comparison = compare_runs([clip_line(1), clip_line(2), clip_line(3)], [clip_line(1), clip_line(3)])
    assert (comparison.first.stage, comparison.first.step, comparison.first.a, comparison.first.b) == ("calls", 2, 1, 0)


def test_a_call_that_fails_in_one_run_is_a_difference(compare_runs: Any) -> None:
    failed = {"step": 1, "call": "clip_grad_norm_", "seconds": 0.1, "error": "ValueError: no"}
    failed["step"] = 2
    assert compare_runs([clip_line(1), clip_line(2)], [clip_line(1), failed]).first.stage == "error"
    assert compare_runs([clip_line(1), failed], [clip_line(1), failed]).first is None


SMALL_NORM = {**NORMS, "a": 2.0**-10}


def test_rounding_of_a_norm_is_measured_at_the_size_of_the_total_norm(compare_runs: Any) -> None:
    comparison = compare_runs([clip_line(1, SMALL_NORM)], [clip_line(1, {**SMALL_NORM, "a": add_ulps(2.0**-10, 80)})])
    assert (comparison.first.parameter, comparison.first.ulps) == ("a", 80)
    assert comparison.first.ulps_at_its_size < 1
    assert cause_kinds(comparison) == ["rounding"]
    assert "80 ULP of the compared numbers, but only 0.012 ULP of the total norm" in comparison.findings[0].sentence
    assert comparison.exit_code == 1
    assert cause_kinds(compare_runs([clip_line(1)], [clip_line(1, {**NORMS, "a": add_ulps(3.0, 800)})])) == [
        "other data or loss"
    ]


def test_rounding_of_a_weight_is_measured_at_its_largest_earlier_size(compare_runs: Any) -> None:
    small, moved = {**WEIGHTS, "a": 2.0**-10}, {**WEIGHTS, "a": add_ulps(2.0**-10, 80)}
    comparison = compare_runs([clip_line(1), clip_line(2, weights=small)], [clip_line(1), clip_line(2, weights=moved)])
    assert cause_kinds(comparison) == ["rounding"]
    assert cause_kinds(compare_runs([clip_line(1, weights=small)], [clip_line(1, weights=moved)])) == [
        "other initial weights"
    ]


@pytest.mark.parametrize(
    ("changes", "stage", "mistake"),
    [
        ({"threshold": 2.0}, "threshold", "another threshold"),
        ({"norm_type": 1.0, "norm": 20.0, "coef": 0.05}, "norm type", "another norm type"),
        ({"coef": 1.0}, "clipped", "not clipped"),
    ],
)
@pytest.mark.parametrize("jump", [80, 2**20])
def test_a_different_setting_is_reported_after_any_earlier_difference(
    compare_runs: Any, jump: int, changes: dict[str, Any], stage: str, mistake: str
) -> None:
    moved = {**NORMS, "a": add_ulps(3.0, jump)}
    old = [clip_line(step) for step in range(1, 6)]
    comparison = compare_runs(
        old, [clip_line(1), *(clip_line(step, moved) for step in range(2, 5)), clip_line(5, moved, **changes)]
    )
    assert {each.step for each in comparison.divergences} == {2, 5}
    assert (5, stage) in [(each.step, each.stage) for each in comparison.divergences]
    assert mistake in cause_kinds(comparison)
    assert "at step 5" in "".join(sentences.describe(comparison))


def test_an_additional_call_after_rounding_is_reported(compare_runs: Any) -> None:
    near = {**NORMS, "a": add_ulps(3.0, 10)}
    comparison = compare_runs(
        [clip_line(1), clip_line(2), clip_line(3)],
        [clip_line(1, near), clip_line(2, near), clip_line(2, near), clip_line(3, near)],
    )
    assert [(each.step, each.stage) for each in comparison.divergences] == [(2, "calls"), (1, "gradient")]


def test_only_the_difference_beyond_rounding_is_reported_of_a_call(compare_runs: Any) -> None:
    old = [clip_line(1), clip_line(2)]
    near, faster = {**NORMS, "a": add_ulps(3.0, 10)}, {**WEIGHTS, "a": add_ulps(1.0, 3), "c": 3.1}
    comparison = compare_runs(old, [clip_line(1, near), clip_line(2, near, weights=faster)])
    assert [(each.step, each.stage, each.parameter) for each in comparison.divergences] == [
        (2, "weight", "c"),
        (1, "gradient", "a"),
    ]
    missing = compare_runs(old[:1], [clip_line(1, {"a": add_ulps(3.0, 1), "b": 4.0})])
    assert cause_kinds(missing) == ["left out"]


@pytest.mark.parametrize("rule", ["each", "value"])
@pytest.mark.parametrize("norm_type", [0, -1, 1e-300])
def test_gradients_are_compared_one_by_one_if_norm_type_has_no_total_norm(
    compare_runs: Any, rule: str, norm_type: float
) -> None:
    calls = [
        per_tensor_line(1, norm_type=norm_type, watched=True, rule=rule),
        per_tensor_line(1, {**NORMS, "a": 3.5}, norm_type=norm_type, watched=True, rule=rule),
    ]
    assert compare_runs(calls[:1], calls[1:]).first.parameter == "a"


def test_growing_rounding_is_a_cause_and_a_jump_is_not(compare_runs: Any) -> None:
    grown = [clip_line(step, {**NORMS, "a": add_ulps(3.0, ulps)}) for step, ulps in enumerate((60, 400, 3000), start=1)]
    old = [clip_line(step) for step in range(1, 5)]
    comparison = compare_runs(old, [*grown, clip_line(4)])
    assert cause_kinds(comparison) == ["rounding", "rounding that has grown"]
    swapped = clip_line(4, {"a": 4.0, "b": 3.0, "c": 12.0})
    assert cause_kinds(compare_runs(old, [*grown, swapped])) == ["swapped", "rounding", "rounding that has grown"]
    assert cause_kinds(compare_runs(old[:2], [clip_line(1), {**grown[2], "step": 2}])) == ["other data or loss"]


def test_thresholds_that_were_not_compared_are_reported(compare_runs: Any) -> None:
    known, unknown = clip_line(1), {**clip_line(1), "threshold": None}
    assert sentences.describe(compare_runs([known, clip_line(2)], [unknown, clip_line(2)])) == [
        "The runs are the same: 2 calls.",
        "Thresholds were not compared in 1 of 2 calls: at least one run recorded no number for the threshold.",
    ]


def moved_by(*sizes: int) -> list[dict[str, Any]]:
    return [clip_line(step, {**NORMS, "c": add_ulps(12.0, ulps)}) for step, ulps in enumerate(sizes, start=1)]


@pytest.mark.parametrize(
    ("sizes", "is_same"),
    [
        ((0, 0, 0), True),
        ((60, 60, 60), True),  # at most 64 ULP
        ((60, 900, 14000), True),  # at most 16 times as much as before
        ((60, 1100, 1100), False),
        ((100, 100, 100), False),  # rounding begins with less
        ((60, 900, 14000, 200_000), False),  # more than 1 %
    ],
)
def test_by_default_a_difference_that_rounding_explains_is_tolerated(
    compare_runs: Any, sizes: tuple[int, ...], is_same: bool
) -> None:
    old, new = moved_by(*(0 for _ in sizes)), moved_by(*sizes)
    assert compare_runs(old, new, max_ulp=None).exit_code == (not is_same)
    assert compare_runs(old, new).exit_code == any(sizes), "with --exact, every bit counts"
    (first, *_) = sentences.report_lines(compare_runs(old, new, max_ulp=None))
    assert first.startswith("The runs are the same" if is_same else "The runs differ from step")


def test_a_report_leads_with_the_first_cause_that_is_not_rounding(compare_runs: Any) -> None:
    old = with_steps(moved_by(0, 0, 0))
    new = with_steps(moved_by(2, 9, 40), settings={"lr": 0.2, "eps": 1e-8})
    for max_ulp in (None, 0):
        report = model.build(compare_runs(old, new, max_ulp=max_ulp))
        assert report.headline == report.sentences[0] == "The runs differ from step 1 on: another learning rate."
        assert f"<span>{report.headline}</span>" in page.render(report)
        assert report.divergences[0].findings[0].mistake == "another learning rate"
