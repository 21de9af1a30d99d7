"""How far the gradients and updates of two runs are apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..tensors.arithmetic import Float64s
from ..tensors.samples import Sample, aligned
from .factors import UNIT, Gradients
from .pairs import Pair, step_at
from .run import ParameterStep, Run


def gradients_at(a: Run, b: Run, pairs: Sequence[Pair], number: int) -> list[Gradients]:
    """Return the gradients before the clip, without those that are only rounding in both runs."""
    known = (_gradients(a, b, pair, number) for pair in without_noise(pairs, a, b, number))
    return [each for each in known if each is not None]


def _gradients(a: Run, b: Run, pair: Pair, number: int) -> Gradients | None:
    first = a.weight_at_start(pair.old[0])
    if pair.order in ("same", "transposed") and first is not None and np.ptp(first.elements) > 0:
        both = common_elements(a, b, pair, number, lambda each: each.raw)
        weights = common_elements(a, b, pair, number, lambda each: each.weight)
        return both and Gradients(pair, *both, weights[0] if weights else None)
    sides = step_at(a, pair.old, number), step_at(b, pair.new, number)
    known = [
        Sample(each.shape, each.raw)
        for side in sides
        for each in side
        if each.shape is not None and each.raw is not None
    ]
    if pair.are_rearranged or not pair.is_single or len(known) < 2:
        return None
    candidates = [each for each in known[0].pairings(known[1]) if len(each[0]) == len(each[1])]
    best = min(candidates, key=lambda each: float(np.abs(each[0] - each[1]).max(initial=0.0)), default=None)
    return best and Gradients(pair, *best, None)


def distance(gradients: Sequence[Gradients], totals: tuple[float, float]) -> float:
    """Return the largest difference, in ULP of the total norm."""
    scale = max(totals)
    if not (gradients and scale and math.isfinite(scale)):
        return 0.0
    with np.errstate(invalid="ignore"):
        most = max(float(np.abs(each.new - each.old).max(initial=0.0)) for each in gradients)
    return math.inf if math.isnan(most) else most / (UNIT * scale)


def common_elements(
    a: Run, b: Run, pair: Pair, number: int, of: Callable[[ParameterStep], Float64s | None]
) -> tuple[Float64s, Float64s] | None:
    """Return the common elements of the samples that `of` gets from one step of both runs."""
    weights = a.weight_at_start(pair.old[0]), b.weight_at_start(pair.new[0])
    left, right = step_at(a, pair.old, number), step_at(b, pair.new, number)
    if not len(left) == len(right) == 1 or pair.order not in ("same", "transposed"):
        return None
    values = of(left[0]), of(right[0])
    if values[0] is None or values[1] is None or weights[0] is None or weights[1] is None:
        return None
    return aligned(
        Sample(left[0].shape or (), values[0]), Sample(right[0].shape or (), values[1]), (weights[0], weights[1])
    )


def norms_distance(a: Run, b: Run, pairs: Sequence[Pair], number: int) -> float | None:
    """Return the largest difference of the norms of one gradient, in ULP of the total norm, or None if none is known.

    It also covers packed gradients.
    """
    scale = max(a.total_norm(number), b.total_norm(number))
    most: float | None = None
    for pair in pairs:
        left, right = step_at(a, pair.old, number), step_at(b, pair.new, number)
        norms = [[each.raw_norm for each in side] for side in (left, right)]
        types = {each.norm_type for each in (*left, *right)}
        if not all(norms) or len(types) > 1 or any(norm is None for side in norms for norm in side):
            continue
        totals = [math.hypot(*(norm or 0.0 for norm in side)) for side in norms]
        if all(map(math.isfinite, totals)):
            most = max(most or 0.0, abs(totals[0] - totals[1]))
        elif math.isfinite(totals[0]) != math.isfinite(totals[1]):
            return math.inf
    return most / (UNIT * scale) if most and scale and math.isfinite(scale) else most


def without_noise(pairs: Sequence[Pair], a: Run, b: Run, number: int) -> list[Pair]:
    """Leave out the gradients that are rounding in both runs."""
    floors = a.noise_floor(number), b.noise_floor(number)
    kept = []
    for pair in pairs:
        norms = [
            math.hypot(*(each.raw_norm or 0.0 for each in step_at(run, names, number)))
            for run, names in ((a, pair.old), (b, pair.new))
        ]
        is_known = all(
            each.raw_norm is not None
            for run, names in ((a, pair.old), (b, pair.new))
            for each in step_at(run, names, number)
        )
        if not is_known or not all(norm <= floor for norm, floor in zip(norms, floors, strict=True)):
            kept.append(pair)
    return kept
