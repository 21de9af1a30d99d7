"""Find optimizer steps that only one run makes, for example because a loss scaler skips a step."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from statistics import mode

from ..._kit.display import counted
from ...causes.cause import Cause
from ..divergence import Divergence, StepDifference
from ..pairs.calls import calls_by_step
from ..recorded_run import OptimizerStep, RecordedCall, RecordedRun
from .clips_after_step import is_late
from .clips_of_step import have_equal_shapes, with_calls
from .rate_schedules import rounding_of_rates
from .settings import same_setting

Skips = dict[int, int]
"""{optimizer step: number of skipped training iterations directly before it}."""

SAME = 1e-3
"""Norms with a relative difference of up to SAME can be norms of the same gradients."""


def align_skipped(a: RecordedRun, b: RecordedRun) -> tuple[RecordedRun, RecordedRun, list[StepDifference]]:
    """Remove the training iterations in which only one run makes a step."""
    a, b = _without_common_skips(a, b)
    b, a = _without_common_skips(b, a)
    left, right = _by_iteration(a, b), _by_iteration(b, a)
    numbers = [[step.step for step in run.optimizer_steps] for run in (left, right)]
    if not all(numbers):
        return a, b, []
    is_numbered = left is not a or right is not b
    first = 1 if is_numbered else max(map(min, numbers))
    last = min(map(max, numbers))
    own, other = ({number for number in each if first <= number <= last} for each in numbers)
    if own == other or len(own ^ other) > len(own & other):
        return a, b, []
    differences = [
        _difference(run, other_run, sorted(skipped), counts)
        for run, other_run, skipped, counts in ((left, right, other - own, (0, 1)), (right, left, own - other, (1, 0)))
        if skipped
    ]
    return without_steps(left, own ^ other), without_steps(right, own ^ other), differences


def _difference(
    run: RecordedRun, other: RecordedRun, skipped: Sequence[int], counts: tuple[int, int]
) -> StepDifference:
    step, more = skipped[0], len(skipped) - 1
    sentence = f"{other.name} makes step {step} of the optimizer, and {run.name} skips this step"
    if more:
        sentence += f" and {counted(more, 'later step')}"
    if bad := _bad_norms(run, step):
        sentence += (
            f". The gradients of {run.name} are not finite at this step (norm {bad[0]}), so a loss scaler skips the "
            "step"
        )
    elif (bad := _bad_norms(other, step)) and not any(line.step == step for line in run.lines):
        sentence += (
            f". The gradients of {other.name} are not finite at this step (norm {bad[0]}). Either "
            f"optax.apply_if_finite skips the step and the clip, or {run.name} ends {counted(more + 1, 'step')} earlier"
        )
    advice = (
        "Later steps are compared if they belong to the same training iteration. Skip the same steps in both runs, or "
        "skip no steps. A lower initial loss scale avoids overflows"
    )
    return StepDifference(Divergence(step, "steps", *counts), Cause("skipped step", f"{sentence}. {advice}"))


def _bad_norms(run: RecordedRun, step: int) -> list[float]:
    lines = (line for line in run.lines if line.step == step)
    return [norm for line in lines for norm in line.known_norms() if not math.isfinite(norm)]


def without_steps(run: RecordedRun, numbers: Container[int]) -> RecordedRun:
    run = with_calls(run, [line.step not in numbers for line in run.lines])
    steps = tuple(each for each in run.optimizer_steps if each.step not in numbers)
    return run.model_copy(update={"optimizer_steps": steps})


def _by_iteration(run: RecordedRun, other: RecordedRun) -> RecordedRun:
    numbers = [step.step for step in run.optimizer_steps]
    if numbers != list(range(1, len(numbers) + 1)) or is_late(run) or is_late(other):
        return run
    skips = dict(_after_bad_gradients(run)) or _skips_without_calls(run, other)
    if not skips:
        skips = dict(_after_more_passes(run))
        numbered = _numbered(run, skips)
        is_count = len(run.optimizer_steps) + sum(skips.values()) == len(other.optimizer_steps)
        if not (is_count or (have_same_rates(numbered, other) and not have_same_rates(run, other))):
            return run
    return _numbered(run, skips) if skips else run


def have_same_rates(a: RecordedRun, b: RecordedRun) -> bool:
    rates = [
        {step.step: step.settings["lr"] for step in run.optimizer_steps if "lr" in step.settings} for run in (a, b)
    ]
    both = [(rates[0][step], rates[1][step]) for step in rates[0].keys() & rates[1].keys()]
    return all(same_setting(*each, rounding=rounding_of_rates(a, b)) for each in both)


def _after_bad_gradients(run: RecordedRun) -> Iterator[tuple[int, int]]:
    """Yield (step, number of skipped iterations before it)."""
    passes = {step.step: step.backward_calls for step in run.optimizer_steps}
    for step, lines in calls_by_step(run).items():
        bad = list(itertools.takewhile(_is_bad, lines))
        good = lines[len(bad) :]
        count = len(bad) // max(1, len(good))
        are_alike = all(map(have_equal_shapes, bad, itertools.cycle(good))) if good else False
        if (
            count
            and are_alike
            and not len(bad) % len(good)
            and step in passes
            and not (passes[step] or 0) % (count + 1)
        ):
            yield step, count


def _skips_without_calls(run: RecordedRun, other: RecordedRun) -> Skips:
    """Find the skips of optax.apply_if_finite, which skips the step and the clip call if gradients are not finite."""
    missing = len(other.optimizer_steps) - len(run.optimizer_steps)
    is_known = any(step.backward_calls is not None for step in run.optimizer_steps)
    by_step = calls_by_step(other)
    steps = [each.step for each in other.optimizer_steps]
    bad = [step for step in steps if step in by_step and all(map(_is_bad, by_step[step]))][: max(0, missing)]
    if is_known or len(bad) < missing or any(map(_is_bad, run.lines)):
        return {}
    return dict(Counter(step - place for place, step in enumerate(bad)))


def _without_common_skips(run: RecordedRun, other: RecordedRun) -> tuple[RecordedRun, RecordedRun]:
    """If both runs skip the same iterations, remove the clip calls of `run` in these iterations."""
    skips = {} if is_late(run) or is_late(other) else dict(_after_bad_gradients(run))
    skips_of_other = dict(_after_more_passes(other))
    are_as_many = len(run.optimizer_steps) == len(other.optimizer_steps)
    if not skips or not are_as_many or skips_of_other not in ({}, skips):
        return run, other
    norms, others = (
        [norm for line in lines if line.step in skips for norm in line.known_norms()]
        for lines in ([line for line in run.lines if not _is_bad(line)], other.lines)
    )
    pairs = zip(norms, others, strict=False)
    if not norms or len(norms) != len(others) or not all(math.isclose(*pair, rel_tol=SAME) for pair in pairs):
        return run, other
    kept = [not (line.step in skips and _is_bad(line)) for line in run.lines]
    run = with_calls(run, kept)
    steps, other_steps = (
        tuple(_without_skipped_passes(step, counts.get(step.step, 0)) for step in each.optimizer_steps)
        for each, counts in ((run, skips), (other, skips_of_other))
    )
    return (
        run.model_copy(update={"optimizer_steps": steps}),
        other.model_copy(update={"optimizer_steps": other_steps}),
    )


def _is_bad(line: RecordedCall) -> bool:
    return not all(map(math.isfinite, line.known_norms()))


def _after_more_passes(run: RecordedRun) -> Iterator[tuple[int, int]]:
    passes = {step.step: step.backward_calls for step in run.optimizer_steps if step.backward_calls}
    usual = mode(passes.values()) if len(passes) == len(run.optimizer_steps) > 0 else 0
    for step, count in passes.items():
        if usual and count > usual and not count % usual:
            yield step, count // usual - 1


def _numbered(run: RecordedRun, skips: Skips) -> RecordedRun:
    done, steps, lines = 0, [], []
    by_step = calls_by_step(run)
    for step in run.optimizer_steps:
        count = skips.get(step.step, 0)
        done += count
        own = by_step.pop(step.step, [])
        size = max(1, len(own) // (count + 1)) if any(map(_is_bad, own)) else max(1, len(own))
        first = step.step + done - (count if size < len(own) else 0)
        lines += [line.model_copy(update={"step": first + place // size}) for place, line in enumerate(own)]
        steps.append(_without_skipped_passes(step, count).model_copy(update={"step": step.step + done}))
    lines += [line.model_copy(update={"step": line.step + done}) for rest in by_step.values() for line in rest]
    return run.model_copy(update={"lines": lines, "optimizer_steps": tuple(steps)})


def _without_skipped_passes(step: OptimizerStep, count: int) -> OptimizerStep:
    passes, losses = step.backward_calls, step.losses
    return step.model_copy(update={
        "backward_calls": passes and passes // (count + 1),
        "losses": losses[len(losses) - len(losses) // (count + 1) :],
    })  # fmt: skip
