"""Compare the learning rate schedules of two runs."""

from __future__ import annotations

import itertools

from ...causes.cause import Cause
from ..divergence import Divergence, StepDifference
from ..recorded_run import RecordedRun
from .settings import TINY, same_setting


def rounding_of_rates(a: RecordedRun, b: RecordedRun) -> float:
    """Return the rounding error of the largest learning rate, from which a schedule can subtract."""
    rates = [step.settings.get("lr", 0.0) for run in (a, b) for step in run.optimizer_steps]
    numbers = [abs(rate) for rate in rates if not isinstance(rate, tuple)]
    return max(TINY, 2.0**-22 * max(numbers)) if numbers and len(numbers) == len(rates) else TINY


def rate_shift(a: RecordedRun, b: RecordedRun, rounding: float) -> StepDifference | None:
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
            return StepDifference(
                Divergence(a.optimizer_steps[first].step, "learning rate", of_a[first], of_b[first]), cause
            )
    return None
