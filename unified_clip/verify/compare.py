"""Two training steps beside each other: what they clipped, by `parity.parting`, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..recording import divergence
from ..recording.causes.finding import Finding
from ..recording.compare import RecordingComparison, compare
from ..recording.pairing import CallPair, Names
from ..recording.rounding import GROWTH, ROUNDING, Distance, distance
from ..recording.runs import Line
from ..tensors.arithmetic import FORMATS
from .completeness import refuse_what_changes, refuse_what_is_alone
from .match_names import Parameters
from .normalize import Settled, settle
from .run import Ran, Script, VerifyError
from .step_tensors import ALIKE, Beside, Far, coarsest, furthest

Stage = Literal["norm", "coefficient", "tensors", "update"]

STAGES: tuple[Stage, ...] = ("norm", "coefficient", "tensors", "update")
"""In the order in which one follows from another."""


@dataclass(frozen=True)
class Row:
    """A step of both."""

    step: int
    old: Sequence[Line]
    new: Sequence[Line]
    norm: Distance | None
    """None where there are no two to compare, as of a clip by value; so too below."""

    coefficient: Distance | None
    tensors: Far | None
    """The gradients after clipping."""

    update: Far | None
    """What the step has added to the parameters."""

    clips_alike: bool
    """Whether they clip by the same rule and threshold, in as many calls."""

    @property
    def has_clip(self) -> bool:
        """Whether at least one side made a clip call."""
        return bool(self.old or self.new)

    def distance(self, stage: Stage) -> Distance | None:
        found: Distance | Far | None = getattr(self, stage)
        return found.distance if isinstance(found, Far) else found

    def greatest(self) -> float:
        """The greatest distance, in ULP."""
        return max((far.ulps for stage in STAGES if (far := self.distance(stage)) is not None), default=0.0)

    def apart(self, max_ulp: float) -> list[str]:
        """What differs."""
        stages: list[str] = [
            stage for stage in STAGES if (far := self.distance(stage)) is not None and far.ulps > max_ulp
        ]
        return stages if self.clips_alike else ["clip", *stages]


@dataclass(frozen=True)
class Verified:
    """Two training steps that were run."""

    old: Ran
    new: Ran
    clips: RecordingComparison
    rows: Sequence[Row]
    unclipped: Sequence[Ran]
    """Those that gave their gradients as they were before clipping: what the calls made of them was compared."""

    finding: Finding | None
    """What explains updates that differ where the clips do not."""

    max_ulp: float
    not_gradients: Sequence[tuple[Ran, str, int]] = ()
    """Calls that clipped other tensors than gradients, and how many: they are not compared."""

    @property
    def without_clip(self) -> list[int]:
        """The steps at which neither side made a clip call."""
        return [row.step for row in self.rows if not row.has_clip]

    @property
    def is_same(self) -> bool:
        return self.clips.first is None and not any(row.apart(self.max_ulp) for row in self.rows)


def compare_steps(
    old: Ran, new: Ran, *, weights: Parameters, steps: int, out: Path, names: Names | None, max_ulp: float
) -> Verified:
    """Compare what two functions did. Their recordings are written into `out`, as `old.jsonl` and `new.jsonl`.

    Raises:
        VerifyError: One of them made no clip call that can be seen, there is a name that neither has, or they gave what
            cannot be compared.
    """
    for ran in (old, new):
        refuse_what_changes(ran)
    beside = Beside(old, new, weights, steps, _oriented(old, new, names or {}))
    refuse_what_is_alone(old, new, weights, beside.names, beside.axes)
    settled: list[Settled] = []
    for ran, mapped in ((old, {}), (new, {theirs: ours for ours, theirs in beside.names.items()})):
        settled.append(settle(ran, weights, steps, out / f"{ran.script.side}.jsonl", mapped, *settled))
        if not settled[-1].calls:
            raise VerifyError(_no_call(ran))
    ours, theirs = (each.names for each in settled)
    known = {name: other for name, other in beside.names.items() if name in ours and other in theirs}
    called = _called(old.script), _called(new.script)
    called = called if called[0] != called[1] else (old.script.text, new.script.text)
    clips = compare(settled[0].path, settled[1].path, names=known, max_ulp=max_ulp, labels=called)
    rows = [_row(step, clips, beside, settled) for step in range(1, steps + 1)]
    unclipped = [ran for ran, each in zip((old, new), settled, strict=True) if each.unclipped]
    finding, rounding = None, all(each.mistake.startswith("rounding") for each in clips.findings)
    if rounding:
        finding = _other_dtype(beside, rows) or _left_over(clips, beside, settled)
    if finding is None and not clips.findings:
        finding = _grown(rows, clips, max_ulp)
    if finding is None and rounding:
        finding = _explained(rows, beside, max(max_ulp, ROUNDING))
    not_gradients = [
        (ran, call, count)
        for ran, each in zip((old, new), settled, strict=True)
        for call, count in each.not_gradients.items()
    ]
    return Verified(old, new, clips, rows, unclipped, finding, max_ulp, not_gradients)


def _called(script: Script) -> str:
    """A function, in sentences: without the directories of its file."""
    return f"{script.file.name}:{script.name}"


def _no_call(ran: Ran) -> str:
    return (
        f"{ran.script} made no clip call that can be seen: none of unified_clip's, and none of the frameworks' own "
        "that docs/verify.md lists; none is seen inside torch.compile or with jit_compile=True: switch that off. If it "
        "clips by hand, give the gradients before clipping as a third dict: "
        "(parameters, gradients, unclipped)"
    )


def _oriented(old: Ran, new: Ran, names: Names) -> Names:
    """A map of names from old to new; it may be given the other way round."""
    ours, theirs = (set(ran.given[-1].parameters) for ran in (old, new))
    if set(names) <= ours and set(names.values()) <= theirs:
        return names
    if set(names) <= theirs and set(names.values()) <= ours:
        return {other: name for name, other in names.items()}
    unknown = [each for each in (*names, *names.values()) if each not in ours | theirs] or list(names)
    raise VerifyError(
        f"--map has {unknown[0]!r}; a line of it is a name that {old.script} gives, which are "
        f"{', '.join(sorted(ours))}, and one that {new.script} gives: {', '.join(sorted(theirs))}"
    )


def _row(step: int, clips: RecordingComparison, beside: Beside, settled: Sequence[Settled]) -> Row:
    old, new = ([line for line in run.lines if line.step == step] for run in (clips.a, clips.b))
    pairs = [pair for pair in clips.pairs if pair.a.step == step]
    norm, coefficient = (
        max((distance(a, b) for pair in pairs for _, a, b in divergence.numbers(pair, stage)), default=None)
        for stage in divergence.NUMBERS[-2:]
    )
    tensors, update = furthest(beside.gradients(step, settled)), furthest(beside.updates(step))
    alike = len(pairs) == len(old) == len(new) and all(map(_alike, pairs))
    return Row(step, old, new, norm, coefficient, tensors, update, alike)


def _alike(pair: CallPair) -> bool:
    a, b = pair.a, pair.b
    same_limit = None in (a.threshold, b.threshold) or divergence.threshold(a) == divergence.threshold(b)
    return a.rule == b.rule and a.norm_type == b.norm_type and same_limit


def _explained(rows: Sequence[Row], beside: Beside, max_ulp: float) -> Finding | None:
    """Why updates differ, at the first step that they do, if all before them is the same."""
    row = next((row for row in rows if row.apart(max_ulp)), None)
    if row is None or row.apart(max_ulp) != ["update"]:
        return None
    ratio = beside.ratio(row.step)
    if ratio is None or math.isclose(ratio, 1, rel_tol=ALIKE):
        return Finding(
            "another optimizer",
            "the clipped gradients are the same, and what is made of them is not: look at the optimizer, its rate, "
            "momentum, weight decay, and what it clips or scales itself",
        )
    for side, expected in (("new", [1 / coef for coef in _one(row.new)]), ("old", _one(row.old))):
        if any(math.isclose(ratio, coef, rel_tol=ALIKE) for coef in expected):
            return Finding(
                "the clip does not reach the step",
                f"every update of the {side} is by the coefficient of its clip too long: that of gradients which are "
                "not clipped. It clips after its optimizer has stepped, or steps with others than the clipped",
            )
    return Finding(
        "another learning rate",
        f"the clipped gradients are the same, and every update of the new is {ratio:.6g} times that of the old: "
        "another learning rate, or a scale that is not divided out",
    )


def _left_over(clips: RecordingComparison, beside: Beside, settled: Sequence[Settled]) -> Finding | None:
    """Whether one adds the gradients of a step to those of the step before."""
    step = next((first.step for first, found in clips.divergences.items() if not found), 1)
    side = beside.left_over(step, settled)
    if side is None:
        return None
    return Finding(
        "gradients are not cleared",
        f"at step {step} every gradient of the {side} is the other's and its own of step {step - 1} together: it does "
        "not set them to zero before the next step",
    )


def _other_dtype(beside: Beside, rows: Sequence[Row]) -> Finding | None:
    """Whether they train in different dtypes, and the first step differs by no more than the rounding of those."""
    if (found := beside.other_dtypes()) is None:
        return None
    name, *dtypes = found
    if not FORMATS.keys() >= set(dtypes):  # integers are cut off, and not rounded
        return None
    if rows[0].greatest() > ROUNDING * coarsest(dtypes):
        return None
    return Finding(
        "another dtype",
        f"{name!r} is {dtypes[0]} in the old and {dtypes[1]} in the new, and at step {rows[0].step} the two differ by "
        "no more than these round",
    )


def _grown(rows: Sequence[Row], clips: RecordingComparison, max_ulp: float) -> Finding | None:
    """Whether the two have been a little apart before, and not much less."""
    found = [(row.step, row.greatest()) for row in rows if row.apart(max_ulp) and row.clips_alike]
    if clips.first is not None and clips.first.distance is not None:
        found.append((clips.first.step, clips.first.distance.ulps))
    step, far = min(found, default=(1, 0.0))
    before = max((row.greatest() for row in rows if row.step < step), default=0.0)
    if not 0 < far <= GROWTH * before:
        return None
    return Finding(
        "rounding that has grown",
        f"before step {step} the two are the same up to {before:.3g} ULP, and not exactly; each step begins with what "
        "the one before has left, so that rounding grows like this. Compare fewer steps, with --steps, or allow more",
    )


def _one(lines: Sequence[Line]) -> list[float]:
    """The coefficient of a step that has one."""
    coefs = [coef for line in lines for coef in line.coefs()]
    return coefs if len(coefs) == 1 and coefs[0] else []
