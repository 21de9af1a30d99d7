"""Advise what to compare first between two runs with equal weights and different gradients."""

from __future__ import annotations

from ..divergence import DivergencePoint, numbers
from ..pairs.pairing import CallPair
from ..recorded_run import RecordedRun
from ..rounding import ROUNDING, distance, single
from ..rounding_noise import noise_floor


def hint(point: DivergencePoint, pair: CallPair) -> str:
    floor = max(noise_floor(pair.a), noise_floor(pair.b))
    differences = [distance(a, b).relative for _, a, b in numbers(pair, "gradient") if abs(a - b) > floor]
    most = max(differences, default=0.0)
    if 0 < most < 0.02:
        return (
            f". The norms of the gradients differ by at most {100 * most:.2g} %. Different data or dropout usually "
            "cause larger differences, so compare the formulas first, such as GELU and the eps of normalization layers"
        )
    # if a matrix is 0, such as the last layer of some models, the loss may depend on no data
    is_zero = any(each.weight == 0 and len(each.shape) > 1 for each in pair.a.parameters.values())
    if most < 0.05 or is_zero or not losses_agree(point, pair):
        return ""
    return (
        ". The losses of this step agree, so compare the backward pass first. Possible causes are detach(), "
        "stop_gradient, and zero_grad() between the backward passes of a step"
    )


def losses_agree(point: DivergencePoint, pair: CallPair) -> bool:
    sides = [_losses(run, pair.a.step) for run in (point.a, point.b)]
    if not pair.a.dtype == pair.b.dtype == "float64":
        sides = [list(map(single, losses)) for losses in sides]
    is_known = len(sides[0]) == len(sides[1]) > 0
    return is_known and all(distance(a, b).ulps <= ROUNDING for a, b in zip(*sides, strict=True))


def _losses(run: RecordedRun, step: int) -> list[float]:
    return [loss for each in run.optimizer_steps if each.step == step for loss in each.losses]
