"""Compare configurations that differ only in `family` or `eps`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from .._core.rule import ClipRule
from .adaptive import AdaptiveTable
from .fields import ConfigModel
from .schedules import Piecewise, Ramp
from .schema import Settings

UP = Context(prec=2, rounding=ROUND_CEILING)
EXACT = Context(prec=1000)

RAMP_ROUNDING = Decimal(1 - 2**-23)
"""A ramp's threshold in float32 is at least RAMP_ROUNDING times the exact threshold."""

SAME = "Both configurations have the same effect."
INFINITE = (
    "If the norm is infinite, TensorFlow's rule makes every gradient NaN. The rules of PyTorch and Paddle make finite "
    "gradients 0 and infinite gradients NaN."
)


@dataclass(frozen=True)
class FamilyDifference:
    relative: float
    """The largest relative difference between the two clip coefficients, rounded up to two significant digits."""

    differs_if_infinite: bool
    sentence: str

    @property
    def same(self) -> bool:
        return not self.relative and not self.differs_if_infinite


def family_difference(a: Settings, b: Settings) -> FamilyDifference | None:
    """Return the difference between two configurations, or None if other settings than `family` and `eps` differ.

    Let n be the norm, c the threshold, and e1 < e2 the two eps. The clip coefficients are min(1, c / (n + e1)) and
    min(1, c / (n + e2)). Their relative difference is at most (e2 - e1) / (n + e2). This difference is largest at
    n = c - e1, or at n = 0 if c < e1.
    """
    (*others, rules), (*other_others, other_rules) = a.meaning, b.meaning
    pairs = list(zip(rules, other_rules, strict=False))
    if others != other_others or len(rules) != len(other_rules):
        return None
    if any(rule._replace(convention=other.convention) != other for rule, other in pairs):
        return None
    gaps = [_eps_gap(pair) for pair in pairs]
    largest = max((_largest_difference(pair) for pair in pairs), default=Decimal(0))
    infinite = any(one.convention.infinite_norm_gives_nan != other.convention.infinite_norm_gives_nan
                   for one, other in pairs)  # fmt: skip
    sentences = [_coefficients(max(gaps), largest, rules) if largest else "", INFINITE if infinite else ""]
    return FamilyDifference(_rounded_up(largest), infinite, " ".join(filter(None, sentences)) or SAME)


Pair = tuple[ClipRule, ClipRule]


def _eps_gap(pair: Pair) -> Decimal:
    eps, other_eps = (Decimal(repr(rule.convention.eps)) for rule in pair)
    return abs(EXACT.subtract(eps, other_eps))


def _largest_difference(pair: Pair) -> Decimal:
    gap, threshold = _eps_gap(pair), _smallest_threshold(pair[0])
    if not gap or threshold is None:
        return Decimal(0)
    smaller = min(Decimal(repr(rule.convention.eps)) for rule in pair)
    return UP.divide(gap, EXACT.add(max(threshold, smaller), gap))


def _smallest_threshold(rule: ClipRule) -> Decimal | None:
    """Return the smallest positive threshold of all steps, or None if the threshold is always 0."""
    threshold: Any = rule.threshold
    if isinstance(threshold, AdaptiveTable):
        return Decimal(0)
    if isinstance(threshold, Ramp) and not threshold.start and not threshold.end:
        return None
    if isinstance(threshold, Ramp):
        return Decimal(min(threshold.start, threshold.end)) * RAMP_ROUNDING
    if isinstance(threshold, Piecewise):
        return min((Decimal(value) for value in threshold.values if value), default=None)
    return Decimal(threshold) if threshold else None


def _coefficients(gap: Decimal, largest: Decimal, rules: Sequence[ClipRule]) -> str:
    thresholds = [rule.threshold for rule in rules]
    is_number = len(thresholds) == 1 and not isinstance(thresholds[0], ConfigModel)
    these = f"threshold = {thresholds[0]:g}" if is_number else "the configuration's thresholds"
    return (
        f"For a norm of n, the relative difference between the two clip coefficients is at most {_text(gap)} / n, "
        f"apart from rounding. With {these}, the difference is at most {_text(largest)}."
    )


def _text(number: Decimal) -> str:
    return f"{_rounded_up(UP.plus(number)):.2g}"


def _rounded_up(number: Decimal) -> float:
    """Floats below the normal ones can be coarser than two digits."""
    value = float(number)
    return value if Decimal(repr(value)) >= number else math.nextafter(value, math.inf)
