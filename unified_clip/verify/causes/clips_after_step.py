"""Find a training step that clips after the optimizer's step."""

from __future__ import annotations

from collections.abc import Sequence

from ...causes.cause import Cause
from ...recording.causes.before_clips import names_text
from ..normalize import NormalizedRecording
from ..step_comparison import StepComparison


def late_clip(row: StepComparison, recordings: Sequence[NormalizedRecording]) -> Cause | None:
    """Return a cause if an optimizer makes a step before its gradients are clipped."""
    sides = []
    for recording in recordings:
        start = sum(step < row.step for step in recording.recorded_steps)
        steps = recording.optimizer_steps_at(row.step)
        late = [place for place, each in enumerate(steps, start=1) if each.calls - start < place]
        sides.append((recording, recording.recorded_steps.count(row.step), late, len(steps)))
    (old, old_calls, old_late, old_steps), (new, new_calls, new_late, new_steps) = sides
    if old_calls != new_calls or old_steps != new_steps or old_calls < old_steps or bool(old_late) == bool(new_late):
        return None
    recording, late, other = (old, old_late, new) if old_late else (new, new_late, old)
    calls = recording.calls.get(row.step, [])
    names = list(calls[late[0] - 1].parameters) if len(calls) == old_calls else []
    return Cause(
        "clipping after the step",
        f"at step {row.step}, {recording.run.script} makes only {late[0] - 1} of its {old_calls} clip calls before "
        f"optimizer step {late[0]}, so this optimizer step uses unclipped gradients"
        f"{f' of {names_text(names)}' if names else ''}. {other.run.script} clips first",
    )
