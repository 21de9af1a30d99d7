"""Number the optimizer steps of two recordings, and give each clip call the number of its step."""

from __future__ import annotations

import itertools

from ..recorded_run import RecordedCall, RecordedRun
from .clips_after_step import is_late
from .clips_of_step import is_empty, with_calls


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
    """Remove the optimizer steps of a recording that contains only the first steps. This happens with
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

    In a run that clips late, each call gets the number of the previous step.
    """
    offset, done, lines = 0 if is_late(run) else 1, 0, []
    for index, line in enumerate(run.lines):
        while done < len(run.optimizer_steps) and run.optimizer_steps[done].calls <= index:
            done += 1
        lines.append(line.model_copy(update={"step": done + offset}))
    steps = [each.model_copy(update={"step": number}) for number, each in enumerate(run.optimizer_steps, start=1)]
    return run.model_copy(update={"lines": lines, "optimizer_steps": tuple(steps)})
