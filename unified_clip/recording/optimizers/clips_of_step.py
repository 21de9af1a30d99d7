"""Compare the clips of an optimizer step, and find missing and repeated clips."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from ..._kit.display import counted
from ...causes.cause import Cause
from ..divergence import Divergence, StepDifference
from ..pairs.calls import clip_text
from ..recorded_run import OptimizerStep, RecordedCall, RecordedRun
from ..rounding import same
from .clips_after_step import late_clip_of_step
from .names import LIBRARIES


def is_empty(call: RecordedCall) -> bool:
    """Return whether a call got no gradient, for example before the backward pass."""
    return call.count == 0 and call.ranks is None and call.error is None


def with_calls(run: RecordedRun, kept: Sequence[bool]) -> RecordedRun:
    """Keep only the calls that are True in `kept`. Add the number of removed calls that got no gradient
    to `empty_clips` of their optimizer step."""
    if all(kept):
        return run
    before = [0, *itertools.accumulate(kept)]
    empty = [0, *itertools.accumulate(map(is_empty, run.lines))]
    steps, last = [], 0
    for step in run.optimizer_steps:
        calls = min(step.calls, len(kept))
        count = step.empty_clips + empty[calls] - empty[last]
        steps.append(step.model_copy(update={"calls": before[calls], "empty_clips": count}))
        last = calls
    lines = list(itertools.compress(run.lines, kept))
    return run.model_copy(update={"lines": lines, "optimizer_steps": tuple(steps)})


EMPTY: Mapping[str | None, tuple[str, str]] = {
    "no parameters": (
        "passes no parameters. An iterator such as model.parameters() has no items left after its first use",
        "Pass model.parameters() to each clip call, or a list of the parameters",
    ),
    "other parameters": (
        "the gradients of all passed parameters are None, but the parameters of the optimizer have gradients",
        "Pass the parameters of the optimizer to the clip call",
    ),
    None: (
        "all gradients are None. The call might come before backward() or after zero_grad(), or might pass the "
        "parameters of another network",
        "Put the clip between backward() and optimizer.step(), and pass the parameters of this optimizer",
    ),
}
"""{value of `empty_because`: (problem, advice)}."""


def changes_by_hand(run: RecordedRun) -> str:
    clipped = {line.step for line in run.lines}
    are_for_logs = any(step.hooks and step.step in clipped for step in run.optimizer_steps)
    for step in run.optimizer_steps:
        place = f"before step {step.step} of the optimizer"
        if step.changed:
            return (
                f"{place}, {run.name} changes {counted(step.changed, 'gradient')} outside of the recorded calls, as a "
                "clip by hand does"
            )
        if step.hooks and not are_for_logs:
            return (
                f"{place}, {counted(step.hooks, 'parameter')} of {run.name} had hooks of Tensor.register_hook, which "
                "can clip gradients"
            )
    return ""


def left_out_clip(
    run: RecordedRun, other: RecordedRun, calls: Sequence[RecordedCall], step: int | None = None
) -> Cause:
    """Return the cause if only `other` makes the clip calls in `calls`. If `step` is None, `run` never clips."""
    clips = f"{other.name} clips with {' and '.join(dict.fromkeys(map(clip_text, calls)))}"
    if changes := changes_by_hand(run):
        sentence = (
            f"{changes}. {clips}. Only recorded clip calls are compared. Use `unified-clip verify`, which "
            "compares the updates, or replace the clip by a function of unified_clip"
        )
        return Cause("clip by hand", sentence)
    steps = [each for each in run.optimizer_steps if step in (None, each.step)]
    if early := [each for each in steps if each.empty_clips]:
        is_used_up = any("empty or used up" in warning for warning in run.warnings)
        problem, advice = EMPTY["no parameters" if is_used_up else early[0].empty_because]
        place = f"before step {early[0].step} of the optimizer"
        sentence = f"{run.name} makes a clip call {place}, but {problem}. {clips}. {advice}"
    elif step is not None:
        sentence = (
            f"the optimizer of {run.name} makes step {step} without a clip call. Before this step, {clips}. Clip in "
            "both runs, or in neither run"
        )
    else:
        sentence = (
            f"{run.name} never clips: its {counted(len(steps), 'optimizer step')} have no clip call. "
            f"{clips}. Add this clip to {run.name}, between the backward pass and the step, or remove this clip "
            f"from {other.name}"
        )
        if not are_without_clips(steps):
            sentence += (
                f". If {run.name} clips by its own code, which is not recorded, use `unified-clip verify`, which "
                "compares the updates"
            )
    return Cause("left-out clip", sentence)


def are_without_clips(steps: Sequence[OptimizerStep]) -> bool:
    changes = {step.changed for step in steps} - {None}
    return (
        changes == {0}
        and not any(step.hooks for step in steps)
        and all(step.optimizer.startswith(LIBRARIES) for step in steps)
    )


def compare_clips(
    a: RecordedRun,
    b: RecordedRun,
    steps: Sequence[OptimizerStep],
    clips: Sequence[Mapping[int, Sequence[RecordedCall]]],
) -> Iterator[StepDifference]:
    step = steps[0].step
    old, new = (lines.get(step, ()) for lines in clips)
    if bool(old) != bool(new):
        runs, calls = ((b, a), clips[::-1]) if old else ((a, b), clips)
        cause = late_clip_of_step(*runs, step, calls) or left_out_clip(*runs, old or new, step)
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
    """Return whether a gradient has a position such as "0" instead of a name."""
    return any(name.partition(" ")[0].isdecimal() for name in call.parameters)


def _several(run: RecordedRun, other: RecordedRun, counts: tuple[int, int], last: OptimizerStep) -> Cause:
    most, least = max(counts), min(counts)
    sentence = (
        f"before step {last.step} of the optimizer, {run.name} clips the same gradients {counted(most, 'time')}. "
        f"{other.name} clips these gradients {counted(least, 'time')}"
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
    return Cause("several clips before a step", f"{sentence}. {advice}")
