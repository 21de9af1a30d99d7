"""`unified-clip compare` names the mistake in a clip: its rule, settings, order or gradients."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import numpy as np
import pytest
from support.recordings import (
    NEW_NAMES,
    NORMS,
    WEIGHTS,
    add_ulps,
    cause_kinds,
    clip_line,
    manual_clip,
    rename_parameters,
)

from unified_clip.recording import runs
from unified_clip.recording.causes import order_of_calls
from unified_clip.recording.report import sentences


def test_per_tensor_for_global(compare_runs: Any) -> None:
    per_tensor = clip_line(1, rule="each", norm=list(NORMS.values()), coef=[1 / norm for norm in NORMS.values()])
    assert (
        cause_kinds(compare_runs([clip_line(1)], [per_tensor]))
        == cause_kinds(compare_runs([per_tensor], [clip_line(1)]))
        == ["per tensor for global"]
    )
    clips = [clip_line(step, {name: norm}) for step, (name, norm) in enumerate(NORMS.items(), start=1)]
    assert cause_kinds(compare_runs([clip_line(1)], clips)) == ["per tensor for global"]
    clips = [{**clip, "rule": "each", "norm": [clip["norm"]], "coef": [clip["coef"]]} for clip in clips]
    assert cause_kinds(compare_runs([clip_line(1)], clips)) == ["per tensor for global"]
    for last in (11.0, 13.0):
        assert cause_kinds(compare_runs([clip_line(1)], [{**per_tensor, "norm": [3.0, 4.0, last]}])) == [
            "per tensor for global"
        ]


def test_a_loop_of_clips_by_total_norm_is_another_rule(compare_runs: Any) -> None:
    """A loop calls `clip_grad_norm_(p, c)` for each parameter."""
    loop = [clip_line(step, {name: norm}) for step in (1, 2) for name, norm in NORMS.items()]
    clips = [clip_line(1), clip_line(2)]
    for pair, rules in (((clips, loop), "total norm and per tensor"), ((loop, clips), "per tensor and total norm")):
        printed = sentences.report_lines(compare_runs(*pair))
        assert printed[3] == f"The runs first differ at step 1: the rules are {rules}."
        assert printed[4].startswith("Per tensor for global: ")
        assert f"unified_clip.numpy.GradientClipBy{'GlobalNorm' if pair[0] is clips else 'Norm'}(c)" in printed[5]
        assert printed[6:9] == [
            "Weights are equal in the one call that was compared.",
            "Gradients' norms are equal in the one call that was compared.",
            "Norms and coefficients were not compared, because the clips have different norms.",
        ]


def test_clips_of_several_steps_are_not_a_clip_per_tensor(compare_runs: Any) -> None:
    """Constant gradients: the norms of two steps may have the total norm of the other run's gradients."""
    steps = [{"step": n, "optimizer": "torch.optim.SGD", "settings": {}, "backward_calls": 1} for n in (1, 2, 3, 4)]
    old = [each for n, step in enumerate(steps, 1) for each in (clip_line(n, {"a": 5.0 * math.sqrt(2)}), step)]
    new = [each for n, step in enumerate(steps, 1) for each in (clip_line(n, {"a": 5.0}), step)]
    assert "per tensor for global" not in cause_kinds(compare_runs(old, new)) + cause_kinds(compare_runs(new, old))
    passes = [{**step, "backward_calls": int(n == 0)} for n, step in enumerate(steps)]  # steps in hooks of one pass
    in_hooks = [each for n, step in enumerate(passes, 1) for each in (clip_line(n, {f"{n}": 5.0}), step)]
    assert "per tensor for global" in cause_kinds(
        compare_runs([clip_line(1, {f"{n}": 5.0 for n in range(1, 5)}), steps[0]], in_hooks)
    )


def test_per_group_for_global(compare_runs: Any) -> None:
    groups = [clip_line(1, {"a": 3.0, "b": 4.0}), clip_line(1, {"c": 12.0})]
    comparison = compare_runs([clip_line(1)], groups)
    assert cause_kinds(comparison) == cause_kinds(compare_runs(groups, [clip_line(1)])) == ["per group for global"]
    assert "b.jsonl clips 2 parts of the gradients by their own norms, and" in comparison.findings[0].sentence
    assert (
        sentences.report_lines(comparison)[3]
        == "The runs first differ at step 1: the rules are total norm and per group."
    )


def test_a_long_run_of_small_norms_is_searched_in_linear_time() -> None:
    tiny = runs.RecordedCall(step=1, call="clip_by_global_norm", rule="global", norm_type=2.0, norm=1e-9, coef=1.0)
    begin = time.process_time()
    assert order_of_calls._norms_up_to(5.0, [tiny] * 50_000) == ([], 0)
    assert time.process_time() - begin < 2


def test_missing_eps(compare_runs: Any) -> None:
    small = {"a": 0.3, "b": 0.4}
    old, new = (clip_line(1, small, threshold=0.1, eps=eps) for eps in (0.0, 1e-6))
    comparison = compare_runs([old], [new])
    assert cause_kinds(comparison) == ["another eps of the clip"]
    assert comparison.first.stage == "coefficient"
    assert cause_kinds(compare_runs([old], [{**new, "coef": 0.1 / (0.5 + 2e-6)}])) == []


def test_coefficients_may_differ_by_the_rounding_of_the_threshold(compare_runs: Any) -> None:
    comparison = compare_runs(
        *([clip_line(1, {"a": 0.3, "b": 0.5}, threshold=threshold)] for threshold in (0.3, float(np.float32(0.3))))
    )
    assert cause_kinds(comparison) == ["rounding"]
    assert comparison.findings[0].sentence.endswith(
        "follow the same formula. The only difference is rounding. To allow this difference, pass --max-ulp 64"
    )


def test_a_norm_without_one_gradient_is_explained_if_one_run_has_norms(compare_runs: Any) -> None:
    fewer = {**clip_line(1, {"a": 3.0, "c": 12.0}), "parameters": {}}
    comparison = compare_runs([clip_line(1)], [fewer])
    assert cause_kinds(comparison) == ["left out"]
    assert "as if 'b' were left out of the norm" in comparison.findings[0].sentence


def test_another_threshold(compare_runs: Any) -> None:
    comparison = compare_runs([clip_line(1)], [clip_line(1, threshold=5.0)])
    assert cause_kinds(comparison) == ["another threshold"]
    assert (comparison.first.a, comparison.first.b) == (1.0, 5.0)
    assert cause_kinds(compare_runs([clip_line(1)], [clip_line(1, threshold=5.0, coef=0.3)])) == []
    fits_the_threshold_of_a = {**manual_clip(clip_line(1), 1 / math.hypot(3, 12)), "threshold": 5.0}
    assert cause_kinds(compare_runs([clip_line(1)], [fits_the_threshold_of_a])) == []


@pytest.mark.parametrize(
    ("threshold", "coef", "kind", "sentence"),
    [
        (
            1.0,
            1.0,
            "not clipped",
            "b.jsonl differs from a.jsonl as if nothing were clipped: the gradients are unchanged",
        ),
        (
            20.0,
            0.5,
            "clipped below the threshold",
            "b.jsonl differs from a.jsonl: b.jsonl changes gradients, although the norm is below 20.0 in both runs",
        ),
    ],
)
def test_a_run_that_ignores_its_threshold(
    compare_runs: Any, threshold: float, coef: float, kind: str, sentence: str
) -> None:
    right, wrong = (clip_line(1, threshold=threshold, **changes) for changes in ({}, {"coef": coef}))
    comparison = compare_runs([right], [wrong])
    assert cause_kinds(comparison) == [kind]
    assert sentence in comparison.findings[0].sentence
    assert "a.jsonl differs from b.jsonl" in compare_runs([wrong], [right]).findings[0].sentence


def test_another_norm_type(compare_runs: Any) -> None:
    assert cause_kinds(compare_runs([clip_line(1)], [clip_line(1, norm_type=1.0, norm=19.0)])) == ["another norm type"]
    assert cause_kinds(compare_runs([clip_line(1)], [clip_line(1, norm_type=1.0, norm=12.0)])) == []


def test_a_missing_parameter_is_left_out(compare_runs: Any) -> None:
    fewer = {"a": 3.0, "c": 12.0}
    comparison = compare_runs([clip_line(1)], [clip_line(1, fewer)])
    assert cause_kinds(comparison) == cause_kinds(compare_runs([clip_line(1, fewer)], [clip_line(1)])) == ["left out"]
    assert "'b' is missing" in comparison.findings[0].sentence
    by_shape = compare_runs([clip_line(1)], [rename_parameters(clip_line(1, {"b": 4.0, "c": 12.0}), NEW_NAMES)])
    assert "'a' is missing" in by_shape.findings[0].sentence
    more = {**NORMS, "d": 5.0, "e": 7.0}
    by_shape = compare_runs(
        [clip_line(1, more)], [rename_parameters(clip_line(1, {"a": 3.0, "d": 5.0}), {"a": "x", "d": "y"})]
    )
    assert "'b', 'e' and 'c' are missing" in by_shape.findings[0].sentence
    assert cause_kinds(compare_runs([clip_line(1)], [clip_line(1, {"a": 3.0, "c": 11.0})])) == ["left out"]


SMALL = {"small": 2.0**-10, "noise": 2.0**-20}
"""A gradient that rounding at the size of the total norm changes by more than 4 of its own ULP, and rounding noise."""


@pytest.mark.parametrize("factor", [1, 8, 1 / 3])
def test_rounding_of_small_gradients_hides_no_cause(compare_runs: Any, factor: float) -> None:
    old, new = {**NORMS, **SMALL}, {**NORMS, "small": add_ulps(2.0**-10, 200), "noise": 3 * 2.0**-20}
    scaled = clip_line(1, {name: factor * norm for name, norm in new.items()})
    assert cause_kinds(compare_runs([clip_line(1, old)], [scaled])) == (
        ["scaled gradients"] if factor != 1 else ["rounding"]
    )
    without_a = {name: factor * norm for name, norm in new.items() if name != "a"}
    renamed = rename_parameters(clip_line(1, without_a), {name: f"new.{name}" for name in without_a})
    comparison = compare_runs([clip_line(1, old)], [renamed])
    assert ("'a' is missing" in str(comparison.findings)) is (factor == 1)


def test_rounding_noise_without_a_common_name_is_not_called_missing(compare_runs: Any) -> None:
    old = {**NORMS, "noise": 2.0**-20, "more noise": 2.0**-21}
    new = clip_line(1, {name: norm for name, norm in old.items() if name != "more noise"})
    renamed = rename_parameters(new, {name: f"new.{name}" for name in new["parameters"]})
    assert "missing" not in str(compare_runs([clip_line(1, old)], [renamed]).findings)


@pytest.mark.parametrize("norms", [{"noise": 0.5}, {"small": 2.0**-9}, {"a": 0.0}])
def test_a_gradient_that_is_noise_in_one_run_only_is_compared(compare_runs: Any, norms: dict[str, float]) -> None:
    old, new = {**NORMS, **SMALL}, {**NORMS, **SMALL, **norms}
    new = {name: norm if name in norms else 8 * norm for name, norm in new.items()}
    assert "scaled gradients" not in cause_kinds(compare_runs([clip_line(1, old)], [clip_line(1, new)]))


def test_swapped_parameters(compare_runs: Any) -> None:
    comparison = compare_runs([clip_line(1)], [clip_line(1, {"a": 4.0, "b": 3.0, "c": 12.0})])
    assert cause_kinds(comparison) == ["swapped"]
    assert "b.jsonl differs from a.jsonl: 'a' and 'b' are swapped" in comparison.findings[0].sentence
    assert "--map" not in comparison.findings[0].sentence
    by_shape = compare_runs(
        [clip_line(1)], [rename_parameters(clip_line(1, {"a": 4.0, "b": 3.0, "c": 12.0}), NEW_NAMES)]
    )
    assert "matched by shape and order: if that is wrong, pass their names with --map" in by_shape.findings[0].sentence
    by_map = compare_runs(
        [clip_line(1)], [rename_parameters(clip_line(1, {"a": 4.0, "b": 3.0, "c": 12.0}), NEW_NAMES)], names=NEW_NAMES
    )
    assert cause_kinds(by_map) == ["swapped"]
    assert "--map" not in by_map.findings[0].sentence
    assert cause_kinds(compare_runs([clip_line(1)], [clip_line(1, {"a": 4.0, "b": 2.0, "c": 12.0})])) == [
        "other data or loss"
    ]


def test_clipping_twice(compare_runs: Any) -> None:
    again = {name: norm / 13 for name, norm in NORMS.items()}
    assert cause_kinds(compare_runs([clip_line(1)], [clip_line(1), clip_line(1, again)])) == ["clipped twice"]
    assert cause_kinds(
        compare_runs([clip_line(1), clip_line(2)], [clip_line(1), clip_line(2, again), clip_line(3)])
    ) == ["clipped twice"]
    assert cause_kinds(compare_runs([clip_line(1)], [clip_line(1), clip_line(1)])) == ["left-out clip"]
    both = [clip_line(1), clip_line(1, again)]
    assert cause_kinds(compare_runs(both, [clip_line(1), clip_line(1, again, threshold=0.5)])) == ["another threshold"]


def test_gradients_that_are_not_finite_in_one_run(compare_runs: Any) -> None:
    nan_clip = clip_line(1, {**NORMS, "b": 4.0}, norm="nan", coef="nan", nan=2)
    nan_clip["parameters"]["b"]["norm"] = "nan"
    comparison = compare_runs([clip_line(1)], [nan_clip])
    assert cause_kinds(comparison) == ["not finite in one run"]
    expected = "are not finite. They contain 2 NaN and 0 inf. Affected parameters: 'b'"
    assert comparison.findings[0].sentence == f"only the gradients of b.jsonl {expected}"
    assert compare_runs([nan_clip], [nan_clip]).first is None
    without_names = {**nan_clip, "parameters": dict(zip("012", nan_clip["parameters"].values(), strict=True))}
    for recordings in (([clip_line(1)], [without_names]), ([without_names], [clip_line(1)])):
        assert expected in compare_runs(*recordings).findings[0].sentence


def test_scaled_gradients(compare_runs: Any) -> None:
    comparison = compare_runs([clip_line(1)], [clip_line(1, {name: 8 * norm for name, norm in NORMS.items()})])
    assert cause_kinds(comparison) == ["scaled gradients"]
    assert "b.jsonl differs from a.jsonl as if every gradient were 8 times as large" in comparison.findings[0].sentence
    rounded = {"a": 3.0 / 7 * (1 + 4e-6), "b": 4.0 / 7, "c": 12.0 / 7 * (1 - 4e-6)}
    comparison = compare_runs([clip_line(1)], [clip_line(1, rounded)])
    assert cause_kinds(comparison) == ["scaled gradients"]
    assert "a.jsonl differs from b.jsonl as if every gradient were 6.9999" in comparison.findings[0].sentence
    assert cause_kinds(compare_runs([clip_line(1)], [clip_line(1, {"a": 6.0, "b": 8.0, "c": 24.1})])) == [
        "other data or loss"
    ]


def test_a_mistake_after_rounding_is_named(compare_runs: Any) -> None:
    near = {**NORMS, "a": float(np.nextafter(np.float32(3), np.float32(4)))}
    swapped = {"a": 4.0, "b": 3.0, "c": 12.0}
    comparison = compare_runs([clip_line(1), clip_line(2)], [clip_line(1, near), clip_line(2, swapped)])
    assert [(first.step, [each.kind for each in causes]) for first, causes in comparison.divergences.items()] == [
        (2, ["swapped"]),
        (1, ["rounding"]),
    ]


def test_other_gradients_without_weights_are_unexplained(compare_runs: Any) -> None:
    without_weights = [clip_line(1, norms, weights={}) for norms in (NORMS, {"a": 3.5, "b": 4.0, "c": 12.0})]
    comparison = compare_runs(*([each] for each in without_weights))
    assert comparison.exit_code == 1
    assert comparison.findings == []
    assert cause_kinds(compare_runs([clip_line(1)], [clip_line(1, {"a": 3.5, "b": 4.0, "c": 12.0})])) == [
        "other data or loss"
    ]


def test_another_rule(compare_runs: Any) -> None:
    bounded = {**clip_line(1, rule="value", norm_type=None, norm=None, coef=None), "threshold": [-1.0, 1.0]}
    (finding,) = compare_runs([clip_line(1)], [bounded]).findings
    assert finding.sentence == ("a.jsonl clips by the total norm, b.jsonl by value")


def test_a_shorter_run_is_named(compare_runs: Any) -> None:
    comparison = compare_runs([clip_line(1), clip_line(2)], [clip_line(1), clip_line(2), clip_line(3)])
    assert [each.sentence for each in comparison.findings] == ["a.jsonl ends after 2 of the 3 calls of b.jsonl"]
    assert cause_kinds(compare_runs([clip_line(1), clip_line(3)], [clip_line(1), clip_line(2), clip_line(3)])) == []


def test_a_cause_of_two_differences_is_printed_once(compare_runs: Any) -> None:
    near = {"a": float(np.nextafter(np.float32(3), np.float32(4))), "b": 4.0}
    printed = sentences.report_lines(compare_runs([clip_line(1)], [clip_line(1, near)]))
    assert len([each for each in printed if each.startswith("Left out")]) == 1


def test_norms_that_are_shifted_by_a_step(compare_runs: Any) -> None:
    norms = [{"a": 3.0 + step, "b": 4.0, "c": 12.0} for step in range(6)]
    all_steps = [clip_line(step, each) for step, each in enumerate(norms, start=1)]
    ahead = [clip_line(step, each) for step, each in enumerate(norms[1:], start=1)]
    comparison = compare_runs(all_steps, ahead)
    assert cause_kinds(comparison)[0] == "shifted step"
    text = f"b.jsonl is 1 step ahead of a.jsonl: {len(ahead)} norms agree with later norms of a.jsonl."
    assert text in comparison.findings[0].sentence
    assert "a.jsonl is 1 step ahead of b.jsonl" in compare_runs(ahead, all_steps).findings[0].sentence
    same = [clip_line(step) for step in range(1, 5)]
    assert "shifted step" not in cause_kinds(compare_runs([clip_line(1, norms[3]), *same[1:]], same))


@pytest.mark.parametrize("counts_calls", [True, False])
def test_a_loop_of_clips_by_value_differs_from_one_global_clip_in_the_rule(
    compare_runs: Any, counts_calls: bool
) -> None:
    by_value = {
        "rule": "value",
        "threshold": [-0.5, 0.5],
        "norm_type": None,
        "norm": None,
        "coef": None,
        "call": "clip",
    }
    loop = [{**clip_line(step, {name: norm}), **by_value} for step in (1, 2) for name, norm in NORMS.items()]
    if counts_calls:
        loop = [{**each, "step": number} for number, each in enumerate(loop, start=1)]
    once = [clip_line(1, count=3), clip_line(2, count=3)]
    for lines in ((loop, once), (once, loop)):
        comparison = compare_runs(*lines)
        assert cause_kinds(comparison) == ["another rule"]
        assert [len(run.lines) for run in (comparison.a, comparison.b)] == [2, 2]


def test_a_cause_is_explained_once_and_then_named(compare_runs: Any) -> None:
    comparison = compare_runs([clip_line(1), clip_line(2)], [clip_line(1, threshold=2.0), clip_line(2, threshold=2.0)])
    (first, causes), again = *comparison.divergences.items(), dataclasses.replace(comparison.first, step=2)
    repeated = dataclasses.replace(comparison, divergences={first: causes, again: causes})
    printed = sentences.describe(repeated)
    assert sum(sentence.startswith("Another threshold: ") for sentence in printed) == 1
    assert printed[printed.index("Same cause as at step 1: Another threshold.") - 1].startswith(
        "The runs also differ at step 2"
    )


def test_thresholds_that_had_no_effect_do_not_explain_later_differences(compare_runs: Any) -> None:
    small = {name: norm / 100 for name, norm in NORMS.items()}
    moved = {name: weight * 2 for name, weight in WEIGHTS.items()}
    old = [clip_line(1, small), clip_line(2, small)]
    new = [clip_line(1, small, threshold=2.0), clip_line(2, small, threshold=2.0, weights=moved)]
    printed = sentences.report_lines(compare_runs(old, new))
    expected = "thresholds do not explain the other differences: weights from step 2 on. Compare the optimizers"
    assert expected in printed[-1]
    same_weights = [clip_line(1, small, threshold=2.0), clip_line(2, small, threshold=2.0)]
    assert not any("do not explain" in sentence for sentence in sentences.report_lines(compare_runs(old, same_weights)))
    clipped = [clip_line(1), clip_line(2)], [clip_line(1, threshold=2.0), clip_line(2, threshold=2.0, weights=moved)]
    assert not any("do not explain" in sentence for sentence in sentences.report_lines(compare_runs(*clipped)))
