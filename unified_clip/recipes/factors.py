"""Explain the gradients of one run by those of the other: by a factor, and by a multiple of the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..recording.rounding import ROUNDING
from ..tensors.arithmetic import Float64s
from .pairs import Pair

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
