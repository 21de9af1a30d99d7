"""Compare the optimizer steps of two recordings."""

from __future__ import annotations

from ..divergence import Stage, StepDifference
from ..pairs.calls import calls_by_step
from ..pairs.parameters import Names
from ..recorded_run import RecordedRun
from .backward_passes import compare_accumulation, compare_clearing
from .clips_after_step import late_clips
from .clips_of_step import compare_clips
from .rate_schedules import rate_shift, rounding_of_rates
from .settings import compare_changed_rates, compare_settings

STAGES: tuple[Stage, ...] = ("steps", "gradients cleared", "backward passes", "clips", "learning rate", "optimizer")


def step_differences(a: RecordedRun, b: RecordedRun, names: Names) -> list[StepDifference]:
    first_of_kind: dict[tuple[str, str], StepDifference] = {}
    if late := late_clips(a, b):
        first_of_kind["clipping after the step", ""] = late
    rounding = rounding_of_rates(a, b)
    shift = rate_shift(a, b, rounding)
    clips = [calls_by_step(run) for run in (a, b)]
    differences: list[StepDifference] = []
    pairs = list(zip(a.optimizer_steps, b.optimizer_steps, strict=False))
    passes = [(left.backward_calls, right.backward_calls) for left, right in pairs]
    for left, right in pairs:
        differences += compare_clearing(a, b, left, right)
        if all(both == (0, 0) or 0 not in both for both in passes):
            differences += compare_accumulation(left, right)
        differences += compare_clips(a, b, (left, right), clips)
        differences += [
            shift if shift and each.divergence.stage == "learning rate" else each
            for each in compare_settings(left, right, rounding, names)
        ]
    for each in (*differences, *compare_changed_rates(a, b)):
        if each.cause.kind == "left-out clip" and ("clipping after the step", "") in first_of_kind:
            continue  # late clips change the training, and so the number of later clips
        first_of_kind.setdefault((each.cause.kind, each.divergence.parameter or ""), each)
    return list(first_of_kind.values())
