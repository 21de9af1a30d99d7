"""Find runs that clip after the optimizer's step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from ...causes.cause import Cause
from ..divergence import Divergence, DivergencePoint, StepDifference, numbers
from ..pairs.calls import CallPair, have_near_norms
from ..recorded_run import RecordedCall, RecordedRun
from ..rounding import is_near


def is_late(run: RecordedRun) -> bool:
    steps = run.optimizer_steps
    count = steps[1].calls if len(steps) > 1 else len(run.lines)
    is_even = all(step.calls == number * count for number, step in enumerate(steps))
    return 0 < count * len(steps) <= len(run.lines) and is_even


def late_clips(a: RecordedRun, b: RecordedRun) -> StepDifference | None:
    if not (a.optimizer_steps and b.optimizer_steps) or is_late(a) == is_late(b):
        return None
    late, early = (a, b) if is_late(a) else (b, a)
    sentence = f"{late.name} clips after the optimizer step, and {early.name} clips before the optimizer step"
    counts = (a.optimizer_steps[0].calls, b.optimizer_steps[0].calls)
    return StepDifference(Divergence(1, "clips", *counts), Cause("clipping after the step", sentence))


def late_clip_of_step(
    late: RecordedRun, early: RecordedRun, step: int, clips: Sequence[Mapping[int, Sequence[RecordedCall]]]
) -> Cause | None:
    later, own = (calls.get(step + 1, ()) for calls in clips)
    after = [call for call in later if not any(have_near_norms(call, other) for other in own)]
    if not any(itertools.starmap(have_near_norms, itertools.product(after, clips[1].get(step, ())))):
        return None
    sentence = (
        f"{late.name} clips gradients after step {step} of the optimizer, and {early.name} clips the same gradients "
        f"before step {step}"
    )
    return Cause("clipping after the step", sentence)


def late_clip_by_weights(point: DivergencePoint, pair: CallPair) -> Cause | None:
    if point.first.stage != "weight" or late_clips(point.a, point.b):
        return None
    gradients = point.gradients()
    moved = [(name, a, b) for name, a, b in numbers(pair, "weight") if a != b]
    still = {name for name, a, b in gradients if a == 0}
    if not gradients or not all(is_near(a, b) for _, a, b in gradients) or still & {name for name, *_ in moved}:
        return None
    # steps change all weights: if some weights stay equal, the difference has another reason
    names = {name for name, *_ in moved}
    earlier = [both for before in point.pairs[: point.index] for both in numbers(before, "weight") if both[0] in names]
    if 2 * len(moved) <= len(gradients) - len(still) or any(a == b and a for _, a, b in earlier):
        return None
    name, a, b = moved[0]
    return Cause(
        "clipping after the step",
        f"all {len(gradients)} gradients are equal, so both runs had the same weights in the backward pass. The "
        f"weights differ when the clip runs ({name!r}: {a:.9g} and {b:.9g}), because {_late_run(point, pair)} clips "
        "after its optimizer has stepped. The step uses unclipped gradients",
    )


def _late_run(point: DivergencePoint, pair: CallPair) -> str:
    """Return the name of the run whose weights changed before the clip. If unknown, return "one of the two runs".

    Between this clip and the next clip, the weights of the other run change in the same direction.
    """
    following = point.pairs[point.index + 1 : point.index + 2]
    later = {name: (a, b) for each in following for name, a, b in numbers(each, "weight")}
    moves = [(a, b, *later[name]) for name, a, b in numbers(pair, "weight") if name in later and a != b]
    is_a = all((next_b - b) * (a - b) > 0 for a, b, _, next_b in moves)
    is_b = all((next_a - a) * (b - a) > 0 for a, b, next_a, _ in moves)
    return "one of the two runs" if is_a == is_b else point.a.name if is_a else point.b.name
