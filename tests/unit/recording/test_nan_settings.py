"""`unified-clip compare` of clips whose threshold or norm type is NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.recordings import NORMS, clip_line, clip_loop, per_tensor_line

NOT_A_NUMBER = {"threshold": "nan", "coef": "nan", "clipped": True}


def with_nan_threshold(clip: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**clip, **NOT_A_NUMBER, "watched": True, **changes}


def test_a_nan_threshold_equals_itself(compare_runs: Any) -> None:
    comparison = compare_runs([with_nan_threshold(clip_line(1))], [with_nan_threshold(clip_line(1))])
    assert (comparison.first, comparison.findings) == (None, [])


@pytest.mark.parametrize("bounds", [["nan", 1.0], ["nan", "nan"]])
def test_nan_bounds_equal_themselves(compare_runs: Any, bounds: list[Any]) -> None:
    by_value = {**clip_line(1), "rule": "value", "threshold": bounds, "norm": None, "coef": None, "norm_type": None}
    assert compare_runs([by_value], [by_value]).first is None
    comparison = compare_runs([by_value], [{**by_value, "threshold": [0.5, 1.0]}])
    assert comparison.first.stage == "threshold"


def test_a_nan_threshold_differs_from_a_number(compare_runs: Any) -> None:
    comparison = compare_runs([with_nan_threshold(clip_line(1))], [clip_line(1)])
    assert comparison.first.stage == "threshold"
    assert (math.isnan(comparison.first.a), comparison.first.b) == (True, 1.0)
    assert [each.sentence for each in comparison.findings] == [
        "b.jsonl differs from a.jsonl as if the threshold were 1.0 instead of nan"
    ]


def test_no_norm_is_above_or_below_a_nan_threshold(compare_runs: Any) -> None:
    comparison = compare_runs(
        [with_nan_threshold(clip_line(1))], [with_nan_threshold(clip_line(1), coef=1.0, clipped=False)]
    )
    assert {each.stage for each in comparison.divergences} == {"coefficient"}
    assert not comparison.findings


def test_a_nan_norm_type_equals_itself(compare_runs: Any) -> None:
    watched = {**clip_line(1), "norm_type": "nan", "norm": "nan", "coef": "nan", "watched": True}
    assert compare_runs([watched], [watched]).first is None


def test_a_loop_with_a_nan_threshold_is_one_call(compare_runs: Any) -> None:
    calls = [with_nan_threshold(call, coef=["nan"]) for call in clip_loop(1)]
    comparison = compare_runs([with_nan_threshold(per_tensor_line(1), coef=["nan"] * len(NORMS))], calls)
    assert comparison.first is None
    assert len(comparison.pairs) == 1
