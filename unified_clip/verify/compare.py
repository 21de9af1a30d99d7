"""Compare two training steps: their clip calls, clipped gradients and updates, and why they differ."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..causes.observation import Cause
from ..recording import divergence
from ..recording.compare import RecordingComparison, compare
from ..recording.pairing import CallPair, Names, directed
from ..recording.rounding import GROWTH, ROUNDING, Distance, distance
from ..recording.runs import RecordedCall
from ..tensors.arithmetic import FORMATS
from .match_names import Parameters
from .normalize import NormalizedRecording, normalize
from .run import ScriptRun, VerifyError
from .step_tensors import ALIKE, MaxDistance, StepPairing, coarsest_ulp, max_distance

Stage = Literal["norm", "coefficient", "tensors", "update"]

STAGES: tuple[Stage, ...] = ("norm", "coefficient", "tensors", "update")
"""Each follows from those before it."""

MOST_LISTED = 4
"""Names that an error lists."""


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

    def distances(self) -> dict[Stage, Distance | MaxDistance | None]:
        return {stage: getattr(self, stage) for stage in STAGES}

    def greatest(self) -> float:
        """Return the greatest distance in ULP."""
        return max((distance.ulps for distance in self.distances().values() if distance), default=0.0)

    def differing(self, max_ulp: float) -> list[str]:
        """Return the stages that differ."""
        stages: list[str] = [
            stage for stage, distance in self.distances().items() if distance and distance.ulps > max_ulp
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
    for ran, mapped in ((old, {}), (new, {new_name: name for name, new_name in pairing.names.items()})):
        normalized.append(normalize(ran, weights, steps, out / f"{ran.script.side}.jsonl", mapped, *normalized))
        if not normalized[-1].lines:
            raise VerifyError(
                f"No clip call of {ran.script} was recorded: neither one of unified_clip nor one of the functions that "
                "docs/verify.md lists. Calls inside torch.compile or jit_compile=True are not recorded: turn these "
                "off. If it clips without such a function, yield (parameters, gradients, unclipped)."
            )
    in_old, in_new = ({name for line in each.lines for name in line["parameters"]} for each in normalized)
    known = {name: other for name, other in pairing.names.items() if name in in_old and other in in_new}
    called = [f"{each.script.file.name}:{each.script.name}" for each in (old, new)]  # without directories
    called = called if called[0] != called[1] else [old.script.text, new.script.text]
    clips = compare(normalized[0].path, normalized[1].path, names=known, max_ulp=max_ulp, labels=called)
    rows = [_compare_step(step, clips, pairing, normalized) for step in range(1, steps + 1)]
    unclipped = [each.ran for each in normalized if each.unclipped]
    finding, rounding = None, all(each.kind.startswith("rounding") for each in clips.findings)
    if rounding:
        finding = _other_dtype(pairing, rows) or _left_over(clips, pairing, normalized)
    if finding is None and not clips.findings:
        finding = _grown(rows, clips, max_ulp)
    if finding is None and rounding:
        finding = _explained(rows, pairing, max(max_ulp, ROUNDING))
    not_gradients = [(each.ran, *item) for each in normalized for item in each.not_gradients.items()]
    return Verification(old, new, clips, rows, unclipped, finding, max_ulp, not_gradients)


def _oriented(old: ScriptRun, new: ScriptRun, names: Names) -> Names:
    """Return `names` in the direction from old to new."""
    in_old, in_new = (set(ran.given[-1].parameters) for ran in (old, new))
    if (oriented := directed(names, in_old, in_new)) is not None:
        return oriented
    unknown = [each for each in (*names, *names.values()) if each not in in_old | in_new] or list(names)
    raise VerifyError(
        f"--map has {unknown[0]!r}. Each line must pair a parameter of {old.script} ({', '.join(sorted(in_old))}) with "
        f"one of {new.script} ({', '.join(sorted(in_new))})."
    )


# -- outputs that cannot be compared: they would count as the same


def reject_changing_outputs(ran: ScriptRun) -> None:
    """Reject outputs whose parameters or shapes change between steps, and gradients that belong to no parameter.

    Raises:
        VerifyError: The outputs have such a tensor.
    """
    first = shapes(ran)
    for step, given in enumerate(ran.given, start=1):
        now = {name: tuple(each.shape) for name, each in given.parameters.items()}
        if other := sorted(name for name in {*first, *now} if first.get(name) != now.get(name)):
            raise VerifyError(
                f"{ran.script} yields {_listing(other)} at step {step} but not at step 1, or in another shape. Yield "
                "the same parameters after each step."
            )
        for part, tensors in (("gradients", given.gradients or {}), ("unclipped gradients", given.unclipped or {})):
            if unknown := sorted(name for name in tensors if name not in now):
                raise VerifyError(
                    f"{ran.script} yields {part} of {_listing(unknown)} at step {step}, but no such parameters. Its "
                    f"parameters are {_listing(now)}. Name each gradient like its parameter."
                )
            if turned := [name for name, each in tensors.items() if tuple(each.shape) != now[name]]:
                raise VerifyError(
                    f"{ran.script} yields {part} of {turned[0]!r} in the shape {tuple(tensors[turned[0]].shape)} at "
                    f"step {step}, and the parameter in {now[turned[0]]}. Yield both in one shape."
                )


def reject_unpaired(
    old: ScriptRun, new: ScriptRun, weights: Parameters, names: Names, axes: Mapping[str, Sequence[int] | None]
) -> None:
    """Reject parameters without a partner or with one of another shape, and weights that neither function yields.

    Raises:
        VerifyError: There is such a parameter or weight.
    """
    for name, other_name in names.items():
        if axes[name] is None:
            raise VerifyError(
                f"{old.script} yields {name!r} in the shape {shapes(old)[name]}, and {new.script} {other_name!r} in "
                f"{shapes(new)[other_name]}. No order of axes makes them equal. Pair other names with --map, or "
                "reshape one of them."
            )
    sides = ((old, new, set(names)), (new, old, set(names.values())))
    for ran, other, paired in sides:
        if alone := [name for name in shapes(ran) if name not in paired]:
            raise VerifyError(
                f"{other.script} yields no parameter that matches {_listing(alone)} of {ran.script}, so it cannot be "
                "compared. Yield it from both, or pair the names with --map."
            )
    if unseen := [name for name in weights if name not in {*names, *names.values()}]:
        raise VerifyError(
            f"--weights has {_listing(unseen)}, which neither function yields, so it cannot be compared. Yield it from "
            "both after each step, by that name in one of them, or remove it from the file."
        )


def shapes(ran: ScriptRun) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes of the parameters that a function yields."""
    return {name: tuple(each.shape) for name, each in ran.given[0].parameters.items()}


def _listing(names: Collection[str]) -> str:
    listed = [repr(name) for name in names]
    more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    return ", ".join(listed[:MOST_LISTED]) + more


# -- comparing steps


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
    """Explain updates at the first step that differs, if only they differ there."""
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
    differing = [(name, *dtypes) for name, dtypes in pairing.dtypes.items() if dtypes[0] != dtypes[1]]
    if not differing:
        return None
    name, *dtypes = differing[0]
    are_rounded = FORMATS.keys() >= set(dtypes)  # integers are cut off
    if not are_rounded or rows[0].greatest() > ROUNDING * coarsest_ulp(dtypes):
        return None
    return Cause(
        "another dtype",
        f"{name!r} is {dtypes[0]} in the old and {dtypes[1]} in the new, and at step {rows[0].step} both differ by "
        "no more than the rounding of these dtypes",
    )


def _grown(rows: Sequence[StepComparison], clips: RecordingComparison, max_ulp: float) -> Cause | None:
    """Find a difference that is little more than one of the steps before."""
    found = [(row.step, row.greatest()) for row in rows if row.differing(max_ulp) and row.clips_alike]
    if clips.first is not None and clips.first.ulps is not None:
        found.append((clips.first.step, clips.first.ulps))
    step, difference = min(found, default=(1, 0.0))
    before = max((row.greatest() for row in rows if row.step < step), default=0.0)
    if not 0 < difference <= GROWTH * before:
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
