"""How far the gradients and updates of two runs are apart, and whether a factor and a multiple of the weights explain
the gradients of one run by those of the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..recording.rounding import ROUNDING
from ..tensors.arithmetic import Float64s
from ..tensors.samples import Sample, aligned
from .pairs import Both, Pair, PairedRuns
from .run import ParameterStep

UNIT = 2.0**-24

SAME_FACTOR = 1e-4
"""Factors of gradients that differ by less are one factor."""

SAME_DECAY = 0.02

MOST_FACTORS = 3
"""Gradients that need more different factors have other reasons than a factor."""


class Gradients(NamedTuple):
    """The common elements of one gradient in both runs."""

    pair: Pair
    old: Float64s
    new: Float64s
    weight: Float64s | None


class Fit(NamedTuple):
    """new = factor * old + decay * weight."""

    factor: float
    decay: float


def gradients_at(runs: PairedRuns, number: int) -> list[Gradients]:
    """Return the gradients before the clip, without those that are only rounding in both runs."""
    known = (_gradients(runs, each) for each in without_noise(runs, number))
    return [each for each in known if each is not None]


def _gradients(runs: PairedRuns, each: Both) -> Gradients | None:
    pair = each.pair
    first = runs.a.weight_at_start(pair.old[0])
    if pair.order in ("same", "transposed") and first is not None and np.ptp(first.elements) > 0:
        both = common_elements(runs, each, lambda step: step.raw)
        weights = common_elements(runs, each, lambda step: step.weight)
        return both and Gradients(pair, *both, weights[0] if weights else None)
    known = [Sample(step.shape, step.raw) for step in each.sides if step.shape is not None and step.raw is not None]
    if pair.are_rearranged or not pair.is_single or len(known) < 2:
        return None
    candidates = [both for both in known[0].pairings(known[1]) if len(both[0]) == len(both[1])]
    best = min(candidates, key=lambda both: float(np.abs(both[0] - both[1]).max(initial=0.0)), default=None)
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
    runs: PairedRuns, each: Both, of: Callable[[ParameterStep], Float64s | None]
) -> tuple[Float64s, Float64s] | None:
    """Return the common elements of the samples that `of` gets from one step of both runs."""
    if not each.pair.is_single or each.pair.order not in ("same", "transposed"):
        return None
    (old, new), (left, right) = each.sides, map(of, each.sides)
    weights = runs.a.weight_at_start(*each.pair.old), runs.b.weight_at_start(*each.pair.new)
    if left is None or right is None or weights[0] is None or weights[1] is None:
        return None
    return aligned(Sample(old.shape or (), left), Sample(new.shape or (), right), (weights[0], weights[1]))


def norms_distance(runs: PairedRuns, both: Iterable[Both], number: int) -> float | None:
    """Return the largest difference of the norms of one gradient, in ULP of the total norm, or None if none is known.

    It also covers packed gradients.
    """
    scale = max(runs.total_norms(number))
    most: float | None = None
    for each in both:
        totals = _norms(each)
        if None in totals or len({step.norm_type for side in each.every for step in side}) > 1:
            continue
        old, new = (total or 0.0 for total in totals)
        if math.isfinite(old) and math.isfinite(new):
            most = max(most or 0.0, abs(old - new))
        elif math.isfinite(old) != math.isfinite(new):
            return math.inf
    return most / (UNIT * scale) if most and scale and math.isfinite(scale) else most


def _norms(each: Both) -> list[float | None]:
    """Return the norm of the gradients of each run, or None if one of them is unknown."""
    norms = [[step.raw_norm for step in side] for side in each.every]
    return [None if None in side else math.hypot(*(norm or 0.0 for norm in side)) for side in norms]


def without_noise(runs: PairedRuns, number: int) -> list[Both]:
    """Leave out the gradients that are rounding in both runs."""
    floors = [run.noise_floor(number) for run in runs.sides]
    return [
        each
        for each in runs.at(number)
        if not all(norm is not None and norm <= floor for norm, floor in zip(_norms(each), floors, strict=True))
    ]


# -- factors


def fit_all(gradients: Sequence[Gradients], total: float) -> dict[Pair, Fit] | None:
    """Return how the gradients of each parameter follow from those of the old run, or None if they do not."""
    limit = 4 * ROUNDING * UNIT * total
    ordered = sorted(gradients, key=lambda each: -float(np.abs(each.new).max(initial=0.0)))
    factors = [1.0]
    for each in ordered:
        factors += _factors(each)
    for factor in factors:
        fits = {each.pair: _with_factor(each, factor, limit) for each in gradients}
        known = [fit for fit in fits.values() if fit is not None]
        decays = [fit.decay for fit in known if fit.decay]
        is_one = all(math.isclose(each, decays[0], rel_tol=SAME_DECAY) for each in decays)
        if len(known) == len(fits) and is_one:
            return {pair: fit for pair, fit in fits.items() if fit is not None}
    single = {each.pair: _alone(each, limit) for each in gradients}
    known = [fit for fit in single.values() if fit is not None]
    distinct = [fit for place, fit in enumerate(known) if not any(_is_same(fit, other) for other in known[:place])]
    if len(known) == len(single) and len(distinct) <= MOST_FACTORS:
        return {pair: fit for pair, fit in single.items() if fit is not None}
    return None


def _is_same(fit: Fit, other: Fit) -> bool:
    return math.isclose(fit.factor, other.factor, rel_tol=SAME_FACTOR)


def _factors(each: Gradients) -> list[float]:
    size = float(each.old @ each.old)
    found = [float(each.old @ each.new) / size] if size else []
    if each.weight is not None and len(each.weight) == len(each.old) and size:
        columns = np.stack([each.old, each.weight], 1)
        found.append(float(np.linalg.lstsq(columns, each.new, rcond=None)[0][0]))
    return [factor for factor in found if math.isfinite(factor) and factor]


def _with_factor(each: Gradients, factor: float, limit: float) -> Fit | None:
    rest = each.new - factor * each.old
    if not (np.abs(rest) > limit).any():
        return Fit(factor, 0.0)
    if each.weight is None or len(each.weight) != len(rest) or not (size := float(each.weight @ each.weight)):
        return None
    decay = float(rest @ each.weight) / size
    return Fit(factor, decay) if not (np.abs(rest - decay * each.weight) > limit).any() else None


def _alone(each: Gradients, limit: float) -> Fit | None:
    return next(
        (Fit(factor, 0.0) for factor in _factors(each) if not (np.abs(each.new - factor * each.old) > limit).any()),
        None,
    )
