"""Compare the backward passes before an optimizer step."""

from __future__ import annotations

from collections.abc import Iterator

from ...causes.cause import Cause
from ..divergence import Divergence, StepDifference
from ..recorded_run import OptimizerStep, RecordedRun


def compare_clearing(
    a: RecordedRun, b: RecordedRun, left: OptimizerStep, right: OptimizerStep
) -> Iterator[StepDifference]:
    cleared = _cleared(a, left, right), _cleared(b, right, left)
    if None not in cleared and cleared[0] != cleared[1]:
        run, other = (a, b) if not cleared[0] else (b, a)
        are_new = None in (left.cleared, right.cleared)
        sentence = (
            f"{run.name} does not clear the gradients of step {left.step - 1} before the backward pass of step "
            f"{left.step}. {other.name} "
        )
        sentence += "computes new gradients at each step" if are_new else "clears them, as optimizer.zero_grad() does"
        cause = Cause("gradients are not cleared", sentence)
        yield StepDifference(Divergence(left.step, "gradients cleared", *cleared), cause)


def compare_accumulation(left: OptimizerStep, right: OptimizerStep) -> Iterator[StepDifference]:
    passes = (left.backward_calls, right.backward_calls)
    if None not in passes and passes[0] != passes[1]:
        texts = [f"{count} backward pass{'es' * (count != 1)}" for count in passes]
        sentence = f"{left.run} runs {texts[0]} before the step, and {right.run} runs {texts[1]}"
        cause = Cause("gradient accumulation", sentence)
        yield StepDifference(Divergence(left.step, "backward passes", *passes), cause)


def _cleared(run: RecordedRun, step: OptimizerStep, other: OptimizerStep) -> bool | None:
    """Frameworks other than PyTorch and Paddle compute new gradients in each backward pass. Return None if unknown."""
    is_new = step.backward_calls is None and all(line.framework not in ("torch", "paddle") for line in run.lines)
    return True if is_new and other.cleared is False else step.cleared
