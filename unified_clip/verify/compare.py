"""Compare two training steps: their clip calls, clipped gradients and updates, and why they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..causes.observation import Cause
from ..recording import divergence
from ..recording.compare import RecordingComparison, compare
from ..recording.pairing import CallPair, Names
from ..recording.rounding import GROWTH, ROUNDING, Distance, distance
from ..recording.runs import RecordedCall
from ..tensors.arithmetic import FORMATS
from .completeness import reject_changing_outputs, reject_unpaired
from .match_names import Parameters
from .normalize import NormalizedRecording, normalize
from .run import Script, ScriptRun, VerifyError
from .step_tensors import ALIKE, MaxDistance, StepPairing, coarsest_ulp, max_distance

Stage = Literal["norm", "coefficient", "tensors", "update"]

STAGES: tuple[Stage, ...] = ("norm", "coefficient", "tensors", "update")
"""Each follows from those before it."""


@dataclass(frozen=True)
class StepComparison:
    """One step of both training steps."""

    step: int
    old: Sequence[RecordedCall]
    new: Sequence[RecordedCall]
    norm: Distance | None
    """None if there are no two norms to compare, as for a clip by value; likewise below."""

    coefficient: Distance | None
    tensors: MaxDistance | None
    """The gradients after clipping."""

    update: MaxDistance | None
    """The change of the parameters."""

    clips_alike: bool
    """Whether both clip by the same rule and threshold in as many calls."""

    @property
    def has_clip(self) -> bool:
        """Whether at least one side made a clip call."""
        return bool(self.old or self.new)

    def distance(self, stage: Stage) -> Distance | None:
        found: Distance | MaxDistance | None = getattr(self, stage)
        return found.distance if isinstance(found, MaxDistance) else found

    def greatest(self) -> float:
        """Return the greatest distance in ULP."""
        return max((apart.ulps for stage in STAGES if (apart := self.distance(stage)) is not None), default=0.0)

    def differing(self, max_ulp: float) -> list[str]:
        """Return the stages that differ."""
        stages: list[str] = [
            stage for stage in STAGES if (apart := self.distance(stage)) is not None and apart.ulps > max_ulp
        ]
        return stages if self.clips_alike else ["clip", *stages]


@dataclass(frozen=True)
class Verification:
    """The result of `compare_steps`."""

    old: ScriptRun
    new: ScriptRun
    clips: RecordingComparison
    rows: Sequence[StepComparison]
    unclipped: Sequence[ScriptRun]
    """Training steps that yield unclipped gradients. The gradients after their clip calls were compared."""

    finding: Cause | None
    """Why updates differ although the clips agree."""

    max_ulp: float
    not_gradients: Sequence[tuple[ScriptRun, str, int]] = ()
    """Functions that clipped tensors other than gradients, and how often. These calls are not compared."""

    @property
    def without_clip(self) -> list[int]:
        """The steps at which neither side made a clip call."""
        return [row.step for row in self.rows if not row.has_clip]

    @property
    def is_same(self) -> bool:
        return self.clips.first is None and not any(row.differing(self.max_ulp) for row in self.rows)


def compare_steps(
    old: ScriptRun, new: ScriptRun, *, weights: Parameters, steps: int, out: Path, names: Names | None, max_ulp: float
) -> Verification:
    """Compare two training steps. Write their recordings to `out` as `old.jsonl` and `new.jsonl`.

    Raises:
        VerifyError: No clip call was recorded, `names` has an unknown name, or the outputs cannot be compared.
    """
    for ran in (old, new):
        reject_changing_outputs(ran)
    pairing = StepPairing(old, new, weights, steps, _oriented(old, new, names or {}))
    reject_unpaired(old, new, weights, pairing.names, pairing.axes)
    normalized: list[NormalizedRecording] = []
    for ran, mapped in ((old, {}), (new, {theirs: ours for ours, theirs in pairing.names.items()})):
        normalized.append(normalize(ran, weights, steps, out / f"{ran.script.side}.jsonl", mapped, *normalized))
        if not normalized[-1].calls:
            raise VerifyError(_no_call(ran))
    ours, theirs = (each.names for each in normalized)
    known = {name: other for name, other in pairing.names.items() if name in ours and other in theirs}
    called = _called(old.script), _called(new.script)
    called = called if called[0] != called[1] else (old.script.text, new.script.text)
    clips = compare(normalized[0].path, normalized[1].path, names=known, max_ulp=max_ulp, labels=called)
    rows = [_compare_step(step, clips, pairing, normalized) for step in range(1, steps + 1)]
    unclipped = [ran for ran, each in zip((old, new), normalized, strict=True) if each.unclipped]
    finding, rounding = None, all(each.kind.startswith("rounding") for each in clips.findings)
    if rounding:
        finding = _other_dtype(pairing, rows) or _left_over(clips, pairing, normalized)
    if finding is None and not clips.findings:
        finding = _grown(rows, clips, max_ulp)
    if finding is None and rounding:
        finding = _explained(rows, pairing, max(max_ulp, ROUNDING))
    not_gradients = [
        (ran, call, count)
        for ran, each in zip((old, new), normalized, strict=True)
        for call, count in each.not_gradients.items()
    ]
    return Verification(old, new, clips, rows, unclipped, finding, max_ulp, not_gradients)


def _called(script: Script) -> str:
    """Return the name of a training step in sentences, without directories."""
    return f"{script.file.name}:{script.name}"


def _no_call(ran: ScriptRun) -> str:
    return (
        f"No clip call of {ran.script} was recorded: neither one of unified_clip nor one of the functions that "
        "docs/verify.md lists. Calls inside torch.compile or jit_compile=True are not recorded: turn these off. If it "
        "clips without such a function, yield (parameters, gradients, unclipped)."
    )


def _oriented(old: ScriptRun, new: ScriptRun, names: Names) -> Names:
    """Return `names` in the direction from old to new."""
    ours, theirs = (set(ran.given[-1].parameters) for ran in (old, new))
    if set(names) <= ours and set(names.values()) <= theirs:
        return names
    if set(names) <= theirs and set(names.values()) <= ours:
        return {other: name for name, other in names.items()}
    unknown = [each for each in (*names, *names.values()) if each not in ours | theirs] or list(names)
    raise VerifyError(
        f"--map has {unknown[0]!r}. Each line must pair a parameter of {old.script} ({', '.join(sorted(ours))}) with "
        f"one of {new.script} ({', '.join(sorted(theirs))})."
    )


def _compare_step(
    step: int, clips: RecordingComparison, pairing: StepPairing, normalized: Sequence[NormalizedRecording]
) -> StepComparison:
    old, new = ([line for line in run.lines if line.step == step] for run in (clips.a, clips.b))
    pairs = [pair for pair in clips.pairs if pair.a.step == step]
    norm, coefficient = (
        max((distance(a, b) for pair in pairs for _, a, b in divergence.numbers(pair, stage)), default=None)
        for stage in divergence.NUMBERS[-2:]
    )
    tensors, update = max_distance(pairing.gradients(step, normalized)), max_distance(pairing.updates(step))
    alike = len(pairs) == len(old) == len(new) and all(map(_alike, pairs))
    return StepComparison(step, old, new, norm, coefficient, tensors, update, alike)


def _alike(pair: CallPair) -> bool:
    a, b = pair.a, pair.b
    same_limit = None in (a.threshold, b.threshold) or divergence.threshold(a) == divergence.threshold(b)
    return a.rule == b.rule and a.norm_type == b.norm_type and same_limit


def _explained(rows: Sequence[StepComparison], pairing: StepPairing, max_ulp: float) -> Cause | None:
    """Explain updates at the first step at which only they differ."""
    row = next((row for row in rows if row.differing(max_ulp)), None)
    if row is None or row.differing(max_ulp) != ["update"]:
        return None
    ratio = pairing.ratio(row.step)
    if ratio is None or math.isclose(ratio, 1, rel_tol=ALIKE):
        return Cause(
            "another optimizer",
            "the clipped gradients are the same, and the updates are not: check the optimizer's learning rate, "
            "momentum, weight decay, and its own clipping or scaling",
        )
    for side, expected in (("new", [1 / coef for coef in _one(row.new)]), ("old", _one(row.old))):
        if any(math.isclose(ratio, coef, rel_tol=ALIKE) for coef in expected):
            return Cause(
                "the clip does not reach the step",
                f"every update of the {side} step is that of unclipped gradients: too long by its clip's coefficient. "
                "It clips after its optimizer has stepped, or steps with other gradients",
            )
    return Cause(
        "another learning rate",
        f"the clipped gradients are the same, and every update of the new step is {ratio:.6g} times that of the old "
        "one: another learning rate, or a scale that is not divided out",
    )


def _left_over(
    clips: RecordingComparison, pairing: StepPairing, normalized: Sequence[NormalizedRecording]
) -> Cause | None:
    """Find a step that adds its gradients to those of the previous step."""
    step = next((first.step for first, found in clips.divergences.items() if not found), 1)
    side = pairing.left_over(step, normalized)
    if side is None:
        return None
    return Cause(
        "gradients are not cleared",
        f"at step {step} every gradient of the {side} step is the sum of the other's and its own of step {step - 1}: "
        "it does not clear them before the next step",
    )


def _other_dtype(pairing: StepPairing, rows: Sequence[StepComparison]) -> Cause | None:
    """Find different dtypes, if the first step differs by no more than their rounding."""
    if (found := pairing.other_dtypes()) is None:
        return None
    name, *dtypes = found
    if not FORMATS.keys() >= set(dtypes):  # integers are cut off, and not rounded
        return None
    if rows[0].greatest() > ROUNDING * coarsest_ulp(dtypes):
        return None
    return Cause(
        "another dtype",
        f"{name!r} is {dtypes[0]} in the old and {dtypes[1]} in the new, and at step {rows[0].step} both differ by "
        "no more than the rounding of these dtypes",
    )


def _grown(rows: Sequence[StepComparison], clips: RecordingComparison, max_ulp: float) -> Cause | None:
    """Find a difference that is little more than one of the steps before."""
    found = [(row.step, row.greatest()) for row in rows if row.differing(max_ulp) and row.clips_alike]
    if clips.first is not None and clips.first.distance is not None:
        found.append((clips.first.step, clips.first.distance.ulps))
    step, apart = min(found, default=(1, 0.0))
    before = max((row.greatest() for row in rows if row.step < step), default=0.0)
    if not 0 < apart <= GROWTH * before:
        return None
    return Cause(
        "rounding that has grown",
        f"before step {step} both agree up to {before:.3g} ULP, not exactly. Each step starts from the "
        "previous one, so rounding grows. Compare fewer steps with --steps, or raise --max-ulp",
    )


def _one(lines: Sequence[RecordedCall]) -> list[float]:
    """Return the coefficient of a step with a single one; none if it is 0."""
    coefs = [coef for line in lines for coef in line.coefs()]
    return coefs if len(coefs) == 1 and coefs[0] else []
