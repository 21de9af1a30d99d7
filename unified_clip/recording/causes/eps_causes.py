"""Find out whether coefficients differ because of eps or of rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...causes.cause import Cause, instead
from ...causes.scaling import coefficient
from ..divergence import Divergence, DivergencePoint, have_one_threshold, numbers
from ..pairs.calls import CallPair
from ..recorded_run import RecordedCall, RecordedRun
from ..rounding import NEAR, ROUNDING, distance, is_near, single, ulps_at
from ..rounding_noise import total_norm

EXACT = 1e-13
"""The largest relative error of a coefficient in float64."""

ROUNDED = NEAR * 2.0**-23
"""The largest relative error of a coefficient that a framework computes."""


def another_eps(point: DivergencePoint, pair: CallPair) -> Cause | None:
    if not _has_other_eps(pair) or (_shown_by(pair) is None and not _explains(pair)):
        return None
    old, new = pair.a.eps, pair.b.eps
    sentence = instead("eps", new or 0.0, old or 0.0)
    if {old, new} == {0, 1e-6}:
        sentence += ". PyTorch's rule adds 1e-06 to the norm"
    return point.cause("another eps of the clip", sentence)


def first_other_eps(a: RecordedRun, b: RecordedRun, pairs: Sequence[CallPair]) -> tuple[Divergence, Cause] | None:
    for index, pair in enumerate(pairs):
        if _has_other_eps(pair) and (divergence := _shown_by(pair)):
            cause = another_eps(DivergencePoint(a, b, pairs, index, divergence), pair)
            return (divergence, cause) if cause else None
    return None


def _has_other_eps(pair: CallPair) -> bool:
    a, b = pair.a, pair.b
    return (a.eps or 0.0) != (b.eps or 0.0) and is_by_formula(a) and is_by_formula(b)


def _shown_by(pair: CallPair) -> Divergence | None:
    total = max(map(total_norm, (pair.a, pair.b)))
    norms = list(numbers(pair, "norm"))
    if any(ulps_at(total, a, b) > ROUNDING for _, a, b in norms):
        return None
    differing = [
        Divergence(pair.a.step, "coefficient", a, b, name, *distance(a, b), distance(a, b).ulps)
        for (_, *both), (name, a, b) in zip(norms, numbers(pair, "coefficient"), strict=False)
        if a != b and _changes(both[1], pair)
    ]
    return max(differing, key=lambda each: each.ulps or 0.0, default=None)


def _changes(norm: float, pair: CallPair) -> bool:
    limit = pair.b.threshold
    if not isinstance(limit, float):
        return False
    first, second = (coefficient(norm, limit, line.eps or 0.0) for line in (pair.a, pair.b))
    is_wide = "float64" in (pair.a.dtype, pair.b.dtype)
    return first != second if is_wide else single(first) != single(second)


def _explains(pair: CallPair) -> bool:
    """Return whether the coefficients would agree if both calls had the eps of call a."""
    limits = [each for each in (pair.a.threshold, pair.b.threshold) if isinstance(each, float)]
    eps, own = pair.a.eps or 0.0, [distance(a, b).ulps for _, a, b in numbers(pair, "coefficient")]
    with_eps = [
        distance(*(single(coefficient(norm, limit, eps)) for norm, limit in zip(norms, limits, strict=True))).ulps
        for _, *norms in (numbers(pair, "norm") if len(limits) == 2 else ())
    ]
    return bool(with_eps) and max(own, default=0.0) > ROUNDING >= max(with_eps)


def rounded_coefficient(point: DivergencePoint, pair: CallPair) -> Cause | None:
    lines = ((point.a, pair.a), (point.b, pair.b))
    if point.first.stage != "coefficient" or pair.a.eps != pair.b.eps or not norms_are_equal(pair):
        return None
    if not have_one_threshold(pair.a, pair.b) or not all(is_by_formula(line) for _, line in lines):
        return None
    functions = [f"{line.call} of {run.name}" for run, line in lines if not is_by_formula(line, EXACT)]
    rounding = f"the rounding of {' and '.join(functions)}" if functions else "rounding"
    max_ulp = max(ROUNDING, math.ceil(point.first.ulps or 0.0))
    return Cause(
        "rounding",
        f"the norms are equal ({pair.a.norms()[0]:.9g}), and both coefficients follow the same formula. The only "
        f"difference is {rounding}. To allow this difference, pass --max-ulp {max_ulp}",
    )


def norms_are_equal(pair: CallPair) -> bool:
    norms = list(numbers(pair, "norm"))
    return bool(norms) and all(is_near(a, b) for _, a, b in norms)


def is_by_formula(line: RecordedCall, relative: float = 0.0) -> bool:
    if not isinstance(line.threshold, float) or not line.known_coefs():
        return False
    relative = relative or (ROUNDED if line.watched else EXACT)
    pairs = zip(line.used_norms(), line.known_coefs(), strict=False)
    return all(
        math.isclose(coefficient(norm, line.threshold, line.eps or 0.0), coef, rel_tol=relative) for norm, coef in pairs
    )
