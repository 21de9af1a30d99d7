"""Hypotheses about a wrong eps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from .cause import CauseKind, instead
from .observation import Hypothesis, Observation
from .sums import IN_FLOAT32, NARROW, rounding_noise, ulp

COMMON_EPS = (0.0, 1e-6, 1e-12, 1e-8, 1e-7, 1e-5)

LARGEST_EPS = 1e-2

LARGEST_EPS_OF_CALLS = 1.0

OR_WITH_EPS = ", or as if eps were about "

AND_WITH_EPS = ", and as if eps were "

FEW_NORMS = 8
"""With fewer than FEW_NORMS distinct norms, a small wrong eps cannot be distinguished from rounding."""

IN_ROOT = tuple(10.0**-digits for digits in range(2, 17))

Interval = tuple[float, float]

IntervalOf = Callable[[Observation, float, Interval], Interval]
"""Takes a call, the norm of a gradient, and the interval of the clip coefficient. Returns the interval of possible
values of a setting, such as eps."""


def other_eps(call: Observation) -> Iterator[Hypothesis]:
    sizes = {number: gradient.array.size for number, gradient in call.counted.items()}
    noises = {  # for each norm by which gradients are clipped
        call.norms[number]: rounding_noise(sizes[number] if call.by == "per tensor" else call.elements)
        for number, each in call.scalings.items()
        if not (each.is_unchanged and each.unchanged_is_expected) and number in sizes
    }
    are_few = call.norm is None and 0 < len(noises) < FEW_NORMS
    tolerance = min(norm * noise for norm, noise in noises.items()) if are_few else 0.0
    for eps in COMMON_EPS:
        if eps != call.eps:
            kind: CauseKind | Literal[""] = "" if abs(eps - call.eps) <= tolerance else "another eps of the clip"
            for returned in (None, [call.total_norm + eps]):  # the norm that is returned may include eps
                yield Hypothesis(kind, instead("eps", eps, call.eps), (), returned, eps)


def eps_on_coefficient(call: Observation) -> Iterator[Hypothesis]:
    coefs = call.coefficients(Hypothesis(eps=0.0))
    if call.by not in ("global", "per tensor") or call.are_norms:
        return
    noise = max(rounding_noise(call.elements), IN_FLOAT32)
    for eps in COMMON_EPS[1:]:
        sums = [min(coef + eps, 1.0) if number in call.counted else coef for number, coef in enumerate(coefs)]
        if any(total > coef * (1 + noise) for total, coef in zip(sums, coefs, strict=True)):
            yield Hypothesis("another eps of the clip", on_coefficient(eps), coefs=sums, tolerance=IN_FLOAT32)


def on_coefficient(eps: float) -> str:
    return f"as if eps {eps:g} were added to the coefficient"


def eps_in_root(call: Observation) -> Iterator[Hypothesis]:
    if call.p != 2 or call.passed_norm is not None or call.by not in ("global", "per tensor"):
        return
    norms = call.norms_by(call.by)
    narrow = [4 * ulp(gradient.dtype) for gradient in call.counted.values() if gradient.dtype in NARROW]
    noise = max([rounding_noise(call.elements), *narrow])
    for eps in IN_ROOT:
        with_eps = [math.sqrt(norm * norm + eps) for norm in norms]
        if all(math.isclose(*pair, rel_tol=noise) for pair in zip(norms, with_eps, strict=True)):
            continue
        sentence = in_root(eps)
        for returned in (None, ()):
            yield Hypothesis("another eps of the clip", sentence, with_eps, returned, eps=0.0, tolerance=IN_FLOAT32)


def in_root(eps: float) -> str:
    return f"as if eps {eps:g} were added inside the root of the norm"


def or_another_eps(call: Observation, coefs: Sequence[float]) -> str:
    clipped = {(call.norms[number], coefs[number]) for number in call.counted if 0 < coefs[number] < 1}
    if call.by != "global" or len(clipped) != 1:
        return ""
    ((norm, coef),) = clipped
    eps = call.threshold / coef - norm
    return f"{OR_WITH_EPS}{eps:.2g}" if 0 < eps <= LARGEST_EPS else ""


# -- from several calls of one function


def eps_sentences(
    this: Observation, wrong_value: Callable[[IntervalOf, float, Sequence[float]], float | None]
) -> Iterator[str]:
    """Yield a sentence for each wrong eps that explains several calls."""
    common = (*COMMON_EPS, *IN_ROOT)
    sentences: dict[IntervalOf, Callable[[float], str]] = {
        _eps: lambda number: instead("eps", number, this.eps),
        _eps_in_root: in_root,
        _eps_on_coefficient: on_coefficient,
    }
    if this.p != 2 or this.passed_norm is not None:
        del sentences[_eps_in_root]
    for interval_of, sentence in sentences.items():
        number = wrong_value(interval_of, this.eps if interval_of is _eps else 0.0, common)
        if number is not None and 0 <= number <= LARGEST_EPS_OF_CALLS:
            yield sentence(number)


def _eps(call: Observation, norm: float, coefs: Interval) -> Interval:
    low, high = coefs
    return (
        call.threshold / high - norm if high < math.inf else -math.inf,
        call.threshold / low - norm if low > 0 else math.inf,
    )


def _eps_in_root(call: Observation, norm: float, coefs: Interval) -> Interval:
    low, high = (each * (2 * norm + each) if each > -norm else -math.inf for each in _eps(call, norm, coefs))
    return low, high


def _eps_on_coefficient(call: Observation, norm: float, coefs: Interval) -> Interval:
    coef = min(1.0, call.threshold / norm)
    return coefs[0] - coef, coefs[1] - coef
