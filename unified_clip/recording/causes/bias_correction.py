"""Find out whether the norms of weights suggest that only one run corrects the bias of Adam's moments."""

from __future__ import annotations

import math

from ..divergence import DivergencePoint, numbers
from ..optimizers.names import LIBRARIES
from ..pairs.calls import CallPair
from ..recorded_run import OptimizerStep

LEAST_WEIGHTS = 3

MOST = 1.5
"""With bias correction, Adam changes each element by about the learning rate, or by less."""

LEAST_CHANGE = 0.1
"""If bias correction changes the updates by a smaller part, the norms do not show this change."""

LIBRARY_ADAMS = ("adam", "adamw")


def missing_correction(point: DivergencePoint, pair: CallPair) -> str:
    """Return a sentence about this possible cause if it explains the changes of all norms, or "".

    Let the run with bias correction change a weight w by u, and the other run by r * u. The two changes of the
    squared norm of w are 2 * w @ u + u @ u, and 2 * r * w @ u + r**2 * u @ u. So both changes together contain u @ u.
    """
    before = point.pairs[point.index - 1]
    steps = [[each for each in run.optimizer_steps if each.step == before.a.step] for run in (point.a, point.b)]
    is_adam = [len(each) == 1 and _is_library_adam(each[0]) for each in steps]
    is_unknown = [not each or not each[0].optimizer.startswith(LIBRARIES) for each in steps]
    side = is_adam.index(True) if True in is_adam else 0
    if not (is_adam[side] and is_unknown[1 - side]):
        return ""
    step = steps[side][0]
    rate, betas = step.settings.get("lr"), step.settings.get("betas")
    if not isinstance(rate, float) or not rate or not isinstance(betas, tuple):
        return ""
    if len(betas) != 2 or not all(0 < beta < 1 for beta in betas):  # parameter groups can have different betas
        return ""
    first, second = (1 - beta**step.step for beta in betas)
    ratio = first / second**0.5
    if abs(ratio - 1) < LEAST_CHANGE:
        return ""
    starts = {name: (a, b) for name, a, b in numbers(before, "weight")}
    sizes = []
    for name, a, b in numbers(pair, "weight"):
        changes = [norm**2 - start**2 for norm, start in zip((a, b), starts.get(name, (a, b)), strict=True)]
        square = (changes[1 - side] - ratio * changes[side]) / (ratio**2 - ratio)
        sizes.append(square / (rate**2 * (pair.a.parameters[name or ""].elements or math.nan)))
    if len(sizes) < LEAST_WEIGHTS or not all(0 < size <= MOST for size in sizes):
        return ""
    run, other = (point.a, point.b)[:: 1 - 2 * side]
    return (
        f"A possible cause explains the norms of all weights: {step.optimizer} of {run.name} corrects the bias of its "
        f"moments, and the optimizer of {other.name} does not: see "
        "docs/my-loss-curve-differs.md#adam-without-bias-correction. To make sure, run `unified-clip verify`, which "
        "compares the updates"
    )


def _is_library_adam(step: OptimizerStep) -> bool:
    return step.optimizer.startswith(LIBRARIES) and step.optimizer.lower().rpartition(".")[2] in LIBRARY_ADAMS
