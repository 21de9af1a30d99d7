"""`unified-clip compare` names mistakes that show in weights: late clips, other weights, other optimizers."""

from __future__ import annotations

from typing import Any

import pytest
from support.recordings import (
    NEW_NAMES,
    NORMS,
    WEIGHTS,
    add_ulps,
    cause_kinds,
    clip_line,
    rename_parameters,
    step_line,
    with_steps,
)

from unified_clip.recording.report import sentences


def test_clipping_after_the_step(compare_runs: Any) -> None:
    moved, later = {"a": 0.9, "b": 1.8, "c": 3.3}, {"a": 0.99, "b": 1.98, "c": 3.03}
    late = [clip_line(1, weights=moved), clip_line(2, weights={"a": 0.8, "b": 1.6, "c": 3.6})]
    right = [clip_line(1), clip_line(2, weights=later)]
    comparison = compare_runs(right, late)
    assert cause_kinds(comparison) == ["clipping after the step"]
    assert "b.jsonl clips after its optimizer has stepped" in comparison.findings[0].sentence
    assert "a.jsonl clips after its optimizer has stepped" in compare_runs(late, right).findings[0].sentence
    assert "one of the two runs clips after" in compare_runs(right[:1], late[:1]).findings[0].sentence
    steps_first = [line for clip in late for line in (step_line(clip["step"]), clip)]
    (cause,) = compare_runs(with_steps(right), steps_first).findings
    assert str(cause).startswith("Clipping after the step: b.jsonl clips after the optimizer step")
    elsewhere = clip_line(1, {**NORMS, "a": 3.5}, weights=moved)
    assert cause_kinds(compare_runs(right[:1], [elsewhere])) == ["other initial weights"]


def test_other_weights_with_equal_gradients_are_no_step(compare_runs: Any) -> None:
    """The gradients of a linear loss do not depend on the weights. None depends on a bias before a normalization."""
    first_clip, faster = clip_line(1), clip_line(2, weights={"a": 0.9, "b": 1.8, "c": 3.3})
    assert cause_kinds(compare_runs([first_clip, clip_line(2)], [first_clip, faster])) == ["another optimizer"]
    assert cause_kinds(compare_runs([first_clip], [clip_line(1, weights={**WEIGHTS, "a": 5.0})])) == [
        "other initial weights"
    ]


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({}, "another update", "Both runs use the same optimizer with the same recorded settings"),
        ({}, "another update", "Also look for code that changes gradients between the clip and the step"),
        ({"optimizer": "train.Adam"}, "another optimizer", "This is only a possible cause. Compare the optimizers"),
    ],
)
def test_weights_after_equal_steps_of_optimizers(compare_runs: Any, changes: Any, kind: str, text: str) -> None:
    clips, moved = [clip_line(1), clip_line(2)], [clip_line(1), clip_line(2, weights={**WEIGHTS, "a": 1.5})]
    (cause,) = compare_runs(with_steps(clips, **changes), with_steps(moved, **changes)).findings
    assert cause.kind == kind
    assert text in cause.sentence


@pytest.mark.parametrize(("counts", "named"), [((0, 3), True), ((None, 3), True), ((3, 0), True), ((3, 3), False)])
def test_changes_after_one_clip_explain_other_weights(compare_runs: Any, counts: tuple[Any, Any], named: bool) -> None:
    clips, moved = [clip_line(1), clip_line(2)], [clip_line(1), clip_line(2, weights={**WEIGHTS, "a": 1.5})]
    runs = (with_steps(each, changed_after_clip=n) for each, n in zip((clips, moved), counts, strict=True))
    (cause,) = compare_runs(*runs).findings
    assert (cause.kind == "the clip does not reach the step") == named
    if named:
        name = "a.jsonl" if counts[0] else "b.jsonl"
        assert f"Other code of {name} changes 3 gradients between the clip and the step. Remove" in cause.sentence


@pytest.mark.parametrize(("factor", "named"), [(1.0, False), (1.001, False), (0.5, True)])
def test_a_copy_of_the_clipped_gradients_does_not_explain_other_weights(
    compare_runs: Any, factor: float, named: bool
) -> None:
    """Optimizers of mixed precision get copies of the gradients after the clip."""
    clips, moved = [clip_line(1), clip_line(2)], [clip_line(1), clip_line(2, weights={**WEIGHTS, "a": 1.5})]
    clipped = clips[0]["norm"] * clips[0]["coef"]
    (cause,) = compare_runs(
        with_steps(clips), with_steps(moved, changed_after_clip=3, norm_at_step=factor * clipped)
    ).findings
    assert (cause.kind == "the clip does not reach the step") == named
    assert "code" in cause.sentence


@pytest.mark.parametrize(
    ("fields", "kind", "hint"),
    [
        ({}, "scaled gradients", True),
        ({"changed_after_clip": 0}, "scaled gradients", False),
        ({"changed_after_clip": 3, "norm_at_step": 0.5}, "scaled gradients", True),
        ({"changed_after_clip": 3, "norm_at_step": 1 / 128}, "clipping before unscaling", False),
    ],
)
def test_a_division_after_the_clip_of_scaled_gradients(compare_runs: Any, fields: Any, kind: str, hint: bool) -> None:
    scaled = clip_line(1, {name: 128 * norm for name, norm in NORMS.items()})
    runs = with_steps([clip_line(1)]), with_steps([scaled], **fields)
    for a, b, name in ((*runs, "b.jsonl"), (*runs[::-1], "a.jsonl")):
        (cause,) = compare_runs(a, b).findings
        assert cause.kind == kind
        advice = f"If {name} divides the gradients by 128 after the clip, divide them before the clip instead"
        assert (advice in cause.sentence) == hint


def test_settings_of_optimizers_without_an_effect_are_no_cause(compare_runs: Any) -> None:
    other_eps = {"settings": {"lr": 0.1, "eps": 1e-7}}
    clips, moved = [clip_line(1), clip_line(2)], [clip_line(1), clip_line(2, {**NORMS, "a": 3.5})]
    assert cause_kinds(compare_runs(with_steps(clips), with_steps(moved, **other_eps))) == ["another optimizer"]
    comparison = compare_runs(
        with_steps([*clips, clip_line(3)]), with_steps(clips, **other_eps) + with_steps([clip_line(3)])
    )
    assert cause_kinds(comparison) == []
    last = with_steps(clips[:1]) + with_steps(clips[1:], **other_eps)
    assert cause_kinds(compare_runs(with_steps(clips), last)) == [
        "another optimizer"
    ]  # no later number shows the effect


@pytest.mark.parametrize(
    ("left", "right", "texts"),
    [
        ({}, {"y.weight": 0.3}, ["of 'y.weight' is 0.3 instead of 0.1"]),
        ({"b": 0.3}, {"x.weight": 0.3}, ["of 'x.weight' is 0.3 instead of 0.1", "of 'y.weight' is 0.1 instead of 0.3"]),
        ({"b": 0.3}, {"y.weight": 0.3}, []),
    ],
)
def test_parameters_with_another_learning_rate_are_named(
    compare_runs: Any, left: dict[str, float], right: dict[str, float], texts: list[str]
) -> None:
    """Two runs can have the same learning rates for other parameters."""
    runs = []
    for clip, rates in ((clip_line(1), left), (rename_parameters(clip_line(1), NEW_NAMES), right)):
        of_names = {name: rates.get(name, 0.1) for name in clip["parameters"]} if rates else {}
        runs.append(with_steps([clip], settings={"lr": [0.1, 0.3] if rates else 0.1}, rates=of_names))
    comparison = compare_runs(*runs)
    assert cause_kinds(comparison) == ["another learning rate"][: len(texts)]
    printed = " ".join(sentences.report_lines(comparison))
    assert all(f"The learning rate {text}" in printed for text in texts)


def test_groups_of_parameters_may_have_another_order(compare_runs: Any) -> None:
    clips, decays = [clip_line(1)], ([0.1, 0.0], [0.0, 0.1], [0.1, 0.1])
    first, reordered, two_decays = (with_steps(clips, settings={"weight_decay": decay}) for decay in decays)
    assert compare_runs(first, reordered).first is None
    assert cause_kinds(compare_runs(first, two_decays)) == ["another optimizer"]


def test_groups_that_decay_other_parameters_are_another_optimizer(compare_runs: Any) -> None:
    """Only if both optimizers change equally many elements: a rank that has shards changes fewer."""
    clips, moved = [clip_line(1), clip_line(2)], [clip_line(1), clip_line(2, weights={"a": 0.9, "b": 1.8, "c": 3.3})]
    old, same, more, shards = (
        with_steps(lines, settings={"weight_decay": [0.1, 0.0]}, decayed=counts)
        for lines, counts in ((clips, [6, 9]), (clips, [6, 9]), (moved, [7, 9]), (moved, [3, 5]))
    )
    assert compare_runs(old, same).first is None
    (cause,) = compare_runs(old, more).findings
    assert "weight decay for 7 of 9 elements instead of 6. Compare which parameters have weight decay" in cause.sentence
    assert "elements" not in str(compare_runs(old, shards).findings)


FORMULA, BACKWARD = (
    "so compare the formulas first, such as GELU",
    "The losses of this step agree, so compare the backward pass first",
)


@pytest.mark.parametrize(("factor", "kind"), [(1 + 1e-12, "other gradients"), (1 + 1e-9, "other data or loss")])
def test_a_tiny_difference_of_float64_gradients_is_not_other_data(compare_runs: Any, factor: float, kind: str) -> None:
    """A gradient whose true value is 0, here `z`, differs completely."""
    norms = {name: factor * norm for name, norm in NORMS.items()} | {"b": NORMS["b"]}
    runs = ({**NORMS, "z": 1e-16}, {**norms, "z": 1e-12})
    (cause,) = compare_runs(
        *([clip_line(1, each, dtype="float64", weights=dict.fromkeys(each, 1.0))] for each in runs)
    ).findings
    assert cause.kind == kind
    assert ("gradients of paddle.norm and Paddle's weight_norm contain an eps of 1e-12" in cause.sentence) == (
        kind == "other gradients"
    )
    assert "Only the gradients of" not in cause.sentence


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_run_without_recorded_optimizer_steps_is_named(compare_runs: Any, is_recorded: bool) -> None:
    """The first difference is rounding. The next step differs by more."""
    norms = [{**NORMS, "a": add_ulps(3.0, 2)}, {**NORMS, "a": 3.5}]
    old, new = (
        [clip_line(1, first, weights={}), clip_line(2, second, weights={})] for first, second in ((NORMS, NORMS), norms)
    )
    comparison = compare_runs(with_steps(old) if is_recorded else old, with_steps(new))
    text = "\n".join(sentences.report_lines(comparison))
    assert "Clipping is the same up to step 1" in text
    assert ("a.jsonl has no recorded optimizer steps, so the settings" in text) != is_recorded


def test_a_run_without_optimizer_steps_is_reported_even_if_the_runs_agree(compare_runs: Any) -> None:
    clips = [clip_line(1), clip_line(2)]
    unknown = "b.jsonl has no recorded optimizer steps, so the settings of the optimizers were not compared."
    for a, b, is_unknown in (
        (with_steps(clips), clips, True),
        (with_steps(clips), with_steps(clips), False),
        (with_steps(clips), [clip_line(1, threshold=0.5), clip_line(2, threshold=0.5)], True),
    ):
        printed = sentences.report_lines(compare_runs(a, b))
        assert any(line.startswith(unknown) for line in printed) == is_unknown


@pytest.mark.parametrize(
    ("optimizer", "settings", "names"),
    [
        ("mine.BertAdam", {"lr": 0.1}, ["betas", "weight_decay"]),
        ("mine.BertAdam", {"betas": [0.9, 0.999], "lr": 0.1}, ["weight_decay"]),
        ("mine.BertAdam", {"betas": [0.9, 0.999], "lr": 0.1, "weight_decay": [0.1, 0.0]}, []),
    ],
)
def test_settings_that_only_one_recording_contains_are_named(
    compare_runs: Any, optimizer: str, settings: dict[str, Any], names: list[str]
) -> None:
    known = {"lr": 0.1, "betas": [0.9, 0.999], "weight_decay": [0.1, 0.0], "amsgrad": False}
    old = with_steps([clip_line(1)], optimizer=optimizer, settings=settings)
    new = with_steps([clip_line(1)], optimizer="torch.optim.AdamW", settings=known)
    for a, b in ((old, new), (new, old)):
        comparison = compare_runs(a, b)
        assert comparison.not_compared == ["step.optimizer", *(f"step.settings.{name}" for name in names)]
        assert any("step.settings" in line for line in sentences.report_lines(comparison)) == bool(names)


def test_one_run_that_does_not_clear_its_gradients_is_enough(compare_runs: Any) -> None:
    def second(**changes: Any) -> list[dict[str, Any]]:
        first = with_steps([clip_line(1)], cleared=None, backward_calls=1)
        return [*first, *with_steps([clip_line(2, {**NORMS, "a": 3.7, "b": 4.9})], backward_calls=1, **changes)]

    clips = [clip_line(1), clip_line(2)]
    for framework, other in (
        ("numpy", "a.jsonl computes new gradients at each step"),
        ("torch", "a.jsonl has no recorded optimizer steps, so check whether this run clears its gradients"),
    ):
        (cause,) = compare_runs([{**clip, "framework": framework} for clip in clips], second(cleared=False)).findings
        assert cause.kind == "gradients are not cleared"
        assert "b.jsonl does not clear the gradients of step 1 before the backward pass of step 2" in cause.sentence
        assert other in cause.sentence
    for changes in ({"cleared": True}, {"cleared": None}):
        assert "gradients are not cleared" not in cause_kinds(compare_runs(clips, second(**changes)))


MOVED = [clip_line(1), clip_line(2, weights={"a": 0.9, "b": 1.8, "c": 3.3})]
PARTLY = {"settings": {"weight_decay": [0.1, 0.0]}, "decayed": [6, 9]}
ALL = {"settings": {"weight_decay": 0.1}}


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ({**PARTLY, "undecayed": ["c"]}, ALL, "Unlike the other run, a.jsonl has no weight decay for 'z.bias'"),
        (
            ALL,
            {**PARTLY, "undecayed": ["x.weight", "z.bias"]},
            "Unlike the other run, b.jsonl has no weight decay for 'x.weight' and 'z.",
        ),
        (
            {**PARTLY, "undecayed": ["b", "c"]},
            {**PARTLY, "decayed": [7, 9], "undecayed": ["x.weight", "z.bias"]},
            "a.jsonl has no weight decay for 'y.weight'. Unlike the other run, b.jsonl has no weight decay for "
            "'x.weight'.",
        ),
        ({**PARTLY, "undecayed": ["d"]}, ALL, None),  # which no clip has
        (PARTLY, ALL, None),
        ({**PARTLY, "undecayed": ["c"]}, {"settings": {"weight_decay": 0.0}}, None),
        ({**PARTLY, "undecayed": ["c"]}, PARTLY | {"decayed": [7, 9]}, None),
    ],
)
def test_parameters_that_only_one_run_decays_are_named(
    compare_runs: Any, old: dict[str, Any], new: dict[str, Any], text: str | None
) -> None:
    lines = [rename_parameters(each, NEW_NAMES) for each in MOVED]
    (cause,) = compare_runs(with_steps([clip_line(1), clip_line(2)], **old), with_steps(lines, **new)).findings
    assert cause.kind == "another optimizer"
    assert (text or "instead of") in str(cause)
    assert ("has no weight decay for" in cause.sentence) is (text is not None)


def test_coefficients_alone_do_not_show_an_effect_of_the_optimizer(compare_runs: Any) -> None:
    old, new = ([clip_line(1), clip_line(2, eps=eps), clip_line(3)] for eps in (0.0, 1e-2))
    no_decay = {"settings": {"lr": 0.1, "weight_decay": 0.0}}
    comparison = compare_runs(with_steps(old, settings={"lr": 0.1, "weight_decay": 0.02}), with_steps(new, **no_decay))
    assert cause_kinds(comparison) == ["another eps of the clip"]


def test_a_small_difference_after_another_optimizer_is_not_called_grown_rounding(compare_runs: Any) -> None:
    weights = [{**WEIGHTS, "a": add_ulps(1.0, ulps)} for ulps in (0, 30, 100)]
    new = [clip_line(step, weights=each) for step, each in enumerate(weights, start=1)]
    old = [clip_line(step) for step in (1, 2, 3)]
    decay = {"settings": {"lr": 0.1, "weight_decay": 0.01}}
    assert "rounding that has grown" in cause_kinds(compare_runs(with_steps(old), with_steps(new)))
    comparison = compare_runs(with_steps(old, settings={"lr": 0.1, "weight_decay": 0.0}), with_steps(new, **decay))
    assert "another optimizer" in cause_kinds(comparison)
    assert "rounding that has grown" not in cause_kinds(comparison)


def test_settings_of_optimizers_are_compared_only_if_both_runs_recorded_all_steps(compare_runs: Any) -> None:
    clips = [clip_line(step) for step in range(1, 5)]
    partial = with_steps(clips[:1], settings={"lr": 0.2}) + clips[1:]
    assert compare_runs(with_steps(clips), partial).first is None
    assert cause_kinds(compare_runs(with_steps(clips), with_steps(clips[:3], settings={"lr": 0.1}) + clips[3:])) == []
