"""Join the steps of each training iteration, if only one of two runs has several optimizers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ..recorded_run import OptimizerStep, RecordedRun
from .clips_after_step import is_late
from .step_alignment import Iteration, clipped_size, is_clipped_first, iteration_sizes, iterations_of


def join_steps(a: RecordedRun, b: RecordedRun) -> tuple[RecordedRun, RecordedRun]:
    """Join the optimizer steps of each training iteration into one step. Runs whose steps can all be paired stay
    unchanged."""
    if not (a.optimizer_steps and b.optimizer_steps) or is_late(a) or is_late(b):
        return a, b
    sizes = iteration_sizes(a, b)
    both = [list(iterations_of(run, size)) for run, size in zip((a, b), sizes, strict=True)]
    if sizes == (1, 1) or not all(map(is_clipped_first, itertools.chain(*both))):
        return a, b
    if sizes[0] == sizes[1] and not any(itertools.starmap(_are_clipped_together, zip(*both, strict=False))):
        return a, b
    return _joined(a, both[0]), _joined(b, both[1])


def _are_clipped_together(left: Iteration, right: Iteration) -> bool:
    """Return whether a clip call of an iteration clips gradients of several optimizers."""
    counts = [len(lines) for _, lines in (left, right)]
    if max(counts) < len(left[0]) and min(counts):
        return True
    return counts[0] != counts[1] and clipped_size(left) == clipped_size(right)


def _joined(run: RecordedRun, iterations: Sequence[Iteration]) -> RecordedRun:
    count, done = len(run.optimizer_steps), len(iterations)
    is_numbered = [step.step for step in run.optimizer_steps] == list(range(1, count + 1))
    steps: list[OptimizerStep] = []
    numbers: dict[int, int] = {}
    for index, (parts, _) in enumerate(iterations, start=1):
        number = index if is_numbered else parts[0].step
        numbers |= {part.step: number for part in parts}
        steps.append(_join(parts).model_copy(update={"step": number}))
    after = done - count if is_numbered else 0
    lines = [line.model_copy(update={"step": numbers.get(line.step, line.step + after)}) for line in run.lines]
    return run.model_copy(update={"lines": lines, "optimizer_steps": tuple(steps)})


def _join(steps: Sequence[OptimizerStep]) -> OptimizerStep:
    """Join the steps of several optimizers into one step, as if they were parameter groups of one optimizer."""
    if len(steps) == 1:
        return steps[0]
    names = [name for name in steps[0].settings if all(name in step.settings for step in steps)]
    changed = [step.changed for step in steps if step.changed is not None]
    rows = [step.repeated_rows for step in steps if step.repeated_rows is not None]
    changes: dict[str, Any] = {
        "optimizer": " and ".join(dict.fromkeys(step.optimizer for step in steps)),
        "settings": {name: _of_steps([step.settings[name] for step in steps]) for name in names},
        "cleared": None,
        "changed": sum(changed) if changed else None,
        "decayed": None,
        "undecayed": (),
        "empty_clips": sum(step.empty_clips for step in steps),
        "repeated_rows": sum(rows) if rows else None,
        "losses": tuple(loss for step in steps for loss in step.losses),
        "calls": steps[-1].calls,
    }
    return steps[0].model_copy(update=changes)


def _of_steps(values: Sequence[Any]) -> Any:
    if all(value == values[0] for value in values):
        return values[0]
    return tuple(each for value in values for each in (value if isinstance(value, tuple) else (value,)))
