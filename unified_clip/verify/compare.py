"""Compare the clip calls, clipped gradients and updates of two training steps, and find the cause of a difference."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..causes.cause import Cause, names_text
from ..recording import divergence
from ..recording.causes.join_causes import Effect
from ..recording.compare import RecordingComparison, compare
from ..recording.divergence import Divergence
from ..recording.optimizers.clips_of_step import are_without_clips
from ..recording.pairs.calls import CallPair
from ..recording.pairs.parameters import Names, orient_names
from ..recording.recorded_run import RecordedRun
from ..recording.rounding import ROUNDING
from .causes.square_weights import Rerun
from .causes.step_causes import find_cause, one_is_late, without_consequences
from .errors import VerifyError
from .launch.outputs import ScriptRun
from .name_gradients import Parameters
from .normalize import NormalizedRecording, normalize
from .step_comparison import Sensitivity, StepComparison, TensorComparison
from .step_pairing import StepPairing, sorted_distances, without_noise


@dataclass(frozen=True)
class Verification:
    old: ScriptRun
    new: ScriptRun
    clips: RecordingComparison
    rows: Sequence[StepComparison]
    unclipped: Sequence[ScriptRun]
    """The runs that yield unclipped gradients. The results of their clip calls are compared instead."""

    finding: Cause | None
    """A cause that is not in the clips, such as different dtypes or learning rates."""

    max_ulp: float
    calls: Sequence[Mapping[str, int]]
    """{function: number of clip calls} for each run. Every call of a loop counts."""

    resynced: bool = False

    not_gradients: Sequence[tuple[ScriptRun, str, int]] = ()
    """(run, function, number of calls) for clip calls on tensors that are not gradients."""

    @property
    def without_clip(self) -> list[int]:
        return [row.step for row in self.rows if not row.has_clip]

    @property
    def is_same(self) -> bool:
        return self.clips.first is None and not any(row.differing(self.max_ulp) for row in self.rows)


def compare_steps(
    old: ScriptRun,
    new: ScriptRun,
    *,
    weights: Parameters,
    steps: int,
    out: Path,
    names: Names | None,
    max_ulp: float,
    rerun: Rerun | None = None,
) -> Verification:
    for run in (old, new):
        reject_changing_outputs(run)
    pairing = StepPairing(old, new, weights, steps, _oriented(old, new, names or {}))
    reject_unpaired(old, new, weights, pairing.names, pairing.axes)
    recordings = normalize(old, new, weights, steps, out, pairing.names)
    reject_without_clip(*recordings)
    in_old, in_new = ({name for line in recording.lines for name in line.parameters} for recording in recordings)
    recorded = {name: other for name, other in pairing.names.items() if name in in_old and other in in_new}
    labels = [f"{run.script.file.name}:{run.script.name}" for run in (old, new)]  # file names without directories
    labels = labels if labels[0] != labels[1] else [old.script.text, new.script.text]
    tensors = _compare_all_tensors(steps, pairing, recordings)
    clips = compare(
        recordings[0].path,
        recordings[1].path,
        names=recorded,
        max_ulp=max_ulp,
        labels=labels,
        has_effect=_effect_on_updates(tensors, pairing.without_gradient(recordings), max_ulp),
    )
    numbers = _compare_numbers(clips)
    rows = [_compare_step(step, clips, each, numbers[step]) for step, each in enumerate(tensors, start=1)]
    unclipped = [recording.run for recording in recordings if recording.unclipped]
    resynced = any(output.resynced is not None for output in new.outputs)
    finding = find_cause(rows, clips, pairing, recordings, max_ulp, rerun)
    clips = without_consequences(clips, finding) if finding else clips
    if any(cause and cause.kind == "clipping after the step" for cause in (finding, *clips.findings)):
        rows = [replace(row, clips_alike=row.clips_alike and not one_is_late(row.step, recordings)) for row in rows]
    not_gradients = [(recording.run, *item) for recording in recordings for item in recording.not_gradients.items()]
    calls = [Counter(line.call for step in each.calls.values() for line in step) for each in recordings]
    return Verification(old, new, clips, rows, unclipped, finding, max_ulp, calls, resynced, not_gradients)


def _compare_all_tensors(
    steps: int, pairing: StepPairing, recordings: Sequence[NormalizedRecording]
) -> list[TensorComparison]:
    tensors: list[TensorComparison] = []
    sensitivity = Sensitivity()
    for step in range(1, steps + 1):
        known_noise = tensors[-1].noise if tensors else ()
        tensors.append(_compare_tensors(step, pairing, recordings, known_noise, sensitivity))
    return tensors


def _effect_on_updates(
    tensors: Sequence[TensorComparison], without_gradient: Collection[str], max_ulp: float
) -> Effect:
    trained = [[each for each in compared.update if each.parameter not in without_gradient] for compared in tensors]
    largest = [updates[0].ulps if updates else 0.0 for updates in trained]

    def has_effect(step: int, *, at_once: bool = False) -> bool:
        return max(largest[step - 1 : step if at_once else None], default=0.0) > max(max_ulp, ROUNDING)

    return has_effect


def _oriented(old: ScriptRun, new: ScriptRun, names: Names) -> Names:
    in_old, in_new = set(old.shapes), set(new.shapes)
    if (oriented := orient_names(names, in_old, in_new)) is not None:
        return oriented
    unknown = [name for name in (*names, *names.values()) if name not in in_old | in_new]
    both_ways = "Some lines of --map begin with the old name, and others with the new name."
    problem = f"--map has {unknown[0]!r}, which neither script yields." if unknown else both_ways
    of_old, of_new = (f"{run.script} ({names_text(sorted(run.shapes))})" for run in (old, new))
    rule = f"Each line must contain a parameter name of {of_old} and a parameter name of {of_new}."
    raise VerifyError(f"{problem} {rule}", "UC604")


# -- outputs that cannot be compared must not count as the same


def reject_changing_outputs(run: ScriptRun) -> None:
    first = run.shapes
    for step, output in enumerate(run.outputs, start=1):
        shapes = {name: tuple(tensor.shape) for name, tensor in output.parameters.items()}
        for names, other, has, lacks in ((shapes, first, step, 1), (first, shapes, 1, step)):
            if missing := sorted(name for name in names if name not in other):
                raise VerifyError(
                    f"{run.script} yields {names_text(missing)} at step {has} but not at step {lacks}. Yield the same "
                    "parameters after each step.",
                    "UC604",
                )
        if changed := [name for name in first if first[name] != shapes[name]]:
            name = changed[0]
            raise VerifyError(
                f"{run.script} yields {name!r} in the shape {first[name]} at step 1, but in the shape {shapes[name]} "
                f"at step {step}. Yield each parameter in the same shape after each step.",
                "UC604",
            )
        for part, tensors in (("gradients", output.gradients or {}), ("unclipped gradients", output.unclipped or {})):
            if unknown := sorted(name for name in tensors if name not in shapes):
                raise VerifyError(
                    f"{run.script} yields {part} of {names_text(unknown)} at step {step}, but no parameters of these "
                    f"names. Its parameters are {names_text(shapes)}. Name each gradient like its parameter, and yield "
                    "every parameter that has a gradient.",
                    "UC604",
                )
            if reshaped := [name for name, tensor in tensors.items() if tuple(tensor.shape) != shapes[name]]:
                name = reshaped[0]
                raise VerifyError(
                    f"{run.script} yields {part} of {name!r} in the shape {tuple(tensors[name].shape)} at "
                    f"step {step}, but the parameter has the shape {shapes[name]}. Yield {part} in the shape of the "
                    "parameter.",
                    "UC604",
                )


def reject_without_clip(old: NormalizedRecording, new: NormalizedRecording) -> None:
    for recording, other in ((old, new), (new, old)):
        if recording.lines or (other.lines and are_without_clips(recording.optimizer_steps)):
            continue
        script, count = recording.run.script, len(other.lines)
        calls = f"{other.run.script} makes {count} clip call{'s' * (count > 1)}"
        end = f"If {script} never clips, the clipping of the two steps differs: {calls}"
        end = end if count else "Without clips, nothing is compared"
        raise VerifyError(
            f"The recording of {script} has no clip calls on gradients. Recordings contain the calls to unified_clip "
            "and to the functions in docs/recording.md#the-frameworks-own-functions. Calls inside torch.compile or "
            "jit_compile=True are not recorded: turn compilation off. If the step clips by its own code, yield its "
            f"gradients before the clip as a third value: (parameters, gradients, unclipped). {end}.",
            "UC603",
        )


def reject_unpaired(
    old: ScriptRun, new: ScriptRun, weights: Parameters, names: Names, axes: Mapping[str, Sequence[int] | None]
) -> None:
    for name, other_name in names.items():
        if axes[name] is None:
            raise VerifyError(
                f"{old.script} yields {name!r} in the shape {old.shapes[name]}, and {new.script} yields "
                f"{other_name!r} in the shape {new.shapes[other_name]}. No order of axes makes these shapes equal. If "
                "these are different parameters, map the names with --map. Otherwise, yield both parameters in the "
                "same shape.",
                "UC604",
            )
    for run, other, paired in ((old, new, set(names)), (new, old, set(names.values()))):
        if unpaired := [name for name in run.shapes if name not in paired]:
            raise VerifyError(
                f"{other.script} yields no parameter that matches {names_text(unpaired)} of {run.script}. Yield "
                "the same parameters from both functions, or pair their names in the --map file, in lines such as "
                '"old name" = "new name".',
                "UC604",
            )
    if unused := [name for name in weights if name not in {*names, *names.values()}]:
        raise VerifyError(
            f"--weights has {names_text(unused)}, but neither function yields a parameter of this name. If no "
            "function reads a tensor, remove the tensor from this file. If a function reads the tensor, yield the "
            "tensor from both functions, under its name in this file. If the functions use different names, pass "
            "--map.",
            "UC604",
        )
    for old_name, new_name in names.items():
        weight_name = next((each for each in (old_name, new_name) if each in weights), None)
        shape = tuple(weights[weight_name].shape) if weight_name else ()
        if weight_name and sorted(shape) != sorted(old.shapes[old_name]):
            raise VerifyError(
                f"--weights has {weight_name!r} in the shape {shape}, but {old.script} yields {old_name!r} in "
                f"the shape {old.shapes[old_name]}. No order of axes makes these shapes equal. Write the tensor into "
                "the file in the shape that the functions yield.",
                "UC604",
            )


def _compare_tensors(
    step: int,
    pairing: StepPairing,
    recordings: Sequence[NormalizedRecording],
    known_noise: Collection[str],
    sensitivity: Sensitivity,
) -> TensorComparison:
    noise = pairing.noise(step, recordings, known_noise)
    every = list(pairing.gradients(step, recordings))
    sensitivity.add(every)
    gradients = [pair for pair in every if pair.name not in noise]
    updates = list(without_noise(list(pairing.updates(step)), noise))
    return TensorComparison(
        sorted_distances(gradients),
        sorted_distances(updates),
        noise,
        is_rounding=pairing.differ_by_rounding(gradients),
        update_is_rounding=pairing.yields_each_step and all(map(sensitivity.explains, updates)),
    )


def _compare_step(
    step: int, clips: RecordingComparison, tensors: TensorComparison, numbers: Sequence[Divergence]
) -> StepComparison:
    old, new = ([line for line in run.lines if line.step == step] for run in (clips.a, clips.b))
    pairs = [pair for pair in clips.pairs if pair.a.step == step]
    alike = len(pairs) == len(old) == len(new) and all(map(_clip_alike, pairs))
    if len(pairs) == len(old) == len(new):
        old, new = [pair.a for pair in pairs], [pair.b for pair in pairs]  # with the norms that were compared
    losses = (_loss(clips.a, step), _loss(clips.b, step))
    return StepComparison(step, old, new, numbers, tensors, alike, losses)


def _compare_numbers(clips: RecordingComparison) -> dict[int, list[Divergence]]:
    numbers: dict[int, list[Divergence]] = defaultdict(list)
    for pair, compared in divergence.compare_numbers(clips.pairs):
        step = pair.a.step
        numbers[step] += [each for each in compared if each.stage in ("norm", "coefficient") and not each.is_noise]
        numbers[step] += [
            Divergence(step, "coefficient", a, b, name, math.inf, math.inf, math.inf)
            for name, a, b in divergence.one_known_coefficient(pair)
        ]
    return numbers


def _loss(run: RecordedRun, step: int) -> float | None:
    return next((line.logged["loss"] for line in run.logged if line.step == step), None)


def _clip_alike(pair: CallPair) -> bool:
    a, b = pair.a, pair.b
    same_threshold = None in (a.threshold, b.threshold) or divergence.have_one_threshold(a, b)
    return a.rule == b.rule and a.norm_type == b.norm_type and same_threshold
