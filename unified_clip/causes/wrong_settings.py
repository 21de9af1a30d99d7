"""Find a wrong number, such as a wrong threshold, from several calls of one function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from .cause import Cause, CauseKind, distinct_texts, instead
from .eps import Interval, IntervalOf, eps_sentences
from .observation import NORM_TOLERANCE, Hypothesis, Observation
from .scaling import Scaling
from .sums import IN_FLOAT32, rounding_noise

CONDITIONS = {
    "the square of the norm was above the threshold": (2, 1),
    "the norm was above the square of the threshold": (1, 2),
}

ROUNDING = 1e-5
"""A coefficient above 1 + ROUNDING proves that the call does not limit coefficients to 1."""

MIN_LISTS = 2
"""A factor by which all norms are wrong is reported only if at least this number of gradient lists was clipped."""

MIN_CALLS = 2

NARROW = 0.05
"""An interval of possible values of a setting is narrow if its relative width is below this number."""

ONE_DIGIT = 0.005
"""In an interval whose relative width is below this number, a number of one digit, such as 0.5, is taken as the
setting. By chance, 2 % of all intervals of this width contain a number of one digit."""

DIGITS = (1, 2, 3, 6, 17)

FEW_DIGITS = (1, 2)


def wrong_settings(
    this: Observation, correct: Sequence[Observation], differing: Sequence[Observation]
) -> Iterator[Cause]:
    """Yield causes, the simplest first."""
    if this.by == "per slice":
        return
    if not _has_correct_norm(this):
        yield from _scaled_norm(this, correct, differing)
        return

    calls = _calls(this, correct, differing)
    if (scale := calls.strict().common(_scale)) and not scale[0] <= 1 <= scale[1]:
        number = _simple(scale, ())
        if number is not None and any(map(_changes_unclipped, (this, *differing))):
            yield scaled_gradients(number)
    if this.threshold == math.inf:
        return

    if eps := list(eps_sentences(this, calls.wrong_value)):
        yield Cause("another eps of the clip", ", or ".join(eps))
    if threshold := _threshold(this, calls, DIGITS):
        yield threshold
    elif (constant := calls.wrong_value(_constant, this.threshold)) is not None:
        yield _same_threshold(constant)
    elif (norm := calls.wrong_value(_clipped_norm, this.threshold)) is not None:
        sentence = f"as if gradients above the threshold were scaled to a norm of {norm:.6g}"
        yield Cause("another threshold", sentence)
    if conditions := list(_conditions(lambda powers: _common(*calls, partial(_ratios, powers=powers)))):
        sentence = f"as if gradients were scaled to the threshold only if {', or if '.join(conditions)}"
        yield Cause("another condition", sentence)


def or_simple_threshold(
    cause: Cause, this: Observation, correct: Sequence[Observation], differing: Sequence[Observation]
) -> Cause:
    if this.by == "per slice":
        return cause
    if not _has_correct_norm(this):
        simple = next(_scaled_norm(this, correct, differing, min_lists=1, digits=FEW_DIGITS), None)
    elif this.threshold < math.inf:
        calls = _calls(this, correct, differing)
        constant = calls.strict().wrong_value(_constant, this.threshold)
        simple = _threshold(this, calls, FEW_DIGITS) or (None if constant is None else _same_threshold(constant))
    else:
        return cause
    if simple is None:
        return cause
    is_norm_returned = simple.kind == "another threshold" and cause.kind == "another norm type"
    first, second = (simple, cause) if is_norm_returned else (cause, simple)
    return Cause(first.kind, f"{first.sentence}, or {second.sentence}")


def _same_threshold(number: float) -> Cause:
    return Cause("another threshold", f"as if the threshold were {number:.6g} in all calls")


class _Calls(NamedTuple):
    required: Sequence[Observation]
    """A setting must explain all these calls, and most calls of `differing`."""

    differing: Sequence[Observation]

    def strict(self) -> _Calls:
        return _Calls([*self.required, *self.differing], ())

    def common(self, interval_of: IntervalOf) -> Interval | None:
        return _common(*self, partial(_numbers, interval_of=interval_of))

    def wrong_value(self, interval_of: IntervalOf, correct: float, preferred: Sequence[float] = ()) -> float | None:
        """Return the wrong value that explains the calls, or None if the correct value or no value explains them.

        If few calls narrow the value down, accept only `preferred` values and values with one digit.
        """
        interval = self.common(interval_of)
        if interval is None or interval[0] <= correct <= interval[1]:
            return None
        widths = [_width(_numbers(each, interval_of)) for each in (*self.required, *self.differing)]
        if sum(width < NARROW for width in widths) >= MIN_CALLS:
            return _simple(interval, preferred)
        digits = (1,) if _width(interval) < ONE_DIGIT else ()
        return _simple(interval, preferred, digits) if _width(interval) < NARROW else None


def _calls(this: Observation, correct: Sequence[Observation], differing: Sequence[Observation]) -> _Calls:
    return _Calls([each for each in (this, *correct) if each.threshold < math.inf], differing)


def scaled_gradients(factor: float) -> Cause:
    return Cause("scaled gradients", f"as if every gradient were {factor:.6g} times as large")


def _scaled_norm(
    this: Observation,
    correct: Sequence[Observation],
    differing: Sequence[Observation],
    min_lists: int = MIN_LISTS,
    digits: Sequence[int] = DIGITS,
) -> Iterator[Cause]:
    calls = [each for each in (this, *correct, *differing) if each.norm or each.expected_norm]
    factors = {each: each.norm / each.expected_norm for each in calls if each.norm and each.expected_norm}
    factor = factors.get(this, 1.0)
    if this.by != "global" or any(not math.isclose(factors.get(each, 0.0), factor, rel_tol=ROUNDING) for each in calls):
        return
    scaled = {each: Hypothesis(norms=[factor * norm for norm in each.norms]) for each in calls}
    contradicting = [each for each, hypothesis in scaled.items() if not each.explains(hypothesis, ROUNDING)]
    number = _simple((factor * (1 - ROUNDING), factor * (1 + ROUNDING)), (), digits)
    if number and this not in contradicting and 2 * count_lists(contradicting) < count_lists(calls) >= min_lists:
        yield Cause("coefficient", f"as if the norm were {factor:.6g} times as large")
    elif (
        number
        and any(map(_changes_unclipped, calls))
        and all(_has_scaled_gradients(each, hypothesis, factor) for each, hypothesis in scaled.items())
    ):
        yield Cause("scaled gradients", f"{scaled_gradients(factor).sentence} before the clip")


def _has_scaled_gradients(call: Observation, scaled: Hypothesis, factor: float) -> bool:
    coefs = [factor * coef for coef in call.coefficients(scaled)]
    return call.explains(scaled._replace(coefs=coefs), ROUNDING)


def _changes_unclipped(call: Observation) -> bool:
    return any(each.unchanged_is_expected and not each.is_unchanged for each in call.scalings.values())


def _conditions(common: Callable[[tuple[int, int]], Interval | None]) -> Iterator[str]:
    """Yield each wrong condition for clipping that explains the results."""
    for words, powers in CONDITIONS.items():
        if (quotients := common(powers)) and quotients[0] <= 1 < quotients[1]:
            yield words
    if quotients := common((1, 1)):
        low, high = quotients
        if 0 < low < high < math.inf and not low <= 1 <= high:
            yield f"the norm was above c times the threshold, where c is between {low:.5g} and {high:.5g}"


def _threshold(this: Observation, calls: _Calls, digits: Sequence[int]) -> Cause | None:
    factor = calls.common(_factor) or (1.0, 1.0)
    number = _simple(factor, (0.5, 2.0), digits)
    if number is None or factor[0] <= 1 <= factor[1]:
        return None
    kind: CauseKind = "another threshold"
    sentence = instead("the threshold", this.threshold * number, this.threshold)
    if this.norm is None:
        kind = "coefficient"
        sentence += f", or as if the norm were {distinct_texts([1 / number], [1.0])[0]} times as large"
    return Cause(kind, sentence)


def _has_correct_norm(call: Observation) -> bool:
    norm, expected = call.norm, call.expected_norm
    tolerance = max(NORM_TOLERANCE, 2 * rounding_noise(call.elements))
    return norm is None or expected is None or math.isclose(norm, expected, rel_tol=tolerance)


def _common(
    required: Sequence[Observation], differing: Sequence[Observation], numbers: Callable[[Observation], Interval]
) -> Interval | None:
    common = (-math.inf, math.inf)
    for call in required:
        common = _overlap(common, numbers(call))
    contradicting = []
    for call in differing:
        overlap = _overlap(common, numbers(call))
        if _has_correct_norm(call) and overlap[0] <= overlap[1]:
            common = overlap
        else:
            contradicting.append(call)
    is_most = 2 * count_lists(contradicting) < count_lists([*required[:1], *differing])
    return common if common[0] <= common[1] and is_most else None


def count_lists(calls: Iterable[Observation]) -> int:
    """Count the clipped lists of gradients. Count lists with the same total norm only once."""
    return len({f"{call.norm_over(call.counted):.6g}" for call in calls})


def _overlap(left: Interval, right: Interval) -> Interval:
    return max(left[0], right[0]), min(left[1], right[1])


def _numbers(call: Observation, interval_of: IntervalOf) -> Interval:
    numbers, tolerance = (-math.inf, math.inf), IN_FLOAT32 + rounding_noise(call.elements)
    for number in call.counted:
        if (scaling := call.scalings.get(number)) and call.norms[number] > 0:
            numbers = _overlap(numbers, interval_of(call, call.norms[number], _coefficients(scaling, tolerance)))
    return numbers


def _coefficients(scaling: Scaling, tolerance: float) -> Interval:
    """Return the interval of possible values of threshold / (norm + eps). A coefficient of 1 sets no upper end."""
    low, high = scaling.low * (1 - tolerance), scaling.high * (1 + tolerance)
    return low, math.inf if low <= 1 + ROUNDING and high >= 1 else high


def _ratios(call: Observation, powers: tuple[int, int]) -> Interval:
    """The quotient of a gradient is norm**a / threshold**b, and `powers` is (a, b).

    Return (largest quotient of an unchanged gradient, smallest quotient of a scaled gradient).
    """
    unchanged, scaled, tolerance = -math.inf, math.inf, IN_FLOAT32 + rounding_noise(call.elements)
    for number in call.counted:
        scaling, norm = call.scalings.get(number), call.norms[number]
        if not scaling or not norm or not call.threshold:
            continue
        is_scaled = scaling.allows(call.threshold / (norm + call.eps), tolerance)
        quotient = norm ** powers[0] / call.threshold ** powers[1]
        if not is_scaled:
            unchanged = max(unchanged, quotient if scaling.is_unchanged else math.inf)
        elif not scaling.is_unchanged:
            scaled = min(scaled, quotient)
    return unchanged, scaled


def _factor(call: Observation, norm: float, coefs: Interval) -> Interval:
    low, high = _constant(call, norm, coefs)
    return (low / call.threshold, high / call.threshold) if call.threshold else (-math.inf, math.inf)


def _scale(call: Observation, norm: float, coefs: Interval) -> Interval:
    coef = min(1.0, call.threshold / (norm + call.eps))
    return (coefs[0] / coef, coefs[1] / coef) if coef else (-math.inf, math.inf)


def _constant(call: Observation, norm: float, coefs: Interval) -> Interval:
    return coefs[0] * (norm + call.eps), coefs[1] * (norm + call.eps)


def _clipped_norm(call: Observation, norm: float, coefs: Interval) -> Interval:
    if norm + call.eps > call.threshold:
        return _constant(call, norm, coefs)
    return (-math.inf, math.inf) if coefs[1] == math.inf else (math.inf, -math.inf)


def _simple(ends: Interval, preferred: Sequence[float], digits: Sequence[int] = DIGITS) -> float | None:
    low, high = ends
    if not math.isfinite(low) or not math.isfinite(high):
        return None
    rounded = (float(f"{(low + high) / 2:.{each}g}") for each in digits)
    return next((number for number in (*preferred, *rounded) if low <= number <= high), None)


def _width(ends: Interval) -> float:
    return (ends[1] - ends[0]) / max(map(abs, ends)) if ends[0] > -math.inf and ends[1] < math.inf else math.inf
