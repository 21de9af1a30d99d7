"""Report each difference between clip calls or optimizer steps only once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ...causes.cause import Cause, CauseKind
from ..divergence import NUMBERS, Divergence, DivergencePoint, StepDifference, divergences, numbers
from ..optimizers.settings import MOMENTUM
from ..optimizers.step_differences import STAGES
from ..pairs.calls import CallPair
from ..rounding import GROWTH, PRODUCT, ROUNDING
from . import before_clips

Explained = Mapping[Divergence, Sequence[Cause]]

ROUNDED: frozenset[CauseKind] = frozenset({"rounding", "rounding noise", "rounding that has grown"})

STAGES_BEFORE_CLIP = ("steps", "gradients cleared", "backward passes", "clips")

CHANGED = NUMBERS[:-1]
"""Coefficients are left out, because they depend only on norms and settings."""

SPECIFIC_CAUSES: Mapping[CauseKind, set[CauseKind]] = {
    "several clips before a step": {"clipped twice", "per tensor for global", "per group for global"}
}
"""{general cause: specific causes that replace it in a report}."""

CONSEQUENCES = {"rounding that has grown", *before_clips.OUTSIDE_THE_CLIP}
"""These causes are not reported after the first difference between optimizer steps."""

ACCUMULATION, SCALED, OTHER_EPS = "gradient accumulation", "scaled gradients", "another eps of the clip"


Effect = Callable[..., bool]
"""Takes (step, at_once=False). Returns whether the updates differ at `step` or later. `at_once` ignores later steps."""


def is_rounding(causes: Sequence[Cause]) -> bool:
    return bool(causes) and all(cause.kind in ROUNDED for cause in causes)


def join(
    points: Sequence[DivergencePoint], explained: Explained, steps: Iterable[StepDifference]
) -> dict[Divergence, Sequence[Cause]]:
    """Return divergences with their causes, in order of time. Leave out causes that follow from earlier differences."""
    known = {cause.kind for causes in explained.values() for cause in causes}
    if "weight decay before the clip" in known:
        steps = [each for each in steps if each.divergence.parameter != "weight_decay"]
    steps = [each for each in steps if not known & {each.cause.kind, *SPECIFIC_CAUSES.get(each.cause.kind, ())}]
    explained, steps = _accumulated(points, explained, steps)
    joined = _in_order(_without_consequences(explained, steps), steps)
    return _by_elimination(points, joined)


def _without_consequences(explained: Explained, steps: Sequence[StepDifference]) -> Explained:
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
    steps: Sequence[StepDifference],
    pairs: Sequence[CallPair],
    has_effect: Effect | None = None,
    *,
    have_one_set_of_rates: bool = False,
) -> Iterator[StepDifference]:
    """Yield the steps after which the runs differ by more than rounding, and different learning rates. If the runs
    `have_one_set_of_rates`, the steps of several optimizers may have another order."""
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
        is_judged = each.divergence.stage == "learning rate" and not (has_effect or have_one_set_of_rates)
        if is_judged or each.divergence.stage == "clips":
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
    sides = (point.a, point.b)
    more, larger = (sides[float(str(each.b)) > float(str(each.a))] for each in (passes.divergence, scaled))
    if more is not larger:
        return passes.cause
    sentence = f"{passes.cause.sentence}. {more.name} adds up the gradients of these passes"
    return passes.cause._replace(sentence=f"{sentence}: divide each loss by the number of passes")


def _is_factor_of_passes(passes: Divergence, scaled: Divergence) -> bool:
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
    return divergence.stage in STAGES_BEFORE_CLIP


def _by_elimination(points: Sequence[DivergencePoint], joined: Explained) -> dict[Divergence, Sequence[Cause]]:
    result = dict(joined)
    if any(divergence.stage in STAGES for divergence in joined):
        first = next(divergence for divergence in joined if divergence.stage in STAGES)
        points = [point for point in points if point.first.step < first.step + (not _acts_first(first))]
    at = {point.first: point for point in points}
    has_other_eps = False
    for divergence, causes in joined.items():
        # eps changes a coefficient so little that weights cannot jump
        is_jump = divergence.stage == "weight" and (divergence.ulps_at_its_size or 0.0) > GROWTH * ROUNDING
        is_open = is_jump and all(each.kind == OTHER_EPS for each in causes)
        if divergence in at and (is_open or not (causes or has_other_eps)):
            cause = before_clips.by_elimination(at[divergence])
            result[divergence] = (cause, *causes) if cause else causes
        has_other_eps |= any(each.kind == OTHER_EPS for each in causes)
        if not causes or not all(each.kind.startswith("rounding") or each.kind == OTHER_EPS for each in causes):
            break
    return result
