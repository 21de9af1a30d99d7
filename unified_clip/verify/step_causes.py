"""Find the cause of a difference between two training steps, if their clip calls do not explain it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..causes.observation import Cause
from ..recording.causes.before_clips import OUTSIDE_THE_CLIP, names_text, untransposed
from ..recording.compare import RecordingComparison
from ..recording.divergence import numbers
from ..recording.optimizers.steps import STAGES
from ..recording.rounding import GROWTH, ROUNDING, distance, single
from ..recording.runs import OptimizerStep, RecordedCall
from ..tensors.arithmetic import FORMATS
from .normalize import NormalizedRecording
from .step_comparison import StepComparison
from .step_pairing import FAR, TOLERANCE, StepPairing, TensorPair, coarsest_ulp, tensor_distance

BY_ELIMINATION = {*OUTSIDE_THE_CLIP, "another optimizer"}


def find_cause(
    rows: Sequence[StepComparison],
    clips: RecordingComparison,
    pairing: StepPairing,
    recordings: Sequence[NormalizedRecording],
    max_ulp: float,
) -> Cause | None:
    """Return a cause outside of the clips, such as another dtype or another learning rate, or None if there is none.

    Causes of different gradients before the clip are looked for only if `clips` has no other causes than rounding and
    those in OUTSIDE_THE_CLIP. Causes of different clipped gradients or updates are always looked for, at the first step
    with a difference. If `clips` has no difference, the cause may be rounding of at most ROUNDING ULP.
    """
    kinds = {cause.kind for cause in clips.findings if not cause.kind.startswith("rounding")}
    limit = max(max_ulp, ROUNDING)
    is_resynced = any(output.resynced is not None for output in recordings[1].run.outputs)
    finding = None
    if kinds <= BY_ELIMINATION and (finding := _late_clip(rows, recordings, limit)) is not None:
        return finding
    if kinds <= OUTSIDE_THE_CLIP:
        finding = _other_dtype(pairing, rows) or _uncleared_gradients(clips, pairing, recordings)
        if finding is None and not clips.findings and not is_resynced:
            finding = _grown_rounding(rows, clips, max_ulp)
        if finding is None and "rounding that has grown" not in {cause.kind for cause in clips.findings}:
            finding = _updated_before(rows, clips, recordings, limit) or _other_gradients(rows, pairing, limit)
    finding = finding or _changed_after_clip(rows, recordings, limit)
    finding = finding or _without_gradient(rows, pairing, recordings, limit)
    if finding is None and "clipping after the step" not in kinds:  # which explains the updates, too
        finding = _cause_of_update(rows, clips, pairing, recordings, limit)
    return finding or (None if clips.first else _rounding(rows, max_ulp))


def without_consequences(clips: RecordingComparison) -> RecordingComparison:
    """Return the comparison without the causes that `by_elimination` finds: they do not hold beside another cause.

    Causes of different optimizer steps have the same kinds, and remain.
    """
    kept = {
        divergence: [cause for cause in causes if divergence.stage in STAGES or cause.kind not in BY_ELIMINATION]
        for divergence, causes in clips.divergences.items()
    }
    return dataclasses.replace(clips, divergences=kept)


def _other_gradients(rows: Sequence[StepComparison], pairing: StepPairing, max_ulp: float) -> Cause | None:
    """Return a cause if the gradients before the clip differ at the first step with a difference, else None.

    Both training steps yield all parameters, so these agree before this step, unless a parameter began with other
    weights.
    """
    row = next((row for row in rows if row.beyond_rounding(max_ulp)), None)
    if row is None or row.beyond_rounding(max_ulp)[0] != "norm" or not row.parameters.update:
        return None
    if row.step == 1 and (cause := _other_weights(pairing, row)):
        return cause
    old, new = row.losses
    losses, advice = "", "Compare the data, the forward pass and the loss. Turn dropout off on both sides"
    if old is not None and new is not None:
        losses = f" (the losses are {old:.9g} and {new:.9g})"
        if distance(single(old), single(new)).ulps <= ROUNDING:
            advice = "The losses agree, so compare the code between the loss and the clip, which changes gradients"
    return Cause(
        "other data or loss",
        f"at step {row.step}, both sides begin with the same parameters, and their gradients differ before the "
        f"clip{losses}. {advice}",
    )


def _late_clip(
    rows: Sequence[StepComparison], recordings: Sequence[NormalizedRecording], max_ulp: float
) -> Cause | None:
    """Return a cause if one side steps one of its optimizers before its clip call, and the updates differ, else None.

    Such a step has made fewer clip calls than steps of optimizers before it.
    """
    row = next((row for row in rows if row.beyond_rounding(max_ulp)), None)
    if row is None or "update" not in row.beyond_rounding(max_ulp):
        return None
    sides = []
    for recording in recordings:
        start = sum(step < row.step for step in recording.recorded_steps)
        steps = _optimizer_steps(recording, row.step)
        late = [place for place, each in enumerate(steps, start=1) if each.calls - start < place]
        sides.append((recording, recording.recorded_steps.count(row.step), late, len(steps)))
    (old, old_calls, old_late, old_steps), (new, new_calls, new_late, new_steps) = sides
    if old_calls != new_calls or old_steps != new_steps or old_calls < old_steps or bool(old_late) == bool(new_late):
        return None
    recording, late, other = (old, old_late, new) if old_late else (new, new_late, old)
    return Cause(
        "clipping after the step",
        f"at step {row.step}, {recording.run.script} makes only {late[0] - 1} of its {old_calls} clip calls before its "
        f"optimizers have stepped {late[0]} time{'s' * (late[0] > 1)}, so the step uses unclipped gradients. "
        f"{other.run.script} clips first",
    )


def _updated_before(
    rows: Sequence[StepComparison],
    clips: RecordingComparison,
    recordings: Sequence[NormalizedRecording],
    max_ulp: float,
) -> Cause | None:
    """Return a cause if the first gradients that differ follow other updates of the same step, as of a GAN, else None.

    The updates are those of the parameters of earlier clip calls of the step. Their difference must be large enough to
    explain that of the gradients.
    """
    row = next((row for row in rows if row.beyond_rounding(max_ulp)), None)
    unexplained = (each for each, causes in clips.divergences.items() if {c.kind for c in causes} <= OUTSIDE_THE_CLIP)
    first = next((each for each in unexplained if each.stage in ("gradient", "norm")), None)
    if row is None or first is None or first.step != row.step or first.relative is None:
        return None
    pairs = [pair for pair in clips.pairs if pair.a.step == row.step]
    shown = [any((a, b) == (first.a, first.b) for _, a, b in numbers(pair, first.stage)) for pair in pairs]
    place = shown.index(True) if any(shown) else 0
    before = {name for pair in pairs[:place] for name in pair.a.parameters}
    updates = [each for each in row.parameters.update if each.parameter in before]
    relative = max((each.relative for each in updates), default=0.0)
    if GROWTH * relative < first.relative:
        return None
    names = names_text([each.parameter for each in updates if GROWTH * each.relative >= first.relative])
    sentence = (
        f"at step {row.step}, the updates of {names} differ by up to {relative:.2g} relatively, and only then do the "
        f"gradients of the next clip differ. {_advice_on_settings(recordings, row.step)}"
    )
    return Cause("another optimizer", sentence)


def _other_weights(pairing: StepPairing, row: StepComparison) -> Cause | None:
    """Return a cause if parameters began with other weights, or were not transposed, else None.

    row: The comparison of the first step. Its calls have the frameworks.
    """
    old, new = (next((line.framework for line in lines), None) for lines in (row.old, row.new))
    orders = pairing.orders((old, new))
    found = pairing.not_loaded()
    if found and "reshaped" not in orders.values():
        side, names = found
        return Cause(
            "other initial weights",
            f"after step 1, parameters of the {side} step differ from --weights by more than {FAR} times the largest "
            f"update of the other step: {names_text(names)}. Check that the {side} step loads them under their names",
        )
    return untransposed({name: pairing.shapes[0][name] for name in orders}, orders)


def _changed_after_clip(
    rows: Sequence[StepComparison], recordings: Sequence[NormalizedRecording], max_ulp: float
) -> Cause | None:
    """Return a cause if clipped gradients differ first, and are not the results of the clip calls, else None."""
    row = next((row for row in rows if row.beyond_rounding(max_ulp)), None)
    if row is None or row.beyond_rounding(max_ulp)[0] != "tensors":
        return None
    for recording in recordings:
        output = recording.run.output_at(row.step, len(rows))
        gradients = (output.gradients if output else None) or {}
        results = recording.clipped.get(row.step, {}) if row.step not in recording.unclipped else {}
        both = {name: (each.values(), gradients[name].values()) for name, each in results.items() if name in gradients}
        whole = {name: values for name, values in both.items() if values[0].shape == values[1].shape}
        if changed := [name for name, values in whole.items() if tensor_distance(*values, 0.0).ulps > ROUNDING]:
            return Cause(
                "the clip does not reach the step",
                f"at step {row.step}, gradients that {recording.run.script} yields are not the results of its clip "
                f"calls: {names_text(changed)}. Other code changes them after the clip",
            )
    return None


def _without_gradient(
    rows: Sequence[StepComparison], pairing: StepPairing, recordings: Sequence[NormalizedRecording], max_ulp: float
) -> Cause | None:
    """Return a cause if, at the first step with a difference, only tensors without a gradient differ, else None."""
    row = next((row for row in rows if row.beyond_rounding(max_ulp)), None)
    if row is None or row.beyond_rounding(max_ulp) != ["update"]:
        return None
    tensors = pairing.without_gradient(recordings)
    names = [each.parameter for each in row.parameters.update if each.ulps > max_ulp]
    if not tensors.issuperset(names):
        return None
    weights = [[each.ulps for each in row.parameters.update if each.parameter not in tensors] for row in rows]
    equal = [row for row, ulps in zip(rows, weights, strict=True) if max(ulps, default=0.0) <= max_ulp]
    where = f"in all {len(rows)} steps" if len(equal) == len(rows) else f"at step {row.step}"
    return Cause(
        "tensors without a gradient",
        f"at step {row.step}, only tensors that have no gradient on either side differ: {names_text(names)}. The "
        f"updates of the {len(weights[0])} weights with a gradient agree {where}. No optimizer changes tensors without "
        "a gradient. For BatchNorm, compare momentum (1 - momentum of Keras in PyTorch), eps, and the moving "
        "variance: PyTorch divides the variance of a batch by n - 1, and Keras by n",
    )


def _rounding(rows: Sequence[StepComparison], max_ulp: float) -> Cause | None:
    """Return the cause "rounding" if it explains all clipped gradients and updates that differ, else None."""
    row = next((row for row in rows if row.differing(max_ulp)), None)
    if row is None or any(row.beyond_rounding(max(max_ulp, ROUNDING)) for row in rows):
        return None
    stage = row.differing(max_ulp)[0]
    distances = row.parameters.tensors if stage == "tensors" else row.parameters.update
    if stage not in ("tensors", "update") or not distances:
        return None
    what = f"the {'clipped gradient' if stage == 'tensors' else 'update'} of {distances[0].parameter!r}"
    size = f"at most {ROUNDING} ULP of the total norm" if distances[0].ulps > ROUNDING else f"at most {ROUNDING} ULP"
    return Cause(
        "rounding",
        f"at step {row.step}, {what} differs by {distances[0].ulps:.3g} ULP of its own largest number, and all "
        f"differences are {size}. Frameworks that sum in different orders differ by up to this size. --max-ulp counts "
        "ULP of each tensor itself",
    )


def _cause_of_update(
    rows: Sequence[StepComparison],
    clips: RecordingComparison,
    pairing: StepPairing,
    recordings: Sequence[NormalizedRecording],
    max_ulp: float,
) -> Cause | None:
    """Return the cause of different updates, if nothing else differs at the first step with a difference.

    Return None otherwise, or if the steps of optimizers differ up to this step: `clips` has these causes.
    """
    row = next((row for row in rows if row.beyond_rounding(max_ulp)), None)
    if row is None or row.beyond_rounding(max_ulp) != ["update"]:
        return None
    if any(divergence.stage in STAGES and divergence.step <= row.step for divergence in clips.divergences):
        return None
    ignored = pairing.without_gradient(recordings)
    updates = [pair for pair in pairing.updates(row.step) if pair.name not in ignored]
    cause = _other_number_of_steps(recordings, row.step) or _without_update(updates, row.step)
    if cause:
        return cause
    ratio = pairing.ratio(row.step, ignored)
    if ratio is None or math.isclose(ratio, 1, rel_tol=TOLERANCE):
        return Cause(
            "another optimizer",
            f"the clipped gradients are the same, but the updates differ. {_advice_on_settings(recordings, row.step)}. "
            "Check also whether an optimizer clips or scales the gradients itself",
        )
    for side, ratios in (("new", [1 / coef for coef in _coefficient(row.new)]), ("old", _coefficient(row.old))):
        if any(math.isclose(ratio, expected, rel_tol=TOLERANCE) for expected in ratios):
            return Cause(
                "the clip does not reach the step",
                f"every update of the {side} step is the one that unclipped gradients give. This step clips after "
                "optimizer.step(), or its optimizer gets other gradients. Clip before optimizer.step(), and pass the "
                "clipped gradients to the optimizer",
            )
    sentence = (
        f"the clipped gradients are the same, and every update of the new step is {ratio:.6g} times that of the old one"
    )
    if all(any("lr" in each.settings for each in _optimizer_steps(side, row.step)) for side in recordings):
        return Cause("another optimizer", f"{sentence}. {_advice_on_settings(recordings, row.step)}")
    reasons = "the learning rates differ, or one step does not divide by its loss scale"
    return Cause("another learning rate", f"{sentence}: {reasons}")


def _without_update(updates: Sequence[TensorPair], step: int) -> Cause | None:
    """Return a cause if some parameters change in one training step only, else None."""
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
    """Return a cause if the optimizers of both runs make different numbers of steps in a training step, else None.

    Return None, too, if no step of an optimizer was recorded on one side: it may make steps that are not recorded.
    """
    old, new = (len(_optimizer_steps(each, step)) for each in recordings)
    if not old or not new or old == new:
        return None
    scripts = [str(each.run.script) for each in recordings]
    return Cause(
        "another optimizer",
        f"at step {step}, {scripts[0]} calls optimizer.step() {old} time{'s' * (old > 1)}, and {scripts[1]} "
        f"{new} time{'s' * (new > 1)}",
    )


def _optimizer_steps(recording: NormalizedRecording, step: int) -> list[OptimizerStep]:
    return [each for each in recording.optimizer_steps if each.step == step]


def _advice_on_settings(recordings: Sequence[NormalizedRecording], step: int) -> str:
    """Return advice: the settings to compare at a step, if the recorded settings do not differ up to this step."""
    sides = [_optimizer_steps(each, step) for each in recordings]
    if all(sides):
        names = [set().union(*(each.settings for each in side)) for side in sides]
        same = f"The recorded settings are equal: {', '.join(sorted(names[0] & names[1]))}"
        only = f" ({', '.join(sorted(names[0] ^ names[1]))} of one side only)" if names[0] ^ names[1] else ""
        return (
            f"{same}{only}. Compare which parameters each group of an optimizer has, and the states of the optimizers"
        )
    hidden = " and ".join(str(each.run.script) for each, side in zip(recordings, sides, strict=True) if not side)
    return (
        f"No step of an optimizer was recorded in {hidden}, so settings were not compared. Compare the learning rate, "
        "momentum and weight decay of both sides, and the place at which they add epsilon"
    )


def _uncleared_gradients(
    clips: RecordingComparison, pairing: StepPairing, recordings: Sequence[NormalizedRecording]
) -> Cause | None:
    """Return a cause if the gradients of a step still include the gradients of the step before. Else return None.

    Only one step is examined: the first one whose difference in clips has no cause, except by elimination, or step 1 if
    there is none.
    """
    unexplained = (
        divergence.step
        for divergence, causes in clips.divergences.items()
        if {cause.kind for cause in causes} <= OUTSIDE_THE_CLIP
    )
    step = next(unexplained, 1)
    side = pairing.uncleared_side(step, recordings)
    if side is None:
        return None
    return Cause(
        "gradients are not cleared",
        f"at step {step} every gradient of the {side} step is the sum of the other side's gradient and of its own at "
        f"step {step - 1}. Clear the gradients of the {side} step after each step",
    )


def _other_dtype(pairing: StepPairing, rows: Sequence[StepComparison]) -> Cause | None:
    """Return a cause if the two training steps use different dtypes for a parameter, and this explains the difference.

    It does if both differ at the first step by no more than the rounding to these dtypes. Else return None.
    """
    differing = [(name, dtypes) for name, dtypes in pairing.dtypes.items() if dtypes[0] != dtypes[1]]
    if not differing:
        return None
    name, dtypes = differing[0]
    are_rounded = FORMATS.keys() >= set(dtypes)  # conversion to an integer does not round
    if not are_rounded or rows[0].greatest() > ROUNDING * coarsest_ulp(dtypes):
        return None
    return Cause(
        "another dtype",
        f"{name!r} is {dtypes[0]} in the old step and {dtypes[1]} in the new one, and at step {rows[0].step} both "
        "differ by no more than rounding to these dtypes",
    )


def _grown_rounding(rows: Sequence[StepComparison], clips: RecordingComparison, max_ulp: float) -> Cause | None:
    """Return the cause "rounding that has grown" if it applies, else None.

    It applies if the earlier steps differ by at most `max_ulp`, and the first larger difference is at most GROWTH times
    as large as theirs.
    """
    differences = [(row.step, row.greatest()) for row in rows if row.differing(max_ulp) and row.clips_alike]
    if clips.first is not None and clips.first.ulps is not None:
        differences.append((clips.first.step, clips.first.ulps))
    step, difference = min(differences, default=(1, 0.0))
    before = max((row.greatest() for row in rows if row.step < step), default=0.0)
    if not 0 < difference <= GROWTH * before:
        return None
    return Cause(
        "rounding that has grown",
        f"before step {step}, both already differ by {before:.3g} ULP. Each step starts from the previous one, so "
        "rounding grows. Compare each step by itself with --resync, or fewer steps with --steps, or pass a higher "
        "--max-ulp",
    )


def _coefficient(lines: Sequence[RecordedCall]) -> list[float]:
    """Return [coefficient] if the calls of a step have a single coefficient, and it is not 0. Else return []."""
    coefs = [coef for line in lines for coef in line.coefs()]
    return [coefs[0]] if len(coefs) == 1 and coefs[0] else []
