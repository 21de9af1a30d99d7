"""Causes with a number that several calls of one function determine together: another eps, or another threshold.

Each call bounds the number by an interval. A cause is named only if one number is in the intervals of all calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from .hypotheses import EPS
from .observation import NEAR, Cause, CauseKind, Observation, apart, instead
from .scaling import Scaling
from .sums import IN_FLOAT32, rounding_noise

Interval = tuple[float, float]

LARGEST_EPS = 1.0
"""The largest eps that is named."""

DIGITS = (1, 2, 3, 6, 17)


def fitting_families(this: Observation, calls: Sequence[Observation]) -> Iterator[Cause]:
    """Yield each cause whose number explains all calls of a function, the simplest cause first.

    Yield none if a call returned another norm than the correct one, or for a clip per slice.

    this: The call whose difference is to be explained. The cause is about this call.
    calls: `this`, and all calls that can be compared with it.
    """
    if not all(_has_correct_norm(call) for call in calls) or this.by == "per slice":
        return
    if eps := _common(calls, _eps):
        number = _simple(eps, EPS)
        if number not in (None, this.eps) and not eps[0] <= this.eps <= eps[1] and 0 <= number <= LARGEST_EPS:
            yield Cause("another eps", instead("eps", number, this.eps))
    if factor := _common(calls, _factor):
        number = _simple(factor, (0.5, 2.0))
        if number is not None and not factor[0] <= 1 <= factor[1]:
            yield _threshold(this, this.threshold * number, number)
    elif constant := _common(calls, _constant):
        number = _simple(constant, ())
        if number is not None and not constant[0] <= this.threshold <= constant[1]:
            yield Cause("another threshold", f"as with a threshold of {number:.6g} in every case")


def _threshold(this: Observation, threshold: float, factor: float) -> Cause:
    """Return the cause that every threshold is multiplied by a factor.

    If the call returns no norm, the norm may be divided by it, too.
    """
    kind: CauseKind = "another threshold"
    sentence = instead("a threshold of", threshold, this.threshold)
    if this.norm is None:
        kind = "coefficient"
        sentence += f", or with a norm that is {apart([1 / factor], [1.0])[0]} times as large"
    return Cause(kind, sentence)


def _has_correct_norm(call: Observation) -> bool:
    norm, expected = call.norm, call.expected_norm
    tolerance = max(NEAR, 2 * rounding_noise(call.elements))
    return norm is None or expected is None or math.isclose(norm, expected, rel_tol=tolerance)


def _common(
    calls: Sequence[Observation], interval: Callable[[Observation, float, Interval], Interval]
) -> Interval | None:
    """Return the numbers that explain every clipped gradient of all calls, as an interval. None if there are none.

    interval: A function of a call, a norm and an interval of coefficients. It returns the interval of the numbers that
        give these coefficients.
    """
    low, high, is_bounded = -math.inf, math.inf, False
    for call in calls:
        tolerance = IN_FLOAT32 + rounding_noise(call.elements)
        for number in call.counted:
            if (scaling := call.scalings.get(number)) and call.norms[number] > 0:
                ends = interval(call, call.norms[number], _coefficients(scaling, tolerance))
                low, high = max(low, ends[0]), min(high, ends[1])
                is_bounded = is_bounded or (math.isfinite(ends[0]) and math.isfinite(ends[1]))
    return (low, high) if is_bounded and low <= high else None


def _coefficients(scaling: Scaling, tolerance: float) -> Interval:
    """Return the smallest and the largest quotient of threshold and norm that explain a clipped gradient.

    The coefficient is this quotient, or 1 for a quotient above 1.
    """
    low, high = scaling.low * (1 - tolerance), scaling.high * (1 + tolerance)
    return low, math.inf if scaling.is_unchanged or high >= 1 else high


def _eps(call: Observation, norm: float, coefs: Interval) -> Interval:
    low, high = coefs
    return (
        call.threshold / high - norm if high < math.inf else -math.inf,
        call.threshold / low - norm if low > 0 else math.inf,
    )


def _factor(call: Observation, norm: float, coefs: Interval) -> Interval:
    low, high = _constant(call, norm, coefs)
    return (low / call.threshold, high / call.threshold) if call.threshold else (-math.inf, math.inf)


def _constant(call: Observation, norm: float, coefs: Interval) -> Interval:
    return coefs[0] * (norm + call.eps), coefs[1] * (norm + call.eps)


def _simple(ends: Interval, preferred: Sequence[float]) -> float | None:
    """Return the simplest number in an interval: a preferred one, or one with few digits. None if it is unbounded."""
    low, high = ends
    if not math.isfinite(low) or not math.isfinite(high):
        return None
    rounded = (float(f"{(low + high) / 2:.{digits}g}") for digits in DIGITS)
    return next((number for number in (*preferred, *rounded) if low <= number <= high), (low + high) / 2)
