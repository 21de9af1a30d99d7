"""Join the differences of clip calls with those of optimizers' steps, so that a report explains each only once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from ...causes.observation import Cause, CauseKind
from ..divergence import NUMBERS, Divergence, DivergencePoint, divergences, numbers
from ..optimizers.steps import MOMENTUM, STAGES, StepDifference
from ..pairing import CallPair
from ..rounding import PRODUCT, ROUNDING
from . import before_clips

Explained = Mapping[Divergence, Sequence[Cause]]

BEFORE = ("steps", "gradients cleared", "backward passes", "clips")
"""The stages of optimizers' steps that come before the clip of their step, or that show a missing clip."""

CHANGED = NUMBERS[:-1]
"""The stages whose numbers a difference of optimizers' steps may change. A coefficient depends only on its norm and on
the settings of the clip."""

SHOWN_BY: Mapping[CauseKind, set[CauseKind]] = {
    "several clips before a step": {"clipped twice", "per tensor for global", "per group for global"}
}
"""By the kind of a cause of differing steps: the kinds of causes of calls that explain the same difference."""

CONSEQUENCES = {"rounding that has grown", *before_clips.OUTSIDE_THE_CLIP}
"""The causes that follow from other updates before them."""

ACCUMULATION, SCALED = "gradient accumulation", "scaled gradients"


class Effect(Protocol):
    """A function that returns whether updates differ at a step or at a later one. With `at_once`, only at this step."""

    def __call__(self, step: int, *, at_once: bool = False) -> bool: ...


def join(
    points: Sequence[DivergencePoint], explained: Explained, steps: Iterable[StepDifference]
) -> dict[Divergence, Sequence[Cause]]:
    """Return the divergences of calls and of optimizers' steps with their causes, in the order in which they happen.

    Leave out a difference of optimizers' steps if a call has the same kind of cause, or a kind that SHOWN_BY has for
    it. Also leave out another weight decay if one run adds it before the clip. A divergence without a cause may get one
    by elimination.

    points: The divergences of calls, with both runs.
    explained: The causes of the divergences in `points`.
    steps: The differences of optimizers' steps, without those that `effective` leaves out.
    """
    known = {cause.kind for causes in explained.values() for cause in causes}
    if "weight decay before the clip" in known:
        steps = [each for each in steps if each.divergence.parameter != "weight_decay"]
    steps = [each for each in steps if not known & {each.cause.kind, *SHOWN_BY.get(each.cause.kind, ())}]
    explained, steps = _accumulated(points, explained, steps)
    joined = _in_order(_without_consequences(explained, steps), steps)
    return _by_elimination(points, joined)


def _without_consequences(explained: Explained, steps: Sequence[StepDifference]) -> Explained:
    """Remove the causes in CONSEQUENCES after the first difference of optimizers' steps, which may explain them.

    For a divergence in a weight that is not finite, also remove the cause "not finite in one run".
    """
    first = min((each.divergence.step for each in steps), default=math.inf)
    return {
        divergence: [
            cause for cause in causes if divergence.step <= first or cause.kind not in _consequences(divergence)
        ]
        for divergence, causes in explained.items()
    }


def _consequences(divergence: Divergence) -> set[str]:
    values = (divergence.a, divergence.b)
    is_finite = all(math.isfinite(each) for each in values if isinstance(each, float))
    return CONSEQUENCES if is_finite or divergence.stage != "weight" else {*CONSEQUENCES, "not finite in one run"}


def effective(
    steps: Sequence[StepDifference], pairs: Sequence[CallPair], has_effect: Effect | None = None
) -> Iterator[StepDifference]:
    """Yield the differences of optimizers' steps that may have changed recorded numbers.

    Yield a difference that acts before the clip if numbers at the stages CHANGED of its step differ by more than
    ROUNDING ULP, or were not compared. Yield any other difference if numbers at these stages of a later step differ by
    more than ROUNDING ULP, or were not compared. Always yield a difference in clips.

    A difference in the rule for momentum changes the weights of the next step, unless the code makes up for it. So do
    not yield this difference if the weights of the next step were compared, and agree.

    has_effect: A function that returns whether updates differ at a step or later. If given, it decides on differences
        that act after the clip.
    """
    measured, with_weights = (
        {pair.a.step for pair in pairs if any(True for stage in stages for _ in numbers(pair, stage))}
        for stages in (CHANGED, CHANGED[:1])  # the first stage is the weights
    )
    beyond_rounding = [
        each
        for differences in divergences(pairs, ROUNDING)
        for each in differences
        if each.stage in CHANGED and (each.ulps_at_its_size or 0.0) > ROUNDING
    ]
    differing = {each.step for each in beyond_rounding}
    agreeing = with_weights - {each.step for each in beyond_rounding if each.stage == "weight"}
    last_measured, last_differing = max(measured, default=0), max(differing, default=0)
    for each in steps:
        step = each.divergence.step
        if each.divergence.stage == "clips":
            yield each
        elif _acts_first(each.divergence):
            if step in differing or step not in measured:
                yield each
        elif each.divergence.parameter == MOMENTUM and (
            not has_effect(step, at_once=True)
            if has_effect
            else min((later for later in with_weights if later > step), default=None) in agreeing
        ):
            continue
        elif has_effect(step) if has_effect else last_differing > step or last_measured <= step:
            yield each


def _accumulated(
    points: Sequence[DivergencePoint], explained: Explained, steps: Sequence[StepDifference]
) -> tuple[Explained, list[StepDifference]]:
    """Keep one of two explanations of a step: the number of backward passes, or the causes of the gradients.

    Return (explained, steps), after one of these removals:

    - If the gradients are scaled by the ratio of the numbers of backward passes, remove the cause "scaled gradients".
      If the run with more passes has the larger gradients, advise to divide its losses.
    - If the gradients have another cause, remove the difference in backward passes.
    - If they have no cause, or if the numbers of backward passes are equal, remove nothing.
    """
    passes = next((each for each in steps if each.cause.kind == ACCUMULATION), None)
    at_step = [each for each in points if passes and each.first.step == passes.divergence.step]
    explanations = [(point.first, cause) for point in at_step for cause in explained[point.first]]
    if passes is None or not explanations:
        return explained, list(steps)
    scaled = [first for first, cause in explanations if cause.kind == SCALED]
    if scaled and _is_factor_of_passes(passes.divergence, scaled[0]):
        rest = {first: [each for each in causes if each.kind != SCALED] for first, causes in explained.items()}
        summed = passes._replace(cause=_with_advice(passes, scaled[0], points[0]))
        steps = [summed if each is passes else each for each in steps]
        return {first: causes for first, causes in rest.items() if causes or first not in scaled}, steps
    return explained, [each for each in steps if each is not passes]


def _with_advice(passes: StepDifference, scaled: Divergence, point: DivergencePoint) -> Cause:
    """Return the cause of `passes`, with advice if the gradients of the run with more backward passes are larger."""
    sides = (point.a, point.b)
    more, larger = (sides[float(str(each.b)) > float(str(each.a))] for each in (passes.divergence, scaled))
    if more is not larger:
        return passes.cause
    sentence = f"{passes.cause.sentence}. The gradients of {more.name} are the sums of these passes"
    return passes.cause._replace(sentence=f"{sentence}: divide each loss by the number of passes")


def _is_factor_of_passes(passes: Divergence, scaled: Divergence) -> bool:
    """Return whether the ratio of two norms equals the ratio of the numbers of backward passes, or its inverse.

    Return False if one of these four numbers is missing or 0.

    passes: A divergence in the number of backward passes.
    scaled: A divergence in a norm.
    """
    numbers = (passes.a, passes.b, scaled.a, scaled.b)
    if not all(isinstance(each, int | float) and each for each in numbers):
        return False
    few, many, low, high = (float(str(each)) for each in numbers)
    return any(math.isclose(high / low, ratio, rel_tol=PRODUCT) for ratio in (many / few, few / many))


def _in_order(explained: Explained, steps: Sequence[StepDifference]) -> dict[Divergence, Sequence[Cause]]:
    left_out = {each.divergence.step for each in steps if each.divergence.stage == "clips"}
    items = [
        ((each.divergence.step, 0 if _acts_first(each.divergence) else 2), each.divergence, (each.cause,))
        for each in steps
    ] + [
        ((divergence.step, 1), divergence, tuple(causes))
        for divergence, causes in explained.items()
        if not (divergence.stage == "calls" and divergence.step in left_out)
    ]
    return {divergence: causes for _, divergence, causes in sorted(items, key=lambda item: item[0])}


def _acts_first(divergence: Divergence) -> bool:
    """Return whether an optimizer's step differs at a stage in BEFORE. A clip in the same step may then differ, too."""
    return divergence.stage in BEFORE


def _by_elimination(points: Sequence[DivergencePoint], joined: Explained) -> dict[Divergence, Sequence[Cause]]:
    """Give the first divergence without a cause the cause that `before_clips.by_elimination` finds.

    Return all divergences with their causes. If an earlier divergence has a cause other than rounding, or optimizers'
    steps differ earlier, change nothing: that cause or difference may explain the later divergences, too.
    """
    result = dict(joined)
    if any(divergence.stage in STAGES for divergence in joined):
        first = next(divergence for divergence in joined if divergence.stage in STAGES)
        points = [point for point in points if point.first.step < first.step + (not _acts_first(first))]
    at = {point.first: point for point in points}
    for divergence, causes in joined.items():
        if not causes and divergence in at:
            cause = before_clips.by_elimination(at[divergence])
            result[divergence] = (cause,) if cause else ()
        if not causes or not all(each.kind.startswith("rounding") for each in causes):
            break
    return result
