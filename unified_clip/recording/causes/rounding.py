"""Differences that rounding explains."""

from __future__ import annotations

import math

from ...causes.observation import Cause
from ..divergence import divergences, threshold
from ..pairing import CallPair
from ..rounding import GROWTH, ROUNDING, same
from .point import DivergencePoint
from .settings import EXACT, is_by_formula, norms_are_equal

SIZES = {"weight": "the greatest norm of this weight so far", "gradient": "the total norm", "norm": "the total norm"}
"""By stage, the size at which its numbers are rounded."""


def of_the_coefficient(point: DivergencePoint, pair: CallPair) -> Cause | None:
    """Find coefficients of one formula of which a framework's own function rounds one."""
    if point.first.stage != "coefficient" or pair.a.eps != pair.b.eps or not norms_are_equal(pair):
        return None
    if not same(threshold(pair.a), threshold(pair.b)) or not all(is_by_formula(line) for line in (pair.a, pair.b)):
        return None
    lines = ((point.a, pair.a), (point.b, pair.b))
    rounded = [f"{line.call} of {run.name}" for run, line in lines if not is_by_formula(line, EXACT)]
    return Cause(
        "rounding",
        f"the norms are equal ({pair.a.norms()[0]:.9g}), and both coefficients are those of the same formula, except "
        f"for the rounding of {' and '.join(rounded)}; allow it with --max-ulp",
    )


def of_a_sum(point: DivergencePoint) -> Cause | None:
    apart, scaled = point.first.distance, point.first.scaled
    if apart is None or scaled is None or scaled > ROUNDING or point.first.stage == "coefficient":
        return None
    size = f" of it, and {scaled:.2g} ULP of {SIZES[point.first.stage]}" if scaled < apart.ulps > ROUNDING else ""
    return Cause(
        "rounding",
        f"the first difference is {apart.ulps:g} ULP{size}: frameworks that sum in different orders differ by as much "
        f"({ROUNDING} ULP at most). Such differences grow from step to step; allow them with --max-ulp",
    )


def grown(point: DivergencePoint) -> Cause | None:
    """Find a difference above rounding and less than `GROWTH` times an earlier one."""
    scaled = point.first.scaled
    if scaled is None or not ROUNDING < scaled < math.inf or point.first.stage == "coefficient":
        return None
    earlier = (each for found in divergences(point.pairs[: point.index], 0.0) for each in found)
    before, step = max(((each.scaled, -each.step) for each in earlier if each.scaled), default=(0.0, 0))
    if scaled > GROWTH * before:
        return None
    return Cause(
        "rounding that has grown",
        f"the difference is {scaled:.3g} ULP of {SIZES[point.first.stage]}, after {before:.3g} at step {-step}. "
        f"Rounding grows less than {GROWTH} times at once; a small difference between the optimizers grows likewise. "
        "`unified-clip verify` compares the updates too",
    )
