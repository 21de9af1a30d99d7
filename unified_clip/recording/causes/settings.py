"""Mistakes in the settings of a clip: rule, threshold, norm type, eps, or no effect."""

from __future__ import annotations

import math

from ..divergence import numbers, threshold
from ..pairing import CallPair
from ..rounding import same
from ..runs import RecordedCall
from .finding import NEAR, PRODUCT, DivergencePoint, Finding, is_close, is_near

EXACT = 1e-13
"""Relative tolerance of a float64 coefficient, computed by its formula."""

RULES = {
    "global": "all gradients by their total norm",
    "each": "each gradient by its own norm",
    "slices": "each slice by its own norm",
    "value": "each number between two bounds",
}

EPS = (0.0, 1e-6)
"""Of Paddle's and TensorFlow's functions, and of PyTorch's."""


def other_rule(point: DivergencePoint) -> Finding | None:
    rules = (str(point.first.a), str(point.first.b))
    if point.first.stage != "rule" or not all(rule in RULES for rule in rules):  # a call without gradients has none
        return None
    of_a, of_b = (RULES[rule] for rule in rules)
    return Finding("another rule", f"{point.a.name} clips {of_a}, {point.b.name} {of_b}")


def other_threshold(point: DivergencePoint) -> Finding | None:
    pair = point.pair
    if pair is None or same(threshold(pair.a), threshold(pair.b)) or pair.a.rule != pair.b.rule:
        return None
    text = f"{point.a.name} clips at {pair.a.threshold}, {point.b.name} at {pair.b.threshold}"
    is_nan = any(isinstance(line.threshold, float) and math.isnan(line.threshold) for line in (pair.a, pair.b))
    if pair.a.rule == "value" or is_nan:  # no coefficient follows from NaN
        return Finding("another threshold", text)
    if not all(is_by_formula(line) for line in (pair.a, pair.b)):
        return None
    if norms_are_equal(pair):
        return Finding("another threshold", f"{text}; the norms are equal, and each coefficient follows from its own")
    return Finding("another threshold", f"{text}; each coefficient follows from its own norm and threshold")


def other_norm_type(point: DivergencePoint) -> Finding | None:
    pair = point.pair
    if pair is None or same(pair.a.norm_type, pair.b.norm_type) or pair.a.rule != "global" or pair.b.rule != "global":
        return None
    low, high = sorted((pair.a, pair.b), key=lambda line: line.order)
    if not low.order > 0:  # a framework's own function may accept other orders
        return None
    elements = sum(math.prod(length or 1 for length in each.shape) for each in low.parameters.values()) or math.inf
    exponent = 1 / low.order - 1 / high.order
    ratio = low.norms()[0] / high.norms()[0] if high.norms()[0] else 1.0
    # The ratio of two norms of n numbers is at most n**exponent, which may be too large for a float.
    if not (ratio >= 1 - PRODUCT and math.log(ratio) <= exponent * math.log(elements) + PRODUCT):
        return None
    return Finding(
        "another norm type",
        f"{point.a.name} computes the norm of order {pair.a.order:g}, {point.b.name} of order {pair.b.order:g}: "
        f"{pair.a.norms()[0]:.9g} and {pair.b.norms()[0]:.9g}, which the same gradients can have",
    )


def other_eps(point: DivergencePoint) -> Finding | None:
    pair = point.pair
    if pair is None or not norms_are_equal(pair) or not any(a != b for _, a, b in numbers(pair, "coefficient")):
        return None
    of_a, of_b = (_eps_of(line) for line in (pair.a, pair.b))
    if of_a is None or of_b is None or of_a == of_b:
        return None
    with_eps, without = (point.a, point.b) if of_a else (point.b, point.a)
    return Finding(
        "missing eps",
        f"the norms are equal ({pair.a.norms()[0]:.9g}), and the coefficients are exactly those with eps = 1e-6 "
        f"({with_eps.name}) and with eps = 0 ({without.name}): PyTorch's functions add it, Paddle's and TensorFlow's "
        "do not",
    )


def _eps_of(line: RecordedCall) -> float | None:
    """Return the eps that explains the coefficients. A watched function rounds, so only its own eps can."""
    return next((eps for eps in ([line.eps] if line.watched else EPS) if is_by_formula(line, eps)), None)


def one_has_no_effect(point: DivergencePoint) -> Finding | None:
    """Find norms on one side of the threshold where one run only changes its gradients."""
    if point.first.stage != "clipped" or point.pair is None:
        return None
    run, line = (point.b, point.pair.b) if point.first.a else (point.a, point.pair.a)
    other = point.a if run is point.b else point.b
    is_above = max(line.norms()) > line.threshold if isinstance(line.threshold, float) else False
    wrong, does = (run, "leaves them unchanged") if is_above else (other, "changes them")
    return Finding(
        "clipped in one run only",
        f"the norms of both are {'above' if is_above else 'below'} the threshold {line.threshold}, and {wrong.name} "
        f"{does}",
    )


def norms_are_equal(pair: CallPair) -> bool:
    norms = list(numbers(pair, "norm"))
    return bool(norms) and all(is_near(a, b) for _, a, b in norms)


def is_by_formula(line: RecordedCall, eps: float | None = None, relative: float | None = None) -> bool:
    """Return whether the coefficients follow from the norms and the threshold.

    Args:
        line: A call.
        eps: None is the call's own.
        relative: The tolerance. None is the rounding of a watched function, else `EXACT`.
    """
    if not isinstance(line.threshold, float) or not line.coefs():
        return False
    added = line.eps or 0.0 if eps is None else eps
    relative = relative or (NEAR * 2.0**-23 if line.watched else EXACT)
    for norm, coef in zip(line.norms(), line.coefs(), strict=False):
        expected = 1.0 if norm + added <= line.threshold else line.threshold / (norm + added)
        if not is_close(expected, coef, relative):
            return False
    return True
