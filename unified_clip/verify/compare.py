"""Compare two training steps: their clip calls, clipped gradients and updates. Find the cause of a difference."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ..causes.observation import Cause
from ..recording import divergence
from ..recording.compare import RecordingComparison, compare
from ..recording.pairing import CallPair, Names, orient_names
from ..recording.rounding import GROWTH, ROUNDING, Distance, distance
from ..recording.runs import RecordedCall, RecordedRun
from ..tensors.arithmetic import FORMATS
from ..tensors.types import Stage
from .name_gradients import Parameters
from .normalize import NormalizedRecording, normalize
from .run import ScriptRun, VerifyError
from .step_pairing import TOLERANCE, MaxDistance, StepPairing, coarsest_ulp, max_distance, without_noise

MOST_LISTED = 4
"""An error lists at most this many names."""


@dataclass(frozen=True)
class StepComparison:
    """The comparison of both runs at one step: their clip calls, and the distance of their results at each stage.

    The stages are the norm, the coefficient, the clipped gradients (tensors), and the update.
    """

    step: int
    old: Sequence[RecordedCall]
    new: Sequence[RecordedCall]
    """`old` and `new` are the recorded clip calls of the old and of the new training step."""

    norm: Distance | None
    """The distance of both total norms. Here and below, None means that there is nothing to compare on one side."""

    coefficient: Distance | None
    tensors: MaxDistance | None
    """The distance of the clipped gradients."""

    update: MaxDistance | None
    """The distance of the updates, which are the changes of the parameters by the step."""

    clips_alike: bool
    """Whether both steps clip by the same rules, norm types and thresholds, in the same number of calls. A threshold
    that is unknown on one side counts as the same."""

    noise: Collection[str] = ()
    """The parameters that were not compared: their gradients are only rounding noise (see `StepPairing.noise`)."""

    losses: tuple[float | None, float | None] = (None, None)
    """The losses that the old and the new training step yield. None for a training step that yields no loss."""

    @property
    def has_clip(self) -> bool:
        """Return whether the old or the new function called a clip at this step."""
        return bool(self.old or self.new)

    def distances(self) -> dict[Stage, Distance | MaxDistance | None]:
        return {stage: getattr(self, stage) for stage in get_args(Stage)}

    def greatest(self) -> float:
        """Return the largest distance of all stages, in ULP. Return 0 if no stage was compared."""
        return max((distance.ulps for distance in self.distances().values() if distance), default=0.0)

    def differing(self, max_ulp: float) -> list[str]:
        """Return the stages whose distance is more than `max_ulp`. Add "clip" if the clip calls differ."""
        distances = self.distances().items()
        stages = [stage for stage, distance in distances if distance and distance.ulps > max_ulp]
        return [*([] if self.clips_alike else ["clip"]), *stages]


@dataclass(frozen=True)
class Verification:
    """The result of comparing two training steps."""

    old: ScriptRun
    new: ScriptRun
    clips: RecordingComparison
    rows: Sequence[StepComparison]
    unclipped: Sequence[ScriptRun]
    """Training steps that yield their gradients before the clip. For these training steps, the results of the clip
    calls were compared."""

    finding: Cause | None
    """A cause outside of the clips, such as another dtype or another learning rate. None if there is none."""

    max_ulp: float
    resynced: bool = False
    """Whether each step of the new training step began with the weights of the old one."""

    not_gradients: Sequence[tuple[ScriptRun, str, int]] = ()
    """The calls on tensors that are not gradients, as (run, function, number of calls). They are not compared."""

    @property
    def without_clip(self) -> list[int]:
        """The numbers of the steps at which neither training step called a clip."""
        return [row.step for row in self.rows if not row.has_clip]

    @property
    def is_same(self) -> bool:
        return self.clips.first is None and not any(row.differing(self.max_ulp) for row in self.rows)


def compare_steps(
    old: ScriptRun, new: ScriptRun, *, weights: Parameters, steps: int, out: Path, names: Names | None, max_ulp: float
) -> Verification:
    """Compare the runs of both training steps, and return the result.

    Write their normalized recordings to `out` as old.jsonl and new.jsonl.

    weights: The initial weights.
    steps: The number of batches.
    names: The contents of the file of --map, or None.
    max_ulp: The largest distance in ULP at which two numbers count as equal.

    VerifyError: a run has no clip call, the outputs cannot be compared, or `names` does not fit the parameters.
    """
    for run in (old, new):
        reject_changing_outputs(run)
    pairing = StepPairing(old, new, weights, steps, _oriented(old, new, names or {}))
    reject_unpaired(old, new, weights, pairing.names, pairing.axes)
    recordings: list[NormalizedRecording] = []
    for run, common_names in ((old, {}), (new, {new_name: name for name, new_name in pairing.names.items()})):
        path = out / f"{run.script.side}.jsonl"
        recordings.append(normalize(run, weights, steps, path, common_names, *recordings))
        if not recordings[-1].lines:
            raise VerifyError(
                f"No clip call of {run.script} on gradients was recorded: neither one of unified_clip nor one of the "
                "functions that docs/recording.md#the-frameworks-own-functions lists. Calls inside torch.compile or "
                "jit_compile=True are not recorded: turn these off. If the step clips by its own code, yield "
                "(parameters, gradients, unclipped). A step that does not clip cannot be compared.",
                "UC603",
            )
    in_old, in_new = ({name for line in recording.lines for name in line.parameters} for recording in recordings)
    recorded = {name: other for name, other in pairing.names.items() if name in in_old and other in in_new}
    labels = [f"{run.script.file.name}:{run.script.name}" for run in (old, new)]  # file names without directories
    labels = labels if labels[0] != labels[1] else [old.script.text, new.script.text]
    clips = compare(
        recordings[0].path, recordings[1].path, names=recorded, max_ulp=max_ulp, labels=labels, rate=math.inf
    )
    rows: list[StepComparison] = []
    for step in range(1, steps + 1):
        known = rows[-1].noise if rows else ()
        rows.append(_compare_step(step, clips, pairing, recordings, known))
    unclipped = [recording.run for recording in recordings if recording.unclipped]
    finding, rounding = None, all(cause.kind.startswith("rounding") for cause in clips.findings)
    if rounding:
        finding = _other_dtype(pairing, rows) or _uncleared_gradients(clips, pairing, recordings)
    resynced = any(output.resynced is not None for output in new.outputs)
    if finding is None and not clips.findings and not resynced:
        finding = _grown_rounding(rows, clips, max_ulp)
    if finding is None and (rounding or resynced):  # with resynced weights, updates are no consequence of the clips
        finding = _cause_of_update(rows, pairing, max(max_ulp, ROUNDING))
    not_gradients = [(recording.run, *item) for recording in recordings for item in recording.not_gradients.items()]
    return Verification(old, new, clips, rows, unclipped, finding, max_ulp, resynced, not_gradients)


def _oriented(old: ScriptRun, new: ScriptRun, names: Names) -> Names:
    """Return the names of --map as {old name: new name}.

    The file may also have the new names first, if every line does.

    VerifyError: a name is unknown, or the file mixes both directions.
    """
    in_old, in_new = set(old.shapes), set(new.shapes)
    if (oriented := orient_names(names, in_old, in_new)) is not None:
        return oriented
    unknown = [name for name in (*names, *names.values()) if name not in in_old | in_new]
    problem = f"has {unknown[0]!r}, which neither script yields" if unknown else "has pairs in both directions"
    in_each = (f"of {run.script} ({_listing(sorted(run.shapes))})" for run in (old, new))
    raise VerifyError(f"--map {problem}. In every line, pair a name {' with one '.join(in_each)}.", "UC604")


# -- reject outputs that cannot be compared. Otherwise they would count as the same


def reject_changing_outputs(run: ScriptRun) -> None:
    """Check that a training step yields the same parameters after each step, and only gradients of these parameters.

    VerifyError: an output has other parameters or shapes than the first output, or a gradient has no parameter of the
        same name and shape.
    """
    first = run.shapes
    for step, output in enumerate(run.outputs, start=1):
        shapes = {name: tuple(tensor.shape) for name, tensor in output.parameters.items()}
        for names, other, has, lacks in ((shapes, first, step, 1), (first, shapes, 1, step)):
            if missing := sorted(name for name in names if name not in other):
                raise VerifyError(
                    f"{run.script} yields {_listing(missing)} at step {has} but not at step {lacks}. Yield the same "
                    "parameters after each step.",
                    "UC604",
                )
        if changed := [name for name in first if first[name] != shapes[name]]:
            name = changed[0]
            raise VerifyError(
                f"{run.script} yields {name!r} in the shape {shapes[name]} at step {step}, and in {first[name]} at "
                "step 1. Yield each parameter in the same shape after each step.",
                "UC604",
            )
        for part, tensors in (("gradients", output.gradients or {}), ("unclipped gradients", output.unclipped or {})):
            if unknown := sorted(name for name in tensors if name not in shapes):
                raise VerifyError(
                    f"{run.script} yields {part} of {_listing(unknown)} at step {step}, but no parameters of these "
                    f"names. Its parameters are {_listing(shapes)}. Name each gradient like its parameter, and yield "
                    "every parameter that has a gradient.",
                    "UC604",
                )
            if reshaped := [name for name, tensor in tensors.items() if tuple(tensor.shape) != shapes[name]]:
                name = reshaped[0]
                raise VerifyError(
                    f"{run.script} yields {part} of {name!r} in the shape {tuple(tensors[name].shape)} at "
                    f"step {step}, and the parameter in {shapes[name]}. Yield both in one shape.",
                    "UC604",
                )


def reject_unpaired(
    old: ScriptRun, new: ScriptRun, weights: Parameters, names: Names, axes: Mapping[str, Sequence[int] | None]
) -> None:
    """Check that both training steps yield the same parameters, and that these include all tensors of --weights.

    weights: The tensors of --weights. names: {name of an old parameter: name of the same new parameter}.
    axes: By old name, the order of axes that gives the new parameter the shape of the old one. None if there is none.

    VerifyError: a parameter has no counterpart of the same shape in the other training step, or neither training step
        yields a parameter with the name of a tensor of --weights.
    """
    for name, other_name in names.items():
        if axes[name] is None:
            raise VerifyError(
                f"{old.script} yields {name!r} in the shape {old.shapes[name]}, and {new.script} {other_name!r} in "
                f"{new.shapes[other_name]}. No order of axes makes these shapes equal. Pair other names with "
                "--map, or yield one parameter in the shape of the other.",
                "UC604",
            )
    for run, other, paired in ((old, new, set(names)), (new, old, set(names.values()))):
        if unpaired := [name for name in run.shapes if name not in paired]:
            raise VerifyError(
                f"{other.script} yields no parameter that matches {_listing(unpaired)} of {run.script}. Yield the same "
                "parameters from both, or pair their names with --map.",
                "UC604",
            )
    if unused := [name for name in weights if name not in {*names, *names.values()}]:
        raise VerifyError(
            f"--weights has {_listing(unused)}, which neither function yields. Both functions must yield each of these "
            "tensors, and at least one of them must use the name from the file (--map pairs another name in the other "
            "function). If no function reads a tensor, remove the tensor from the file instead.",
            "UC604",
        )


def _listing(names: Collection[str]) -> str:
    listed = [repr(name) for name in names]
    more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    return ", ".join(listed[:MOST_LISTED]) + more


# -- comparing steps


def _compare_step(
    step: int,
    clips: RecordingComparison,
    pairing: StepPairing,
    recordings: Sequence[NormalizedRecording],
    known_noise: Collection[str],
) -> StepComparison:
    old, new = ([line for line in run.lines if line.step == step] for run in (clips.a, clips.b))
    pairs = [pair for pair in clips.pairs if pair.a.step == step]
    norm, coefficient = (
        max((distance(a, b) for pair in pairs for _, a, b in divergence.numbers(pair, stage)), default=None)
        for stage in divergence.NUMBERS[-2:]
    )
    if any(True for pair in pairs for _ in divergence.unexplained(pair)):
        coefficient = Distance(math.inf, math.inf)
    noise = pairing.noise(step, recordings, known_noise)
    tensors = max_distance(pair for pair in pairing.gradients(step, recordings) if pair.name not in noise)
    update = max_distance(without_noise(list(pairing.updates(step)), noise))
    alike = len(pairs) == len(old) == len(new) and all(map(_clip_alike, pairs))
    losses = (_loss(clips.a, step), _loss(clips.b, step))
    return StepComparison(step, old, new, norm, coefficient, tensors, update, alike, noise, losses)


def _loss(run: RecordedRun, step: int) -> float | None:
    return next((line.logged["loss"] for line in run.logged if line.step == step), None)


def _clip_alike(pair: CallPair) -> bool:
    a, b = pair.a, pair.b
    same_threshold = None in (a.threshold, b.threshold) or divergence.threshold(a) == divergence.threshold(b)
    return a.rule == b.rule and a.norm_type == b.norm_type and same_threshold


def _cause_of_update(rows: Sequence[StepComparison], pairing: StepPairing, max_ulp: float) -> Cause | None:
    """Return the cause of different updates, if nothing else differs at the first step with a difference. Else return
    None.
    """
    row = next((row for row in rows if row.differing(max_ulp)), None)
    if row is None or row.differing(max_ulp) != ["update"]:
        return None
    ratio = pairing.ratio(row.step)
    if ratio is None or math.isclose(ratio, 1, rel_tol=TOLERANCE):
        return Cause(
            "another optimizer",
            "the clipped gradients are the same, but the updates differ. Check the learning rate, momentum and weight "
            "decay of both optimizers, and the place at which they add epsilon: `unified-clip compare` on two "
            "recordings compares these settings. Check also whether one of them clips or scales",
        )
    for side, ratios in (("new", [1 / coef for coef in _coefficient(row.new)]), ("old", _coefficient(row.old))):
        if any(math.isclose(ratio, expected, rel_tol=TOLERANCE) for expected in ratios):
            return Cause(
                "the clip does not reach the step",
                f"every update of the {side} step is the one that unclipped gradients give. "
                "This step clips after optimizer.step(), or its optimizer gets other gradients",
            )
    return Cause(
        "another learning rate",
        f"the clipped gradients are the same, and every update of the new step is {ratio:.6g} times that of the old "
        "one: the learning rates differ, or one step does not divide by its loss scale",
    )


def _uncleared_gradients(
    clips: RecordingComparison, pairing: StepPairing, recordings: Sequence[NormalizedRecording]
) -> Cause | None:
    """Return a cause if the gradients of a step still include the gradients of the step before. Else return None.

    Only one step is examined: the first one whose difference in clips has no cause, or step 1 if there is none.
    """
    step = next((divergence.step for divergence, causes in clips.divergences.items() if not causes), 1)
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
        "rounding grows. Compare each step by itself with --resync, or fewer steps with --steps. Or raise --max-ulp",
    )


def _coefficient(lines: Sequence[RecordedCall]) -> list[float]:
    """Return [coefficient] if the calls of a step have a single coefficient, and it is not 0. Else return []."""
    coefs = [coef for line in lines for coef in line.coefs()]
    return [coefs[0]] if len(coefs) == 1 and coefs[0] else []
