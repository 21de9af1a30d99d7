"""Find out why two training steps differ if their clip calls do not explain the difference."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ...causes.cause import Cause, CauseKind, names_text
from ...recording.causes.before_clips import OUTSIDE_THE_CLIP
from ...recording.causes.weight_decay import regularizer_cause
from ...recording.compare import RecordingComparison
from ...recording.divergence import numbers
from ...recording.optimizers.step_differences import STAGES
from ...recording.pairs.calls import greatest_setting
from ...recording.rounding import GROWTH, PRODUCT, ROUNDING, distance, single
from ...tensors.arithmetic import FORMATS
from ..cause_limits import RELATIVE_TOLERANCE
from ..normalize import NormalizedRecording
from ..step_comparison import StepComparison
from ..step_pairing import StepPairing, coarsest_ulp
from . import after_clips
from .initial_weights import InitialWeights
from .square_weights import Rerun, untransposed_square
from .updates import advice_on_settings, cause_of_update, without_gradient

BY_ELIMINATION = {*OUTSIDE_THE_CLIP, "another optimizer", "another update", "the clip does not reach the step"}

DECAY: CauseKind = "weight decay before the clip"

SMALL = 1e-6
"""If the relative differences of gradients are below this number, constants such as eps probably differ."""


def find_cause(
    rows: Sequence[StepComparison],
    clips: RecordingComparison,
    pairing: StepPairing,
    recordings: Sequence[NormalizedRecording],
    max_ulp: float,
    rerun: Rerun | None = None,
) -> Cause | None:
    kinds = {cause.kind for cause in clips.findings if not cause.kind.startswith("rounding")}
    if "other initial weights" in kinds:  # the recordings have the weights themselves
        return None
    limit = max(max_ulp, ROUNDING)
    if finding := after_clips.unscaled_after_clip(clips, rows, recordings):
        return finding
    row = next((row for row in rows if row.beyond_rounding(limit)), None)
    stages = row.beyond_rounding(limit) if row else []
    finding = None
    if kinds <= BY_ELIMINATION:
        finding = _late_clip(row, recordings) if row and "update" in stages else None
        finding = finding or (_other_dtype(pairing, rows) if kinds <= OUTSIDE_THE_CLIP else None)
        finding = finding or _amplified_rounding(rows, row, clips, limit)
    if finding is None and row and row.step == 1 and stages[0] == "norm" and kinds <= {*BY_ELIMINATION, DECAY}:
        finding = _decay_before_clip(pairing, recordings)
    if finding:
        return finding
    if kinds <= OUTSIDE_THE_CLIP:
        finding = _uncleared_gradients(clips, pairing, recordings)
        is_resynced = any(output.resynced is not None for output in recordings[1].run.outputs)
        if finding is None and not clips.findings and not is_resynced:
            finding = _grown_rounding(rows, clips, max_ulp)
        if finding is None and row and "rounding that has grown" not in {cause.kind for cause in clips.findings}:
            finding = _updated_before(row, clips, recordings)
            finding = finding or (_other_gradients(row, pairing, recordings, rerun) if stages[0] == "norm" else None)
    if finding is None and row and stages[0] == "tensors":
        finding = after_clips.changed_after_clip(row, recordings, len(rows))
    if finding is None and row and stages == ["update"]:
        finding = without_gradient(row, rows, pairing, recordings, limit)
        if finding is None and "clipping after the step" not in kinds:  # which explains the updates, too
            finding = cause_of_update(row, clips, pairing, recordings)
    return finding or (None if clips.first else _rounding(rows, max_ulp))


def without_consequences(clips: RecordingComparison, finding: Cause) -> RecordingComparison:
    replaced = {*BY_ELIMINATION, finding.kind}
    replaced |= {"scaled gradients"} if finding.kind == "clipping before unscaling" else set()
    kept = {
        divergence: [cause for cause in causes if divergence.stage in STAGES or cause.kind not in replaced]
        for divergence, causes in clips.divergences.items()
        if not (finding.kind == DECAY and divergence.parameter == "weight_decay")
    }
    return dataclasses.replace(clips, divergences=kept)


def _other_gradients(
    row: StepComparison, pairing: StepPairing, recordings: Sequence[NormalizedRecording], rerun: Rerun | None
) -> Cause | None:
    if not row.parameters.update:
        return None
    weights, are_equal = InitialWeights(pairing, recordings), True
    if row.step == 1:
        old, new = (next((line.framework for line in lines), None) for lines in (row.old, row.new))
        cause = weights.cause((old, new))
        if cause or (rerun and (cause := untransposed_square(pairing, rerun))):
            return cause
        are_equal = weights.are_equal()
    begin = "both sides begin with the same parameters, but the gradients differ"
    losses, advice = "", "Compare the data, the forward pass and the loss. Turn dropout off on both sides"
    if not are_equal:
        begin = "the gradients differ"
        advice = (
            "The updates do not show whether both sides begin with the same weights. Compare the initial weights, then "
            "the data, the forward pass and the loss"
        )
    first, second = row.losses
    if first is not None and second is not None:
        losses = f" (the losses are {first:.9g} and {second:.9g})"
        if are_equal and distance(single(first), single(second)).ulps <= ROUNDING:
            advice = "The losses agree. In both scripts, compare the code that changes the gradients before the clip"
            if 0 < (most := max((each.relative for each in row.parameters.tensors), default=0.0)) < SMALL:
                advice = (
                    f"The losses agree. The relative difference of the gradients is at most {most:.2g}. Compare the "
                    "constants of both models, such as the eps of normalization layers and of paddle.norm"
                )
    return Cause("other data or loss", f"at step {row.step}, {begin} before the clip{losses}. {advice}")


def _updated_before(
    row: StepComparison, clips: RecordingComparison, recordings: Sequence[NormalizedRecording]
) -> Cause | None:
    """In a GAN, the update of the discriminator changes the gradients of the generator in the same step."""
    unexplained = (each for each, causes in clips.divergences.items() if {c.kind for c in causes} <= OUTSIDE_THE_CLIP)
    first = next((each for each in unexplained if each.stage in ("gradient", "norm")), None)
    if first is None or first.step != row.step or first.relative is None:
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
        f"at step {row.step}, the old and new updates of {names} have a relative difference of up to {relative:.2g}. "
        "The next clip call comes after these updates, and its gradients differ, too. "
        f"{advice_on_settings(recordings, row.step)}"
    )
    return Cause("another optimizer", sentence)


def _amplified_rounding(
    rows: Sequence[StepComparison], beyond: StepComparison | None, clips: RecordingComparison, max_ulp: float
) -> Cause | None:
    row = next((row for row in rows if "update" in row.differing(max_ulp)), None)
    if row is None or not row.parameters.update_is_rounding or any(each.stage in STAGES for each in clips.divergences):
        return None
    if beyond and (beyond.step <= row.step or not beyond.greatest() <= GROWTH * _greatest_before(rows, beyond.step)):
        return None
    most = row.parameters.update[0]
    return Cause(
        "rounding",
        f"at step {row.step}, the update of {most.parameter!r} differs by {most.ulps:.3g} ULP. The rounding of its "
        "gradients explains this difference. Adam and similar optimizers divide each element of a gradient by its "
        "typical absolute value. So the rounding of a tiny element changes the whole update of this element. Pass the "
        "--max-ulp that docs/verify.md#rounding lists for your optimizer",
    )


def _rounding(rows: Sequence[StepComparison], max_ulp: float) -> Cause | None:
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
        f"at step {row.step}, {what} differs by {distances[0].ulps:.3g} ULP. All differences are {size}. "
        "Frameworks that sum in different orders differ by up to this size. "
        "To ignore these differences, pass a higher --max-ulp",
    )


def _uncleared_gradients(
    clips: RecordingComparison, pairing: StepPairing, recordings: Sequence[NormalizedRecording]
) -> Cause | None:
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
        f"at step {step}, every gradient of the {side} script still contains the gradient of step "
        f"{step - 1}. In the {side} script, clear the gradients after each step",
    )


def _other_dtype(pairing: StepPairing, rows: Sequence[StepComparison]) -> Cause | None:
    differing = [(name, dtypes) for name, dtypes in pairing.dtypes.items() if dtypes[0] != dtypes[1]]
    if not differing:
        return None
    name, dtypes = differing[0]
    are_rounded = FORMATS.keys() >= set(dtypes)  # conversion to an integer does not round
    if not are_rounded or rows[0].greatest() > ROUNDING * coarsest_ulp(dtypes):
        return None
    return Cause(
        "another dtype",
        f"{name!r} is {dtypes[0]} in the old step and {dtypes[1]} in the new step. At step {rows[0].step}, "
        "rounding to these dtypes explains the difference",
    )


def _grown_rounding(rows: Sequence[StepComparison], clips: RecordingComparison, max_ulp: float) -> Cause | None:
    differences = [(row.step, row.greatest()) for row in rows if row.differing(max_ulp) and row.clips_alike]
    if clips.first is not None and clips.first.ulps is not None:
        differences.append((clips.first.step, clips.first.ulps))
    step, difference = min(differences, default=(1, 0.0))
    before = _greatest_before(rows, step)
    if not 0 < difference <= GROWTH * before:
        return None
    return Cause(
        "rounding that has grown",
        f"before step {step}, the results already differ by {before:.3g} ULP. Each step starts from the previous "
        "result, so rounding grows. To compare each step by itself, pass --resync. Or compare fewer steps with "
        "--steps, or pass a higher --max-ulp",
    )


def _greatest_before(rows: Sequence[StepComparison], step: int) -> float:
    return max((row.greatest() for row in rows if row.step < step), default=0.0)


def _late_clip(row: StepComparison, recordings: Sequence[NormalizedRecording]) -> Cause | None:
    old, new = recordings
    old_calls, new_calls = (each.recorded_steps.count(row.step) for each in recordings)
    old_steps, new_steps = (len(each.optimizer_steps_at(row.step)) for each in recordings)
    old_late, new_late = (_late_steps(row.step, each) for each in recordings)
    if old_calls != new_calls or old_steps != new_steps or old_calls < old_steps or bool(old_late) == bool(new_late):
        return None
    recording, late, other = (old, old_late, new) if old_late else (new, new_late, old)
    calls = recording.calls.get(row.step, [])
    names = list(calls[late[0] - 1].parameters) if len(calls) == old_calls else []
    return Cause(
        "clipping after the step",
        f"at step {row.step}, {recording.run.script} makes only {late[0] - 1} of its {old_calls} clip calls before "
        f"optimizer step {late[0]}. So this optimizer step uses unclipped gradients"
        f"{f' of {names_text(names)}' if names else ''}. {other.run.script} clips before this optimizer step",
    )


def one_is_late(step: int, recordings: Sequence[NormalizedRecording]) -> bool:
    old_late, new_late = (_late_steps(step, each) for each in recordings)
    return bool(old_late) != bool(new_late)


def _late_steps(step: int, recording: NormalizedRecording) -> list[int]:
    """Return the places of the optimizer steps that come too early. The optimizer step N needs N earlier clip calls."""
    start = sum(each < step for each in recording.recorded_steps)
    places = enumerate(recording.optimizer_steps_at(step), start=1)
    return [place for place, each in places if each.calls - start < place]


def _decay_before_clip(pairing: StepPairing, recordings: Sequence[NormalizedRecording]) -> Cause | None:
    pairs = pairing.gradients_before(1, recordings)
    factors: dict[str, float] = {}
    unknown = []
    if len(pairs) < len(list(pairing.gradients(1, recordings))):
        return None
    total = math.hypot(*(float(np.linalg.norm(pair.old)) for pair in pairs))
    for pair in pairs:
        difference, weight = pair.old - pair.new, pairing.initial[0].get(pair.name)
        if float(np.linalg.norm(difference)) <= PRODUCT * total:
            unknown += [pair.name] if weight is None or not weight.any() else []
            continue
        if weight is None or not weight.any():
            return None
        factors[pair.name] = float((difference * weight).sum() / (weight * weight).sum())
        if not np.abs(difference - factors[pair.name] * weight).max() <= RELATIVE_TOLERANCE * np.abs(difference).max():
            return None
    decay = next(iter(factors.values()), 0.0)
    if not decay or not all(math.isclose(each, decay, rel_tol=RELATIVE_TOLERANCE) for each in factors.values()):
        return None
    old, new = (str(recording.run.script) for recording in recordings)
    decays = [[greatest_setting(step, "weight_decay") for step in each.optimizer_steps_at(1)] for each in recordings]
    known = (max(decays[0], default=None), max(decays[1], default=None))
    evidence = f"the gradients differ by {abs(decay):.6g} times the weights"
    return regularizer_cause((old, new), known, decay > 0, abs(decay), list(factors), unknown, evidence)
