"""Find optimizer steps that change no weight whose gradient was clipped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...causes.cause import Cause
from ..divergence import Divergence, StepDifference, numbers
from ..pairs.calls import CallPair, greatest_setting
from ..recorded_run import RecordedCall, RecordedRun
from ..rounding import PRODUCT, distance

MOST_NETWORKS = 6
"""The largest number of earlier calls with which a call is compared."""


SAME = 0.01
"""Two runs can have the same weights if the norms differ by at most this fraction."""


def unmoved_weights(a: RecordedRun, b: RecordedRun, pairs: Sequence[CallPair]) -> Iterator[StepDifference]:
    """Yield the first step that changes the weights in only one run."""
    earlier: dict[str, list[CallPair]] = {}
    for pair in pairs:
        key = str([(name, each.shape) for name, each in pair.a.parameters.items()])
        for before in earlier.get(key, [])[-MOST_NETWORKS:]:
            moved = _moved(before, pair)
            are_same = all(distance(a, b).relative <= SAME for _, a, b in numbers(before, "weight"))
            if not all(moved) and any(moved) and are_same and before.a.step < pair.a.step:
                runs, call = ((a, b), before.a) if not moved[0] else ((b, a), before.b)
                if _has_update(runs[0], call):
                    sentence = (
                        f"{runs[0].name} clips the gradients of {len(call.parameters)} weights before step "
                        f"{call.step}, but the step changes none of these weights. {runs[1].name} changes them. Call "
                        "step() of the optimizer that has these parameters, not of an optimizer for another network or "
                        "for a copy of the model"
                    )
                    cause = Cause("weights are not updated", sentence)
                    yield StepDifference(Divergence(call.step, "optimizer", *moved, "number of changed weights"), cause)
                    return
        earlier.setdefault(key, []).append(pair)


def _moved(before: CallPair, after: CallPair) -> tuple[int, int]:
    """For each run, count the weights that change by more than rounding. Return (1, 1) if rounding makes the counts
    uncertain."""
    weights = [[both for _, *both in numbers(pair, "weight")] for pair in (before, after)]
    moved = [[distance(old[side], new[side]).relative for old, new in zip(*weights, strict=False)] for side in (0, 1)]
    counts = [sum(change > PRODUCT for change in side) for side in moved]
    is_known = all(not any(side) or 2 * count > len(side) for side, count in zip(moved, counts, strict=True))
    return (counts[0], counts[1]) if is_known else (1, 1)


def _has_update(run: RecordedRun, call: RecordedCall) -> bool:
    """Return whether the step has to change weights."""
    steps = [step for step in run.optimizer_steps if step.step == call.step]
    has_rate = any(greatest_setting(step, "lr") for step in steps)
    norms, coefs = call.known_norms(), call.known_coefs()
    return has_rate and any(norms) and all(map(math.isfinite, [*norms, *coefs])) and (not coefs or any(coefs))
