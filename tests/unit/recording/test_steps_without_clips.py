"""`unified-clip compare` of runs whose optimizers make steps that the other run does not make, or makes with a clip."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from support.recordings import write_and_compare

from unified_clip.recording.compare import RecordingComparison
from unified_clip.recording.report import model, page, sentences
from unified_clip.recording.runs import RunError


def clip(step: int, norm: float = 5.0, **changes: Any) -> dict[str, Any]:
    return {
        "step": step, "call": "clip", "framework": "torch", "rule": "global", "threshold": 1.0, "norm_type": 2.0,
        "eps": 0.0, "dtype": "float32", "count": 1, "norm": norm, "coef": 1 / norm if math.isfinite(norm) else 0.0,
        "clipped": True, "nan": 0, "inf": 0, "seconds": 0.001,
        "parameters": {"weight": {"norm": norm, "shape": [8], "weight": 2.0}}, **changes,
    }  # fmt: skip


def optimizer(step: int, rate: float = 0.125, **changes: Any) -> dict[str, Any]:
    return {
        "step": step, "optimizer": "torch.optim.SGD", "settings": {"lr": rate}, "backward_calls": 1,
        "cleared": None if step == 1 else True, "changed": None if step == 1 else 0, **changes,
    }  # fmt: skip


def printed_text(comparison: RecordingComparison) -> str:
    return "\n".join(sentences.report_lines(comparison))


# -- a run without any clip

CLIPPED = [each for step in (1, 2, 3) for each in (clip(step), optimizer(step))]
UNCLIPPED = [optimizer(step) for step in (1, 2, 3)]
MAY_CLIP = "clips by its own code"


@pytest.mark.parametrize("is_old", [True, False])
def test_a_run_that_never_clips_is_named(tmp_path: Path, is_old: bool) -> None:
    comparison = write_and_compare(tmp_path, *((UNCLIPPED, CLIPPED) if is_old else (CLIPPED, UNCLIPPED)))
    unclipped, clipped = ("a.jsonl", "b.jsonl") if is_old else ("b.jsonl", "a.jsonl")
    (cause,) = comparison.findings
    assert cause.kind == "left-out clip"
    assert cause.sentence == (
        f"{unclipped} never clips: its 3 optimizer steps have no clip call. {clipped} clips with clip, by the total "
        f"norm with the threshold 1. Add this clip to {unclipped}, between the backward pass and the step, or remove "
        f"this clip from {clipped}"
    )
    assert comparison.exit_code == 1
    assert "never clips" in page.render(model.build(comparison))


@pytest.mark.parametrize(
    "changes", [{"changed": None}, {"optimizer": "apex.FusedLAMB"}], ids=["other framework", "the user's optimizer"]
)
def test_a_run_that_may_clip_by_its_own_code_gets_a_hint_to_verify(tmp_path: Path, changes: dict[str, Any]) -> None:
    comparison = write_and_compare(tmp_path, CLIPPED, [{**each, **changes} for each in UNCLIPPED])
    assert f"If b.jsonl {MAY_CLIP}, which is not recorded, use `unified-clip verify`" in printed_text(comparison)


BY_HAND = [{**each, "changed": each["step"] % 2} for each in UNCLIPPED]
"""A run that clips by hand, unless the norm is below the threshold, as at step 2."""


@pytest.mark.parametrize("is_old", [True, False])
def test_a_clip_by_hand_hides_no_other_difference(tmp_path: Path, is_old: bool) -> None:
    other = [{**each, "settings": {"lr": 0.25}} for each in BY_HAND]
    comparison = write_and_compare(tmp_path, *((other, CLIPPED) if is_old else (CLIPPED, other)))
    by_hand, clipped = ("a.jsonl", "b.jsonl") if is_old else ("b.jsonl", "a.jsonl")
    assert [each.kind for each in comparison.findings] == ["clip by hand", "another learning rate"]
    assert comparison.findings[0].sentence.startswith(
        f"before step 1 of the optimizer, {by_hand} changes 1 gradient outside of the recorded calls, as a clip by "
        "hand does. "
        f"{clipped} clips with clip, by the total norm with the threshold 1. "
    )


def test_a_step_without_change_is_no_left_out_clip_if_other_steps_clip_by_hand(tmp_path: Path) -> None:
    comparison = write_and_compare(tmp_path, CLIPPED, [clip(1), *BY_HAND[:1], *BY_HAND[1:]])
    assert [each.kind for each in comparison.findings] == ["clip by hand"]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (BY_HAND, "Before step 1 of the optimizer, a.jsonl changes 1 gradient outside"),
        ([], "No clip calls were recorded"),
    ],
    ids=["clip by hand", "recorded nothing"],
)
def test_two_runs_without_a_recorded_clip_are_rejected(
    tmp_path: Path, lines: list[dict[str, Any]], reason: str
) -> None:
    with pytest.raises(RunError, match=reason):
        write_and_compare(tmp_path, BY_HAND, lines)


# -- clips that get no gradient, as before the backward pass


def empty(step: int) -> dict[str, Any]:
    return clip(step, count=0) | {"norm": 0.0, "coef": 1.0, "clipped": False, "parameters": {}}


TOO_EARLY = {
    "a function of unified_clip": [each for step in (1, 2, 3) for each in (empty(step), optimizer(step))],
    "a framework's function": [{**each, "empty_clips": 1} for each in UNCLIPPED],
}


@pytest.mark.parametrize("lines", TOO_EARLY.values(), ids=TOO_EARLY)
@pytest.mark.parametrize("is_old", [True, False])
def test_a_clip_before_the_backward_pass_is_named(tmp_path: Path, lines: list[dict[str, Any]], is_old: bool) -> None:
    comparison = write_and_compare(tmp_path, *((lines, CLIPPED) if is_old else (CLIPPED, lines)))
    (cause,) = comparison.findings
    name = "a.jsonl" if is_old else "b.jsonl"
    assert cause.kind == "left-out clip"
    assert cause.sentence.startswith(
        f"{name} makes a clip call before step 1 of the optimizer, but all gradients are None"
    )
    assert "Put the clip between backward() and optimizer.step()" in printed_text(comparison)


def test_several_clips_before_a_step_are_not_called_other_parameters(tmp_path: Path) -> None:
    more = [
        {**each, "step": 2 * each["step"] - (number == 0)}
        for step in CLIPPED[::2]
        for number, each in enumerate((step, step))
    ]
    lines = [
        line for clips, step in zip((more[:2], more[2:4], more[4:]), UNCLIPPED, strict=True) for line in (*clips, step)
    ]
    text = printed_text(write_and_compare(tmp_path, CLIPPED, lines))
    assert "Several clips before a step: " in text
    assert "The runs clip different parameters" not in text


def test_one_clip_that_gets_no_gradient_is_named_at_its_step(tmp_path: Path) -> None:
    lines = [clip(1), optimizer(1), empty(2), optimizer(2), clip(3), optimizer(3)]
    comparison = write_and_compare(tmp_path, CLIPPED, lines)
    assert steps_and_kinds(comparison) == [(2, "left-out clip")]
    assert "b.jsonl makes a clip call before step 2 of the optimizer" in comparison.findings[0].sentence


def test_a_further_clip_that_gets_no_gradient_is_no_difference(tmp_path: Path) -> None:
    """For example, all gradients of a second network are None."""
    lines = [empty(1), *({**each, "step": each["step"] + 1} for each in CLIPPED)]
    assert write_and_compare(tmp_path, CLIPPED, lines).exit_code == 0


def test_an_empty_shard_is_no_missing_gradient(tmp_path: Path) -> None:
    lines = [{**each, "count": 0, "ranks": 2, "rank": 1} if "call" in each else each for each in CLIPPED]
    assert "left-out clip" not in [each.kind for each in write_and_compare(tmp_path, CLIPPED, lines).findings]


def test_runs_whose_clips_get_no_gradient_are_rejected(tmp_path: Path) -> None:
    lines = TOO_EARLY["a function of unified_clip"]
    with pytest.raises(RunError, match="No clip calls were recorded"):
        write_and_compare(tmp_path, UNCLIPPED, lines)


def test_two_runs_that_never_clip_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No clip calls were recorded"):
        write_and_compare(tmp_path, UNCLIPPED, UNCLIPPED)


# -- a step that one run skips


def run_lines(
    skipped: Collection[int] = (), *, clips: bool = True, passes: bool = True, decays: bool = True, more: int = 0
) -> list[dict[str, Any]]:
    """A run of 7 iterations with a schedule that counts iterations, as recorded.

    skipped: The iterations without a step of the optimizer, after which the weights differ.
    clips: Whether the script clips the gradients of these iterations, which are not finite.
    passes: Whether backward passes are recorded.
    decays: Whether the schedule changes the learning rate.
    more: How many steps the schedule is ahead from iteration 3 on.
    """
    lines, calls, waiting = [], 0, 0
    for iteration in range(1, 8):
        waiting += 1
        is_skipped, moved = iteration in skipped, sum(each < iteration for each in skipped) / 8
        if not is_skipped or clips:
            calls += 1
            norm = math.inf if is_skipped else 5 / iteration + moved
            parameters = {"weight": {"norm": norm, "shape": [8], "weight": 2 - iteration / 8 + moved}}
            lines.append(clip(calls, norm, parameters=parameters))
        if not is_skipped:
            rate = 0.5 ** (iteration + (more if iteration > 2 else 0)) if decays else 0.125
            passes_of_step = (
                {"backward_calls": waiting, "losses": [1.0] * waiting} if passes else {"backward_calls": None}
            )
            lines.append(optimizer(calls, rate, **passes_of_step))
            waiting = 0
    return lines


def steps_and_kinds(comparison: RecordingComparison) -> list[tuple[int, str]]:
    return [(divergence.step, cause.kind) for divergence, causes in comparison.divergences.items() for cause in causes]


@pytest.mark.parametrize("skipped", [{1}, {1, 2}, {3}, {2, 5}], ids=str)
@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("is_old", [True, False])
def test_a_step_that_one_run_skips_is_the_only_cause(
    tmp_path: Path, skipped: set[int], passes: bool, is_old: bool
) -> None:
    whole, partial = run_lines(passes=passes), run_lines(skipped, passes=passes)
    comparison = write_and_compare(tmp_path, *((partial, whole) if is_old else (whole, partial)))
    assert steps_and_kinds(comparison) == [(min(skipped), "skipped step")]
    name, complete = ("a.jsonl", "b.jsonl") if is_old else ("b.jsonl", "a.jsonl")
    (cause,) = comparison.findings
    assert cause.sentence.startswith(
        f"{complete} makes step {min(skipped)} of the optimizer, and {name} skips this step"
    )
    assert ("skips this step and 1 later step." in cause.sentence) is (len(skipped) == 2)
    reason = f"The gradients of {name} are not finite at this step (norm inf), so a loss scaler skips the step."
    assert reason in cause.sentence
    assert "learning rate" not in printed_text(comparison)
    assert f"This difference might follow from the difference at step {min(skipped)}." in printed_text(comparison)


@pytest.mark.parametrize("skipped", [{1}, {3}, {2, 5}], ids=str)
@pytest.mark.parametrize("is_old", [True, False])
def test_learning_rates_of_schedules_that_count_steps_follow_from_a_skipped_step(
    tmp_path: Path, skipped: set[int], is_old: bool
) -> None:
    whole, partial = run_lines(), run_lines(skipped)
    for number, step in enumerate(each for each in partial if "optimizer" in each):
        step["settings"] = {"lr": 0.5 ** (number + 1)}
    comparison = write_and_compare(tmp_path, *((partial, whole) if is_old else (whole, partial)))
    assert steps_and_kinds(comparison) == [(min(skipped), "skipped step")]


def not_finite_from(iteration: int, *, weights: bool = True) -> list[dict[str, Any]]:
    """A run without a skipped step, whose gradients are not finite from an iteration on.

    weights: Whether the weights are then not finite, from the next iteration on.
    """
    lines = run_lines()
    for line in lines:
        if "call" in line and line["step"] >= iteration:
            weight = math.nan if weights and line["step"] > iteration else line["parameters"]["weight"]["weight"]
            parameters = {"weight": {"norm": math.nan, "shape": [8], "weight": weight}}
            line.update(norm=math.nan, coef=math.nan, parameters=parameters)
    return lines


@pytest.mark.parametrize("clips", [True, False], ids=["loss scaler", "apply_if_finite"])
@pytest.mark.parametrize("is_old", [True, False])
def test_weights_that_are_not_finite_follow_from_a_step_that_the_other_run_skips(
    tmp_path: Path, clips: bool, is_old: bool
) -> None:
    whole, partial = not_finite_from(3), run_lines({3}, clips=clips, passes=clips)
    comparison = write_and_compare(tmp_path, *((partial, whole) if is_old else (whole, partial)))
    assert steps_and_kinds(comparison) == [(3, "skipped step")]
    name, complete = ("a.jsonl", "b.jsonl") if is_old else ("b.jsonl", "a.jsonl")
    (cause,) = comparison.findings
    assert cause.sentence.startswith(f"{complete} makes step 3 of the optimizer, and {name} skips this step. ")
    reason = f"The gradients of {complete} are not finite at this step (norm nan). Either optax.apply_if_finite skips"
    assert (reason in cause.sentence) is not clips
    assert (f", or {name} ends 1 step earlier." in cause.sentence) is not clips


def test_gradients_that_are_not_finite_for_finite_weights_have_a_cause_of_their_own(tmp_path: Path) -> None:
    comparison = write_and_compare(tmp_path, not_finite_from(4, weights=False), run_lines({3}))
    assert (4, "not finite in one run") in steps_and_kinds(comparison)


def test_a_run_of_known_backward_passes_that_ends_earlier_skips_no_step(tmp_path: Path) -> None:
    whole = [line for line in run_lines() if line["step"] < 7]
    assert (3, "not finite in one run") in steps_and_kinds(write_and_compare(tmp_path, not_finite_from(3), whole))


@pytest.mark.parametrize("decays", [True, False])
def test_a_step_that_is_skipped_before_the_clip_shows_in_the_backward_passes(tmp_path: Path, decays: bool) -> None:
    comparison = write_and_compare(tmp_path, run_lines(decays=decays), run_lines({3}, clips=False, decays=decays))
    assert steps_and_kinds(comparison) == [(3, "skipped step")]
    assert "not finite" not in printed_text(comparison)


def test_a_skipped_step_that_shows_in_learning_rates_only_is_a_shifted_step(tmp_path: Path) -> None:
    comparison = write_and_compare(tmp_path, run_lines(passes=False), run_lines({3}, clips=False, passes=False))
    assert (3, "shifted step") in steps_and_kinds(comparison)
    assert "b.jsonl skips an optimizer step, as a loss scaler does after an overflow, or its schedule makes" in (
        printed_text(comparison)
    )
    assert "nother learning rate" not in printed_text(comparison)


def test_runs_that_skip_the_same_step_are_the_same(tmp_path: Path) -> None:
    assert write_and_compare(tmp_path, run_lines({3}), run_lines({3})).exit_code == 0


@pytest.mark.parametrize("skipped", [{3}, {2, 3}, {2, 5}], ids=str)
@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("is_old", [True, False])
def test_runs_that_skip_the_same_step_are_the_same_if_only_one_of_them_clips_it(
    tmp_path: Path, skipped: set[int], passes: bool, is_old: bool
) -> None:
    """optax.apply_if_finite makes no clip of gradients that are not finite."""
    clips, other = run_lines(skipped), run_lines(skipped, clips=False, passes=passes)
    comparison = write_and_compare(tmp_path, *((other, clips) if is_old else (clips, other)))
    assert not steps_and_kinds(comparison)
    assert f"7 calls. Compared: {7 - len(skipped)} calls. " in printed_text(comparison)


def test_a_run_that_ends_after_as_many_steps_may_have_made_the_step_that_the_other_run_skips(tmp_path: Path) -> None:
    whole = [line for line in run_lines() if line["step"] < 7]
    assert (3, "skipped step") in steps_and_kinds(write_and_compare(tmp_path, whole, run_lines({3})))


def test_a_learning_rate_that_differs_beside_a_skipped_step_is_named(tmp_path: Path) -> None:
    new = run_lines({3})
    new[-1]["settings"] = {"lr": 0.75}
    assert [kind for _, kind in steps_and_kinds(write_and_compare(tmp_path, run_lines(), new))] == [
        "skipped step",
        "another learning rate",
    ]


def test_more_backward_passes_in_every_step_are_no_skipped_steps(tmp_path: Path) -> None:
    new = [{**each, "backward_calls": 2} if "optimizer" in each else each for each in run_lines()]
    assert not steps_and_kinds(write_and_compare(tmp_path, run_lines(), new))


def test_gradients_of_another_network_that_are_not_finite_are_no_skipped_step(tmp_path: Path) -> None:
    """Both networks are clipped before both steps, which use them."""
    critic = {"critic": {"norm": math.inf, "shape": [3], "weight": 1.0}}
    new = [clip(1, math.inf, parameters=critic), *({**each, "step": each["step"] + 1} for each in run_lines())]
    assert "skipped step" not in [kind for _, kind in steps_and_kinds(write_and_compare(tmp_path, run_lines(), new))]
