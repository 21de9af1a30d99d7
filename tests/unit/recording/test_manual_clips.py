"""`unified-clip compare` names the mistake in a clip by the user's code, whose settings are not recorded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.recordings import NORMS, cause_kinds, clip_line, manual_clip, per_tensor_line, write_and_compare

SMALL_LINE = clip_line(1, {"a": 0.3, "b": 0.4}, threshold=0.1)

ONE_GRADIENT = clip_line(1, {"a": 3.001})

MANUAL_CLIPS = {
    "another eps of the clip": (
        SMALL_LINE,
        manual_clip(SMALL_LINE, 0.1 / (0.5 + 1e-5)),
        "as if eps were 1e-05 instead of 0",
    ),
    "left out": (clip_line(1), manual_clip(clip_line(1), 1 / math.hypot(3, 12)), "as if 'b' were left out of the norm"),
    "16 bits": (ONE_GRADIENT, manual_clip(ONE_GRADIENT, 1 / 3.0), "as if the norm were rounded to bfloat16"),
    "clipped twice": (
        clip_line(1),
        manual_clip(clip_line(1), 1 / 13**2),
        "as if the coefficient were applied twice",
    ),
    "not clipped": (clip_line(1), manual_clip(clip_line(1), 1.0), "as if nothing were clipped"),
    "another threshold": (
        per_tensor_line(1),
        manual_clip(per_tensor_line(1), [0.5 / norm for norm in NORMS.values()]),
        "as if the threshold were 0.5 instead of 1",
    ),
}
"""A clip by unified_clip, the same clip by hand with a mistake, and the cause."""


@pytest.mark.parametrize("kind", MANUAL_CLIPS)
def test_a_mistake_in_a_manual_clip_is_named(compare_runs: Any, kind: str) -> None:
    right, wrong, sentence = MANUAL_CLIPS[kind]
    comparison = compare_runs([right], [wrong])
    assert cause_kinds(comparison) == [kind]
    assert f"b.jsonl differs from a.jsonl {sentence}" in comparison.findings[0].sentence
    assert "a.jsonl differs from b.jsonl" in compare_runs([wrong], [right]).findings[0].sentence


def test_a_manual_clip_that_no_cause_explains_is_unexplained(compare_runs: Any) -> None:
    assert cause_kinds(compare_runs([per_tensor_line(1)], [manual_clip(per_tensor_line(1), [0.1, 0.2, 0.03])])) == []


MISTAKES: dict[str, Callable[[list[float], float], float]] = {
    "another eps of the clip": lambda norms, threshold: threshold / (math.hypot(*norms) + 1e-5),
    "left out": lambda norms, threshold: threshold / math.hypot(*norms[1:]),
    "16 bits": lambda norms, threshold: threshold / float(np.float16(math.hypot(*norms))),
    "clipped twice": lambda norms, threshold: (threshold / math.hypot(*norms)) ** 2,
    "another threshold": lambda norms, threshold: 0.8765432 * threshold / math.hypot(*norms),
}


@pytest.mark.parametrize("kind", MISTAKES)
@given(norms=st.lists(st.floats(1e-3, 100), min_size=2, max_size=5), ratio=st.floats(0.01, 0.9))
def test_a_random_mistake_in_a_manual_clip_gets_no_wrong_cause(
    tmp_path_factory: pytest.TempPathFactory, kind: str, norms: list[float], ratio: float
) -> None:
    directory = tmp_path_factory.mktemp("runs")
    right = clip_line(1, {str(index): norm for index, norm in enumerate(norms)}, threshold=ratio * math.hypot(*norms))
    wrong = manual_clip(right, min(1.0, MISTAKES[kind](norms, right["threshold"])))
    comparison = write_and_compare(directory, [right], [wrong])
    facts = {"not clipped"} if wrong["coef"] == 1 else {"coefficient"} if kind == "another threshold" else set()
    assert set(cause_kinds(comparison)) <= {kind, "rounding", *facts}
