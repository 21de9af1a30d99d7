"""Find out why updates differ although the clipped gradients agree."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...causes.cause import Cause, names_text
from ...recording.compare import RecordingComparison
from ...recording.optimizers.step_differences import STAGES
from ...recording.recorded_run import RecordedCall
from ..cause_limits import RELATIVE_TOLERANCE
from ..normalize import NormalizedRecording
from ..step_comparison import StepComparison
from ..step_pairing import StepPairing, TensorPair


def without_gradient(
    row: StepComparison,
    rows: Sequence[StepComparison],
    pairing: StepPairing,
    recordings: Sequence[NormalizedRecording],
    max_ulp: float,
) -> Cause | None:
    """Return a cause if only parameters without a gradient differ, such as moving averages."""
    tensors = pairing.without_gradient(recordings)
    names = [each.parameter for each in row.parameters.update if each.ulps > max_ulp]
    if not tensors.issuperset(names):
        return None
    weights = [[each.ulps for each in row.parameters.update if each.parameter not in tensors] for row in rows]
    equal = [row for row, ulps in zip(rows, weights, strict=True) if max(ulps, default=0.0) <= max_ulp]
    where = f"in all {len(rows)} steps" if len(equal) == len(rows) else f"at step {row.step}"
    return Cause(
        "tensors without a gradient",
        f"at step {row.step}, all tensors that differ have no gradient: {names_text(names)}. The updates of the "
        f"{len(weights[0])} weights with a gradient agree {where}. Optimizers do not change tensors without a "
        "gradient. For BatchNorm, compare eps, momentum and the moving variance. PyTorch's momentum is 1 minus Keras's "
        "momentum. PyTorch divides the variance of a batch by n - 1, and Keras divides the variance by n",
    )


def cause_of_update(
    row: StepComparison, clips: RecordingComparison, pairing: StepPairing, recordings: Sequence[NormalizedRecording]
) -> Cause | None:
    if any(divergence.stage in STAGES and divergence.step <= row.step for divergence in clips.divergences):
        return None
    ignored = pairing.without_gradient(recordings)
    updates = [pair for pair in pairing.updates(row.step) if pair.name not in ignored]
    cause = _other_number_of_steps(recordings, row.step) or _without_update(updates, row.step)
    if cause:
        return cause
    ratio = pairing.ratio(row.step, ignored)
    if ratio is None or math.isclose(ratio, 1, rel_tol=RELATIVE_TOLERANCE):
        return Cause(
            "another optimizer",
            f"the clipped gradients are the same, but the updates differ. {advice_on_settings(recordings, row.step)}. "
            "Check also whether an optimizer clips or scales the gradients itself",
        )
    for side, ratios in (("new", [1 / coef for coef in _coefficient(row.new)]), ("old", _coefficient(row.old))):
        if any(math.isclose(ratio, expected, rel_tol=RELATIVE_TOLERANCE) for expected in ratios):
            return Cause(
                "the clip does not reach the step",
                f"every update of the {side} step is what unclipped gradients would cause. This step clips after "
                "optimizer.step(), or its optimizer gets gradients that are not clipped. Clip before "
                "optimizer.step(), and pass the clipped gradients to the optimizer",
            )
    sentence = (
        "the clipped gradients are the same, and every update of the new step is "
        f"{ratio:.6g} times the update of the old step"
    )
    if all(any("lr" in each.settings for each in side.optimizer_steps_at(row.step)) for side in recordings):
        return Cause("another optimizer", f"{sentence}. {advice_on_settings(recordings, row.step)}")
    reasons = "the learning rates differ, or one step does not divide its gradients by the loss scale"
    return Cause("another learning rate", f"{sentence}: {reasons}")


def _without_update(updates: Sequence[TensorPair], step: int) -> Cause | None:
    for side, other in (("new", "old"), ("old", "new")):
        still = [pair.name for pair in updates if getattr(pair, other).any() and not getattr(pair, side).any()]
        if still:
            which = "the parameters" if len(still) == len(updates) else names_text(still)
            return Cause(
                "another optimizer",
                f"at step {step}, only the {other} step changes {which}. Check that the optimizer of the {side} step "
                "gets these parameters, makes a step, and has a learning rate above 0",
            )
    return None


def _other_number_of_steps(recordings: Sequence[NormalizedRecording], step: int) -> Cause | None:
    old, new = (len(each.optimizer_steps_at(step)) for each in recordings)
    if not old or not new or old == new:
        return None
    scripts = [str(each.run.script) for each in recordings]
    return Cause(
        "another optimizer",
        f"at step {step}, {scripts[0]} calls optimizer.step() {old} time{'s' * (old > 1)}, and {scripts[1]} "
        f"{new} time{'s' * (new > 1)}",
    )


def advice_on_settings(recordings: Sequence[NormalizedRecording], step: int) -> str:
    sides = [each.optimizer_steps_at(step) for each in recordings]
    if all(sides):
        names = [set().union(*(each.settings for each in side)) for side in sides]
        same = f"The recorded settings are equal: {', '.join(sorted(names[0] & names[1]))}"
        only = f" (recorded on one side only: {', '.join(sorted(names[0] ^ names[1]))})" if names[0] ^ names[1] else ""
        return f"{same}{only}. Compare the parameter groups and the states of the optimizers"
    hidden = " and ".join(str(each.run.script) for each, side in zip(recordings, sides, strict=True) if not side)
    return (
        f"No step of an optimizer was recorded in {hidden}, so settings were not compared. Compare the learning rate, "
        "momentum and weight decay of both sides, the bias correction of Adam, and the places where the optimizers add "
        "eps"
    )


def _coefficient(lines: Sequence[RecordedCall]) -> list[float]:
    coefs = [coef for line in lines for coef in line.coefs()]
    return [coefs[0]] if len(coefs) == 1 and coefs[0] else []
