"""Compare the yielded gradients of a training step with the results of its clip calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ...causes.cause import Cause, names_text
from ...recording.compare import RecordingComparison
from ...recording.rounding import ROUNDING
from ...tensors.arithmetic import Float64s
from ..cause_limits import RELATIVE_TOLERANCE
from ..normalize import NormalizedRecording
from ..step_comparison import StepComparison
from ..step_pairing import tensor_distance

ClippedAndYielded = Mapping[str, tuple[Float64s, Float64s]]
"""{parameter: (result of the clip, yielded gradient)}."""


def changed_after_clip(row: StepComparison, recordings: Sequence[NormalizedRecording], steps: int) -> Cause | None:
    for recording in recordings:
        tensors = _clipped_and_yielded(recording, row.step, steps)
        if changed := [name for name, values in tensors.items() if tensor_distance(*values, 0.0).ulps > ROUNDING]:
            factor = _factor(tensors)
            sizes = f", and multiplies all of them by {factor:.6g}" if factor else ""
            return Cause(
                "the clip does not reach the step",
                f"at step {row.step}, {recording.run.script} yields gradients that differ from the results of its "
                f"clip calls: {names_text(changed)}. Other code changes these gradients after the clip{sizes}",
            )
    return None


def unscaled_after_clip(
    clips: RecordingComparison, rows: Sequence[StepComparison], recordings: Sequence[NormalizedRecording]
) -> Cause | None:
    """Find out whether a script divides scaled gradients after the clip instead of before it."""
    causes = clips.divergences.items()
    step = next((each.step for each, of in causes if any(cause.kind == "scaled gradients" for cause in of)), None)
    row = next((row for row in rows if row.step == step), None)
    if row is None:
        return None
    norms = [math.hypot(*(norm for line in lines for norm in line.norms())) for lines in (row.old, row.new)]
    large, small = (0, 1) if norms[0] > norms[1] else (1, 0)
    factor = _factor(_clipped_and_yielded(recordings[large], row.step, len(rows)))
    if not factor or not norms[small]:
        return None
    scale = norms[large] / norms[small]
    if scale < 1 + 10 * RELATIVE_TOLERANCE or not math.isclose(scale * factor, 1, rel_tol=RELATIVE_TOLERANCE):
        return None
    script, other = (recordings[side].run.script for side in (large, small))
    return Cause(
        "clipping before unscaling",
        f"at step {row.step}, {script} clips gradients that are {scale:.6g} times as large as the gradients of "
        f"{other}, and divides the gradients by {scale:.6g} after the clip. Divide the gradients before the clip",
    )


def _clipped_and_yielded(recording: NormalizedRecording, step: int, steps: int) -> ClippedAndYielded:
    output = recording.run.output_at(step, steps)
    gradients = (output.gradients if output else None) or {}
    results = recording.clipped.get(step, {}) if step not in recording.unclipped else {}
    both = {name: (each.values(), gradients[name].values()) for name, each in results.items() if name in gradients}
    return {name: values for name, values in both.items() if values[0].shape == values[1].shape}


def _factor(tensors: ClippedAndYielded) -> float | None:
    """Return the factor between the results of the clip and all yielded gradients."""
    sides = [
        np.concatenate([np.ravel(values[side]) for values in tensors.values()] or [np.zeros(0)]) for side in (0, 1)
    ]
    clipped, yielded = sides
    if not clipped.any() or not np.isfinite(sides).all():
        return None
    factor = float(clipped @ yielded / (clipped @ clipped))
    off = float(np.abs(yielded - factor * clipped).max())
    return factor if off <= RELATIVE_TOLERANCE * float(np.abs(yielded).max()) else None
