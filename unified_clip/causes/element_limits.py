"""Detect functions that clip by norm and also limit each element."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple, get_args

import numpy as np

from ..recorder.clips import coefficient, combined_norm
from .cause import Cause
from .observation import CLEAR_FACTOR, Observation
from .scaling import Scaling, tolerance_of
from .sums import rounding_noise

Order = Literal[
    "before the clip by norm",
    "after the clip by norm",
    "after the computation of the norm, but before the clip by norm",
]

MOST_DIGITS = 8


class ElementLimit(NamedTuple):
    bound: float
    order: Order

    def explains(self, call: Observation) -> bool:
        """Return whether this limit explains the norm and every element."""
        before, after, _ = get_args(Order)
        gradients = {number: gradient.values() for number, gradient, _, _ in call.sides()}
        limited = {number: np.clip(values, -self.bound, self.bound) for number, values in gradients.items()}
        norm = call.total_norm
        if self.order == before:
            norm = combined_norm([float(np.linalg.norm(each.ravel(), call.p)) for each in limited.values()], call.p)
        dtypes = {result.dtype for *_, result in call.sides()}
        tolerance = max([2 * rounding_noise(call.elements), *map(tolerance_of, dtypes)])
        if not call.norm_fits([norm], tolerance):
            return False
        coef = coefficient(norm, call.threshold, call.eps)
        if self.order == after:
            expected = {n: np.clip(coef * values, -self.bound, self.bound) for n, values in gradients.items()}
        else:
            expected = {n: coef * values for n, values in limited.items()}
        close = partial(np.allclose, rtol=tolerance, atol=0.0)
        return all(close(result.values(), expected[number]) for number, *_, result in call.sides())


def element_limits(call: Observation) -> Sequence[ElementLimit]:
    """For each value of `Order`, return the limit with the fewest digits that explains the call."""
    is_plain = call.by == "global" and not call.need_clip and call.passed_norm is None
    if not is_plain or all(map(_has_one_coef, call.scalings.values())):
        return []
    sides = [(before.values(), result.values()) for _, before, _, result in call.sides()]
    largest = max(float(np.abs(result).max(initial=0.0)) for _, result in sides)
    coef = max(float(np.abs(result[before != 0] / before[before != 0]).max(initial=0.0)) for before, result in sides)
    bounds = [largest, largest / coef] if coef else []  # the clip by norm may change nothing
    simple = [float(f"{bound:.{digits}g}") for digits in range(1, MOST_DIGITS + 1) for bound in bounds]
    possible = ((ElementLimit(bound, order) for bound in dict.fromkeys(simple)) for order in get_args(Order))
    limits = (next((limit for limit in of_order if limit.explains(call)), None) for of_order in possible)
    return [*filter(None, limits)]


def _has_one_coef(scaling: Scaling) -> bool:
    return scaling.low <= scaling.high * (1 + CLEAR_FACTOR * tolerance_of(scaling.dtype))


def limit_cause(limits: Sequence[ElementLimit]) -> Cause | None:
    orders = dict[float, list[Order]]()
    for bound, order in limits:
        orders.setdefault(bound, []).append(order)
    texts = (f"to [-{bound:g}, {bound:g}] {_in_words(each)}" for bound, each in orders.items())
    return Cause("another rule", f"as if each element were limited {', or '.join(texts)}") if limits else None


def _in_words(orders: Sequence[Order]) -> str:
    is_either = len(orders) > 1 and "after the clip by norm" in orders
    return "before or after the clip by norm" if is_either else orders[0]
