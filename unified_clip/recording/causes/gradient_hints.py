"""Advise what to compare first if the weights agree and the gradients differ."""

from __future__ import annotations

from ..divergence import DivergencePoint, numbers
from ..pairs.calls import CallPair
from ..rounding import ROUNDING, distance, single
from ..rounding_noise import noise_floor, total_norm

TINY = 1e-10


def largest_difference(pair: CallPair) -> float:
    return max((distance(a, b).relative for a, b in _beyond_noise(pair)), default=0.0)


def largest_share(pair: CallPair) -> float:
    total = max(map(total_norm, (pair.a, pair.b)))
    return max((abs(a - b) / total for a, b in _beyond_noise(pair)), default=0.0)


def _beyond_noise(pair: CallPair) -> list[tuple[float, float]]:
    floor = max(noise_floor(pair.a), noise_floor(pair.b))
    return [(a, b) for _, a, b in numbers(pair, "gradient") if abs(a - b) > floor]


def losses_agree(point: DivergencePoint, pair: CallPair) -> bool:
    steps = [[each for each in run.optimizer_steps if each.step == pair.a.step] for run in (point.a, point.b)]
    sides = [[loss for each in of_run for loss in each.losses] for of_run in steps]
    if not pair.is_float64:
        sides = [list(map(single, losses)) for losses in sides]
    is_known = len(sides[0]) == len(sides[1]) > 0
    return is_known and all(distance(a, b).ulps <= ROUNDING for a, b in zip(*sides, strict=True))
