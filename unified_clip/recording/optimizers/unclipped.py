"""Explain optimizer steps without a clip: the clip is missing, runs before the backward pass, or is by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..._display import counted
from ...causes.observation import Cause
from ..call_alignment import clip_text
from ..runs import OptimizerStep, RecordedCall, RecordedRun
from .names import LIBRARIES


def is_empty(call: RecordedCall) -> bool:
    """Return whether a call surely got no gradient, for example because the call came before the backward pass."""
    return call.count == 0 and call.ranks is None and call.error is None


def with_calls(run: RecordedRun, kept: Sequence[bool]) -> RecordedRun:
    """Return the run with only the calls that `kept` selects.

    If an empty call is removed, the next optimizer step counts the call in `empty_clips`.
    """
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


def left_out_clip(
    run: RecordedRun, other: RecordedRun, calls: Sequence[RecordedCall], step: int | None = None
) -> Cause:
    """Return a cause for a missing clip before `step`. If `step` is None, the run never clips."""
    clips = f"{other.name} clips by {' and '.join(dict.fromkeys(map(clip_text, calls)))}"
    if changed := next((each for each in run.optimizer_steps if each.changed), None):
        sentence = (
            f"other code changes {changed.changed} gradients of {run.name} before step {changed.step} of the "
            f"optimizer, as a clip by hand does. {clips}. This report does not compare clips by hand. Use "
            "`unified-clip verify`, which compares them, or replace this code by a function of unified_clip"
        )
        return Cause("clip by hand", sentence)
    steps = [each for each in run.optimizer_steps if step in (None, each.step)]
    if early := [each for each in steps if each.empty_clips]:
        sentence = (
            f"{run.name} makes a clip call before step {early[0].step} of the optimizer, but all gradients are None. "
            f"The call might come before backward() or after zero_grad(). {clips}. Put the clip of {run.name} between "
            "backward() and optimizer.step()"
        )
    elif step is not None:
        sentence = f"the optimizer of {run.name} makes step {step} without a clip call. Before this step, {clips}"
    else:
        sentence = (
            f"{run.name} never clips: its {counted(len(steps), 'step')} of optimizers have no clip call. "
            f"{clips}. Add this clip to {run.name}, between the backward pass and the step, or remove it from "
            f"{other.name}"
        )
        if not are_without_clips(steps):
            sentence += (
                f". If {run.name} clips by its own code, which is not recorded, use `unified-clip verify`, which "
                "compares the updates"
            )
    return Cause("left-out clip", sentence)


def are_without_clips(steps: Sequence[OptimizerStep]) -> bool:
    """Return whether the optimizers surely use unclipped gradients in all of these steps."""
    changes = {step.changed for step in steps} - {None}
    return changes == {0} and all(step.optimizer.startswith(LIBRARIES) for step in steps)
