"""Causes in the settings of a clip: rule, threshold, norm type, eps, or no effect. And causes that `causes` finds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ...causes.find import find
from ...causes.observation import By, Cause, Observation, instead
from ...causes.scaling import coefficient, combined_norm
from ...causes.shown import NOT_CLIPPED
from ..divergence import numbers, threshold
from ..pairing import CallPair
from ..rounding import same
from ..runs import RecordedCall
from .point import NEAR, PRODUCT, DivergencePoint, is_close, is_near, stand_ins

EXACT = 1e-13
"""Relative tolerance of a float64 coefficient, computed by its formula."""

ROUNDED = NEAR * 2.0**-23
"""Relative tolerance of a coefficient that a framework's own function rounds."""

RULES = {
    "global": "all gradients by their total norm",
    "each": "each gradient by its own norm",
    "slices": "each slice by its own norm",
    "value": "each number between two bounds",
}

BY: dict[str | None, By] = {"global": "global", "each": "per tensor"}


def other_rule(point: DivergencePoint) -> Cause | None:
    rules = (str(point.first.a), str(point.first.b))
    if point.first.stage != "rule" or not all(rule in RULES for rule in rules):  # a call without gradients has none
        return None
    of_a, of_b = (RULES[rule] for rule in rules)
    return Cause("another rule", f"{point.a.name} clips {of_a}, {point.b.name} {of_b}")


def other_settings(point: DivergencePoint, pair: CallPair) -> Iterator[Cause]:
    """Yield the thresholds, norm types and eps that differ, if they explain the numbers."""
    a, b = pair.a, pair.b
    follow, equal = is_by_formula(a) and is_by_formula(b), norms_are_equal(pair)
    norms = f"; the norms are equal ({a.norms()[0]:.9g})" if equal else ""
    if (
        a.threshold is not None
        and b.threshold is not None
        and a.rule == b.rule
        and not same(threshold(a), threshold(b))
    ):
        is_nan = any(isinstance(line.threshold, float) and math.isnan(line.threshold) for line in (a, b))
        if follow or a.rule == "value" or is_nan:  # no coefficient follows from NaN
            what = "bounds of" if a.rule == "value" else "a threshold of"
            yield point.cause("another threshold", f"{instead(what, b.threshold, a.threshold, '')}{norms}")
    if not same(a.norm_type, b.norm_type) and a.rule == b.rule == "global" and _can_be_of_one_list(a, b):
        values = f"{b.norms()[0]:.9g} and {a.norms()[0]:.9g}"
        sentence = f"{instead('norm_type', b.order, a.order)}; the same gradients can have the norms {values}"
        yield point.cause("another norm type", sentence)
    if follow and equal and a.eps != b.eps and any(left != right for _, left, right in numbers(pair, "coefficient")):
        yield point.cause("another eps", f"{instead('eps', b.eps or 0.0, a.eps or 0.0)}{norms}")


def _can_be_of_one_list(a: RecordedCall, b: RecordedCall) -> bool:
    """Return whether two norms of different orders can be those of the same gradients."""
    low, high = sorted((a, b), key=lambda line: line.order)
    if not low.order > 0:  # a framework's own function may accept other orders
        return False
    elements = sum(math.prod(length or 1 for length in each.shape) for each in low.parameters.values()) or math.inf
    exponent = 1 / low.order - 1 / high.order
    ratio = low.norms()[0] / high.norms()[0] if high.norms()[0] else 1.0
    # The ratio of two norms of n numbers is at most n**exponent, which may be too large for a float.
    return ratio >= 1 - PRODUCT and math.log(ratio) <= exponent * math.log(elements) + PRODUCT


def one_has_no_effect(point: DivergencePoint, pair: CallPair) -> Cause | None:
    """Find norms on one side of the threshold where one run only changes its gradients."""
    if point.first.stage != "clipped":
        return None
    clips, line, other = (point.a, pair.a, point.b) if point.first.a else (point.b, pair.b, point.a)
    unclipped = pair.b if line is pair.a else pair.a
    if isinstance(line.threshold, float) and max(unclipped.norms()) > line.threshold:
        return point.cause(
            "not clipped", f"{NOT_CLIPPED}; the norms of both are above the threshold {line.threshold}", other
        )
    sentence = f"gradients change, and the norms of both are below the threshold {line.threshold}"
    return point.cause("clipped below the threshold", sentence, clips)


def by_hypotheses(point: DivergencePoint, pair: CallPair) -> Cause | None:
    """Test the causes of `causes` on the coefficients of one run, if those of the other follow from its settings."""
    a, b = pair.a, pair.b
    is_comparable = a.rule == b.rule and a.rule in BY and same(a.norm_type, b.norm_type)
    if (
        not is_comparable
        or len(a.norms()) != len(b.norms())
        or not all(is_near(*norms) for _, *norms in point.gradients())
    ):
        return None
    for reference, line, run in ((a, b, point.b), (b, a, point.a)):
        cause = find(_observe(reference, line)) if is_by_formula(reference) else None
        is_known = line.threshold is not None and cause and cause.kind in ("another threshold", "coefficient")
        if cause and not is_known:
            return point.cause(cause.kind, cause.sentence, run)
    return None


def _observe(reference: RecordedCall, line: RecordedCall) -> Observation:
    """Return a call as the observed one, and its reference as the correct one."""
    threshold, p, total = reference.threshold, reference.order, combined_norm(reference.norms(), reference.order)
    assert isinstance(threshold, float)
    norms = {name: each.norm for name, each in reference.parameters.items()}
    if not norms or not is_close(combined_norm(list(norms.values()), p), total, ROUNDED):
        norms = {f"position {index}": norm for index, norm in enumerate(reference.norms())}
    given, due, found = (
        stand_ins(norm * coef for norm, coef in zip(norms.values(), itertools.cycle(coefs), strict=False))
        for coefs in ([1.0], reference.coefs(), line.coefs())
    )
    by, eps, names = BY[str(reference.rule)], reference.eps or 0.0, list(norms)
    is_returned = reference.rule == "global" and not line.watched  # else it was measured before the call
    due_norm, norm = (total, line.norms()[0]) if is_returned else (None, None)
    return Observation(
        given, due, found, by, threshold, (), eps, p, due_norm, norm, names=names, are_norms=True, slacks=(ROUNDED,)
    )


def norms_are_equal(pair: CallPair) -> bool:
    norms = list(numbers(pair, "norm"))
    return bool(norms) and all(is_near(a, b) for _, a, b in norms)


def is_by_formula(line: RecordedCall, relative: float = 0.0) -> bool:
    """Return whether the coefficients follow from the norms and the settings, by default up to their rounding."""
    if not isinstance(line.threshold, float) or not line.coefs():
        return False
    relative = relative or (ROUNDED if line.watched else EXACT)
    pairs = zip(line.norms(), line.coefs(), strict=False)
    return all(is_close(coefficient(norm, line.threshold, line.eps or 0.0), coef, relative) for norm, coef in pairs)
