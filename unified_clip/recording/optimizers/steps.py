"""Compare the steps of optimizers in two recordings: the settings of each step, and the calls between steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ...causes.observation import Cause
from ..divergence import Divergence, Stage
from ..pairing import Names, calls_by_step
from ..rounding import same
from ..runs import OptimizerStep, RecordedCall, RecordedRun, Setting
from .epsilon import EQUAL, compare_places, places_differ, setting_text, tolerance_of
from .names import LIBRARIES
from .unclipped import is_empty, left_out_clip, with_calls
from .update_rules import are_one_kind, compare_momentum, compare_rows, decay_clauses, undecayed_text

STAGES: tuple[Stage, ...] = ("steps", "gradients cleared", "backward passes", "clips", "learning rate", "optimizer")

TINY = 1e-20
"""Settings up to this size are treated as 0. A port in PyTorch can need a tiny learning rate instead of 0."""

FASTEST = 64
"""`_pace_text` does not find schedules that are more than FASTEST times as fast."""

MOMENTUM = "rule for momentum"

SETTING_TEXTS = {"eps": "the optimizer's eps"}
"""Maps names of settings to texts. The text of eps names the optimizer, because a clip can also have an eps."""


class StepDifference(NamedTuple):
    divergence: Divergence
    cause: Cause


def number_calls(a: RecordedRun, b: RecordedRun) -> tuple[RecordedRun, RecordedRun]:
    """Number the optimizer steps, and give each clip call the number of its step. Remove calls without gradients.

    If a script sets step numbers, both runs keep their numbers.
    """
    a, b = _without_partial_steps(a), _without_partial_steps(b)
    if not (a.optimizer_steps and b.optimizer_steps):
        return a, b
    if _counts_calls(a) and _counts_calls(b):
        a, b = _numbered(a), _numbered(b)
    a, b = (with_calls(run, [not is_empty(line) for line in run.lines]) for run in (a, b))
    return a, b


def _without_partial_steps(run: RecordedRun) -> RecordedRun:
    """If a recording contains only the first optimizer steps of a run, remove these steps. This happens with
    `torch.compile`."""
    ends = [0, *(step.calls for step in run.optimizer_steps)]
    most = max((later - end for end, later in itertools.pairwise(ends)), default=0)
    is_partial = len(run.lines) - ends[-1] > max(1, most)
    return run.model_copy(update={"optimizer_steps": ()}) if is_partial else run


def _counts_calls(run: RecordedRun) -> bool:
    """Return whether the recorder counted each clip call as a step. This happens if the script sets no steps."""
    steps = [line.step for line in run.lines]
    if not all(later - step in (0, 1) for step, later in zip([0, *steps], steps, strict=False)):
        return False
    pairs = itertools.pairwise(run.lines)
    return all(_are_of_one_call(line, later) for line, later in pairs if line.step == later.step)


def _are_of_one_call(line: RecordedCall, later: RecordedCall) -> bool:
    return not later.watched and (line.call, line.seconds) == (later.call, later.seconds)


def _numbered(run: RecordedRun) -> RecordedRun:
    """Number the steps from 1. Each call gets the number of the next step.

    If the run clips late, each call gets the number of the previous step.
    """
    offset, done, lines = 0 if is_late(run) else 1, 0, []
    for index, line in enumerate(run.lines):
        while done < len(run.optimizer_steps) and run.optimizer_steps[done].calls <= index:
            done += 1
        lines.append(line.model_copy(update={"step": done + offset}))
    steps = [each.model_copy(update={"step": number}) for number, each in enumerate(run.optimizer_steps, start=1)]
    return run.model_copy(update={"lines": lines, "optimizer_steps": tuple(steps)})


def is_late(run: RecordedRun) -> bool:
    """Return whether the run makes each clip after the optimizer step, not before the step."""
    steps = run.optimizer_steps
    count = steps[1].calls if len(steps) > 1 else len(run.lines)
    is_even = all(step.calls == number * count for number, step in enumerate(steps))
    return 0 < count * len(steps) <= len(run.lines) and is_even


def step_differences(a: RecordedRun, b: RecordedRun, names: Names) -> list[StepDifference]:
    """Compare the optimizer steps of two runs. For each kind of cause and each setting, return only the first
    difference.

    If one run uses each learning rate one step later, return this shift instead of the differences between learning
    rates.
    """
    first_of_kind: dict[tuple[str, str], StepDifference] = {}
    if a.optimizer_steps and b.optimizer_steps and is_late(a) != is_late(b):
        late, early = (a, b) if is_late(a) else (b, a)
        sentence = f"{late.name} clips after the optimizer step, and {early.name} clips before the optimizer step"
        counts = (a.optimizer_steps[0].calls, b.optimizer_steps[0].calls)
        first_of_kind["", ""] = StepDifference(
            Divergence(1, "clips", *counts), Cause("clipping after the step", sentence)
        )
    rounding = rounding_of_rates(a, b)
    shift, pace = _rate_shift(a, b, rounding), _pace_text(a, b, rounding)
    clips = [calls_by_step(run) for run in (a, b)]
    differences: list[StepDifference] = []
    pairs = list(zip(a.optimizer_steps, b.optimizer_steps, strict=False))
    passes = [(left.backward_calls, right.backward_calls) for left, right in pairs]
    has_several = any(0 in both for both in passes)  # several optimizers step after one backward pass
    for left, right in pairs:
        if not has_several:
            differences += _clearing(a, b, left, right)
        if all(both == (0, 0) or 0 not in both for both in passes):
            differences += _accumulation(left, right)
        differences += _clips(a, b, (left, right), clips)
        differences += [
            shift if shift and each.divergence.stage == "learning rate" else each
            for each in _differing_settings(left, right, rounding, names, pace)
        ]
    for each in (*differences, *_momentum(a, b)):
        first_of_kind.setdefault((each.cause.kind, each.divergence.parameter or ""), each)
    return list(first_of_kind.values())


def _momentum(a: RecordedRun, b: RecordedRun) -> Iterator[StepDifference]:
    pairs = zip(a.optimizer_steps, b.optimizer_steps, strict=False)
    for (before, _), (left, right) in itertools.pairwise(pairs):
        rates = before.settings.get("lr"), left.settings.get("lr")
        if None in rates or rates[0] == rates[1]:
            continue
        if rules := compare_momentum(left, right):
            yield _difference(left, "optimizer", *rules, MOMENTUM)
            return


def rounding_of_rates(a: RecordedRun, b: RecordedRun) -> float:
    """Return the rounding error of learning rates that a schedule computes in float32.

    A schedule can subtract two large numbers from each other. Therefore, the rounding error depends on the largest
    learning rate.
    """
    rates = [step.settings.get("lr", 0.0) for run in (a, b) for step in run.optimizer_steps]
    numbers = [abs(rate) for rate in rates if not isinstance(rate, tuple)]
    return max(TINY, 2.0**-22 * max(numbers)) if numbers and len(numbers) == len(rates) else TINY


def _rate_shift(a: RecordedRun, b: RecordedRun, rounding: float) -> StepDifference | None:
    passes = {each.backward_calls for run in (a, b) for each in run.optimizer_steps}
    if 0 in passes and any(passes - {None}):
        return None
    rates = [[each.settings.get("lr") for each in run.optimizer_steps] for run in (a, b)]
    of_a, of_b = rates
    both = [(n, x, y) for n, (x, y) in enumerate(zip(of_a, of_b, strict=False)) if x is not None and y is not None]
    differing = [n for n, x, y in both if not same_setting(x, y, rounding=rounding)]
    sides = ((b, a, of_b, of_a), (a, b, of_a, of_b))
    for start, (run, other, early, late) in itertools.product((0, *differing[:1]), sides):
        pairs = zip(early[start:], late[start + 1 :], strict=False)
        known = [(x, y) for x, y in pairs if x is not None and y is not None]
        is_same = all(same_setting(x, y, rounding=rounding) for x, y in known)
        if len({x for x, _ in known}) > 1 and differing and is_same:
            sentence = f"the learning rates of {run.name} are one step ahead of the learning rates of {other.name}"
            if start:
                sentence = (
                    f"from step {a.optimizer_steps[start].step} on, {sentence}. Either {run.name} skips an "
                    "optimizer step, as a loss scaler does after an overflow, or its schedule makes one additional step"
                )
            first, cause = differing[0], Cause("shifted step", sentence)
            return _difference(a.optimizer_steps[first], "learning rate", of_a[first], of_b[first], cause)
    return None


def _pace_text(a: RecordedRun, b: RecordedRun, rounding: float) -> str:
    """Return advice if the learning rate of one run changes 2, 3 or more times as fast as in the other run."""
    if any(step.backward_calls == 0 for run in (a, b) for step in run.optimizer_steps):
        return ""
    for run, other in ((b, a), (a, b)):
        rates, slow = ([step.settings.get("lr", math.nan) for step in each.optimizer_steps] for each in (run, other))
        for pace in range(2, min(FASTEST, len(slow) // 2) + 1):
            for start in range(pace + 1):
                pairs = list(zip(rates, slow[start::pace], strict=False))
                if len({y for _, y in pairs}) > 2 and all(same_setting(x, y, rounding=rounding) for x, y in pairs):
                    return (
                        f". The learning rate of {run.name} changes {pace} times as fast as the learning rate of "
                        f"{other.name}. Compare where the scripts step their schedules: after each batch, optimizer "
                        "step or epoch"
                    )
    return ""


def _clearing(a: RecordedRun, b: RecordedRun, left: OptimizerStep, right: OptimizerStep) -> Iterator[StepDifference]:
    """Yield a difference if only one run clears its gradients. New gradients in each step count as cleared."""
    cleared = _cleared(a, left, b, right), _cleared(b, right, a, left)
    if None not in cleared and cleared[0] != cleared[1]:
        run, other = (a, b) if not cleared[0] else (b, a)
        are_new = None in (left.cleared, right.cleared)
        verb = "computes new gradients at each step"
        sentence = (
            f"{run.name} does not clear the gradients of step {left.step - 1} before the backward pass of step "
            f"{left.step}. {other.name} {verb if are_new else 'clears its gradients, as optimizer.zero_grad() does'}"
        )
        cause = Cause("gradients are not cleared", sentence)
        yield _difference(left, "gradients cleared", *cleared, cause)


def _accumulation(left: OptimizerStep, right: OptimizerStep) -> Iterator[StepDifference]:
    passes = (left.backward_calls, right.backward_calls)
    if None not in passes and passes[0] != passes[1]:
        texts = [f"{count} backward pass{'es' * (count != 1)}" for count in passes]
        sentence = f"{left.run} runs {texts[0]} before the step, {right.run} {texts[1]}"
        yield _difference(left, "backward passes", *passes, Cause("gradient accumulation", sentence))


def _cleared(run: RecordedRun, step: OptimizerStep, other_run: RecordedRun, other: OptimizerStep) -> bool | None:
    """Return whether a run clears its gradients before a step, or None if the answer is unknown.

    If a framework returns new gradients from each backward pass, `backward_calls` is None. New gradients count as
    cleared.
    """
    is_new = step.backward_calls is None and all(line.framework not in ("torch", "paddle") for line in run.lines)
    return True if is_new and other.cleared is False and _has_one_optimizer(other_run) else step.cleared


def _has_one_optimizer(run: RecordedRun) -> bool:
    lines, steps = calls_by_step(run), [step.step for step in run.optimizer_steps]
    lists = {
        frozenset((name, each.shape) for line in lines.get(step, ()) for name, each in line.parameters.items())
        for step in steps
    }
    return len({*steps}) == len(steps) and len(lists) == 1 and frozenset() not in lists


def _clips(
    a: RecordedRun,
    b: RecordedRun,
    steps: Sequence[OptimizerStep],
    clips: Sequence[Mapping[int, Sequence[RecordedCall]]],
) -> Iterator[StepDifference]:
    step = steps[0].step
    old, new = (lines.get(step, ()) for lines in clips)
    if bool(old) != bool(new):
        cause = left_out_clip(*((b, a) if old else (a, b)), old or new, step)
    else:
        more, fewer, last = (old, new, steps[0]) if len(old) > len(new) else (new, old, steps[1])
        if len(more) == len(fewer) or not _is_repeated(more, fewer, last):
            return
        cause = _several(*((a, b) if len(old) > len(new) else (b, a)), (len(old), len(new)), last)
    yield StepDifference(Divergence(step, "clips", len(old), len(new)), cause)


def _is_repeated(lines: Sequence[RecordedCall], other: Sequence[RecordedCall], step: OptimizerStep) -> bool:
    count = len(other)
    pairs = [*zip(lines, itertools.cycle(lines[:count]), strict=False)]
    is_same = all(itertools.starmap(have_equal_shapes, pairs)) and all(
        x.rule == y.rule and same((x.threshold, x.norm_type), (y.threshold, y.norm_type)) for x, y in pairs
    )
    is_named = bool(lines[0].parameters) and not _has_positions(lines[0])
    return is_same and ((is_named and count == 1) or len(lines) == count * (step.backward_calls or 0))


def have_equal_shapes(a: RecordedCall, b: RecordedCall) -> bool:
    shapes = [sorted(str(each.shape) for each in call.parameters.values()) for call in (a, b)]
    is_same = a.parameters.keys() == b.parameters.keys() or _has_positions(a) or _has_positions(b)
    return a.count == b.count and shapes[0] == shapes[1] and is_same


def _has_positions(call: RecordedCall) -> bool:
    """Return whether a call has a position such as "0" in place of a gradient's name. In recordings of `verify`, words
    can follow the position.
    """
    return any(name.partition(" ")[0].isdecimal() for name in call.parameters)


def _several(run: RecordedRun, other: RecordedRun, counts: tuple[int, int], last: OptimizerStep) -> Cause:
    most, least = max(counts), min(counts)
    sentence = (
        f"before step {last.step} of the optimizer, {run.name} clips the same gradients {most} times. {other.name} "
        f"clips them {least} time{'s' * (least != 1)}. "
    )
    if last.backward_calls is not None and last.backward_calls <= 1:
        advice = (
            f"If this is on purpose, make the same clip calls in {other.name}, in the same order. Otherwise, remove "
            f"the repeated calls of {run.name}"
        )
    else:
        advice = (
            "With gradient accumulation, clip once, after the backward pass of the last micro-batch: put the clip call "
            "directly before optimizer.step(), outside the loop over micro-batches"
        )
    return Cause("several clips before a step", f"{sentence}{advice}")


def _differing_settings(
    left: OptimizerStep, right: OptimizerStep, rounding: float, names: Names, pace: str
) -> Iterator[StepDifference]:
    differs, is_one_kind = f"{right.run} differs from {left.run} as with", are_one_kind(left, right)
    is_moved = is_one_kind and places_differ(left, right)
    for name in {**left.settings, **right.settings}:
        old, new = (_setting(step, name) for step in (left, right))
        tolerance, error = (tolerance_of(left, right), rounding) if name == "lr" else (EQUAL, TINY)
        if (
            old is None
            or new is None
            or (name == "eps" and is_moved)
            or same_setting(old, new, tolerance, is_ordered=name == "betas", rounding=error)
        ):
            continue
        values = f"{setting_text(new)} instead of {setting_text(old)}"
        if name != "betas" and isinstance(old, tuple) != isinstance(new, tuple):
            values += ", each for some of the parameters"
        if name == "lr":
            sentence = f"{differs} a learning rate of {values}{pace}"
            yield _difference(left, "learning rate", old, new, Cause("another learning rate", sentence))
        elif is_one_kind:
            sentence = f"{differs} {SETTING_TEXTS.get(name, name)} {values}"
            sentence += undecayed_text(left, right, names) if name == "weight_decay" else ""
            yield _difference(left, "optimizer", old, new, Cause("another optimizer", sentence), name)
    counts = [step.decayed or (0, 0) for step in (left, right)]
    if is_one_kind and counts[0][1] == counts[1][1] and counts[0][0] != counts[1][0]:
        values = f"{counts[1][0]} of {counts[1][1]} elements instead of {counts[0][0]}"
        advice = undecayed_text(left, right, names) or ". Compare which parameters have weight decay"
        sentence = f"{differs} weight decay of {values}{advice}"
        cause = Cause("another optimizer", sentence)
        yield _difference(left, "optimizer", counts[0][0], counts[1][0], cause, "number of elements with weight decay")
    if rows := compare_rows(left, right):
        yield _difference(left, "optimizer", *rows, "rule for repeated rows")
    if clauses := decay_clauses(left, right) if is_one_kind else ("", ""):
        sentence = f"{left.run} uses the optimizer {left.optimizer}{clauses[0]}, and "
        sentence += f"{right.run} uses {right.optimizer}{clauses[1]}"
        yield _difference(left, "optimizer", left.optimizer, right.optimizer, Cause("another optimizer", sentence))
    # The place of eps comes last, because its effect is often the smallest.
    if is_moved and (effects := compare_places(left, right)):
        yield _difference(left, "optimizer", *effects, "effective eps")


def _setting(step: OptimizerStep, name: str) -> Setting | None:
    # Only PyTorch has dampening, so it is 0 in other frameworks.
    is_without = name == "dampening" and step.optimizer.startswith(LIBRARIES)
    return step.settings.get(name, 0.0 if is_without else None)


def _difference(
    step: OptimizerStep, stage: Stage, a: object, b: object, cause: Cause, setting: str | None = None
) -> StepDifference:
    return StepDifference(Divergence(step.step, stage, a, b, setting), cause)


def same_setting(
    a: Setting, b: Setting, tolerance: float = EQUAL, *, is_ordered: bool = False, rounding: float = TINY
) -> bool:
    """Return whether two settings are equal, up to a relative `tolerance` or an absolute `rounding`.

    Unless `is_ordered` is True, the order of the parameter groups is ignored.
    """
    sides = [each if isinstance(each, tuple) else (each,) for each in (a, b)]
    left, right = sides if is_ordered else [sorted({*each}) for each in sides]
    pairs = zip(left, right, strict=False)
    return len(left) == len(right) and all(math.isclose(x, y, rel_tol=tolerance, abs_tol=rounding) for x, y in pairs)
