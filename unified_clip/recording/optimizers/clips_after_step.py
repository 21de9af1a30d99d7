"""Find runs that clip after the optimizer's step: by the recorded optimizer steps, or by the recorded weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from ...causes.cause import Cause
from ..divergence import Divergence, DivergencePoint, StepDifference, numbers
from ..pairs.calls import CallPair, have_near_norms
from ..recorded_run import RecordedCall, RecordedRun
from ..rounding import is_near

DESCENT = 0.1
"""The largest relative difference at which `_is_descent` treats two numbers as equal."""


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
    """Return a cause if `early` clips before an optimizer step, and `late` clips the same gradients after the step.

    clips: The clip calls of `late` and of `early`, by step.
    """
    later, own = (calls.get(step + 1, ()) for calls in clips)
    after = [call for call in later if not any(have_near_norms(call, other) for other in own)]
    if not any(itertools.starmap(have_near_norms, itertools.product(after, clips[1].get(step, ())))):
        return None
    sentence = (
        f"{late.name} makes a clip call after step {step} of the optimizer, and {early.name} clips the same gradients "
        f"before step {step}"
    )
    return Cause("clipping after the step", sentence)


def late_clip_by_weights(point: DivergencePoint, pair: CallPair) -> Cause | None:
    if point.first.stage != "weight":
        return None
    gradients = point.gradients()
    moved = [(name, a, b) for name, a, b in numbers(pair, "weight") if a != b]
    still = {name for name, a, b in gradients if a == 0}
    if not gradients or not all(is_near(a, b) for _, a, b in gradients) or still & {name for name, *_ in moved}:
        return None
    # From the first step on, steps change all weights. If weights differ for another reason, some may be equal.
    names = {name for name, *_ in moved}
    earlier = [both for before in point.pairs[: point.index] for both in numbers(before, "weight") if both[0] in names]
    if 2 * len(moved) <= len(gradients) - len(still) or any(a == b and a for _, a, b in earlier):
        return None
    late = _late_run(point, pair)
    who = late.name if late else "one of the two runs"
    name, a, b = moved[0]
    return Cause(
        "clipping after the step",
        f"all {len(gradients)} gradients are equal, so both runs had the same weights in the backward pass. The "
        f"weights differ when the clip runs ({name!r}: {a:.9g} and {b:.9g}), because {who} clips after its optimizer "
        "has stepped. The step uses unclipped gradients",
    )


def _late_run(point: DivergencePoint, pair: CallPair) -> RecordedRun | None:
    # The late run has stepped with unclipped gradients, the other run with clipped gradients. With SGD, the weights
    # show which run it is. With other optimizers, all weights must have moved in the same direction.
    coefs = (pair.a.known_coefs(), pair.b.known_coefs())
    if point.index + 1 >= len(point.pairs) or not len(coefs[0]) == len(coefs[1]) == 1:
        return None
    later = {name: (a, b) for name, a, b in numbers(point.pairs[point.index + 1], "weight")}
    squares = {name: a * a for name, a, _ in point.gradients() if a}
    weights = [(name, a, b) for name, a, b in numbers(pair, "weight") if name in later and name in squares]
    if len(weights) < 2:
        return None
    b_late = [(a, b, later[name][0], squares[name]) for name, a, b in weights]
    a_late = [(b, a, later[name][1], squares[name]) for name, a, b in weights]
    fits = [_is_descent(b_late, coefs[0][0]), _is_descent(a_late, coefs[1][0])]
    if not any(fits):
        fits = [all((after - now) * (moved - now) > 0 for now, moved, after, _ in each) for each in (b_late, a_late)]
    return None if fits[0] == fits[1] else point.b if fits[0] else point.a


def _is_descent(moves: list[tuple[float, float, float, float]], coef: float) -> bool:
    """Return whether the weights fit SGD with clipped gradients in one run, and with unclipped gradients in the other
    run.

    moves: Four numbers for each weight. The first three numbers are norms of the weight: before the step, after the
        unclipped step, and after the clipped step. The last number is the squared norm of the gradient.
    """
    # Then w^2 changes by -2*lr*wg + lr^2*g^2, and by -2*lr*c*wg + lr^2*c^2*g^2. The second change minus c times the
    # first one is lr^2*c*(c - 1) times g^2: the same multiple for every parameter.
    multiples = [(after**2 - now**2 - coef * (moved**2 - now**2)) / square for now, moved, after, square in moves]
    return multiples[0] < 0 and all(math.isclose(multiple, multiples[0], rel_tol=DESCENT) for multiple in multiples)
