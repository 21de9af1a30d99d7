"""Hypotheses about a wrong number, such as a wrong eps, and the number that several calls of one function reveal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..recorder.clips import coefficient
from .cause import CauseKind, instead
from .observation import IN_FLOAT32, SLACK, Hypothesis, Observation, rounding_noise

COMMON_EPS = (0.0, 1e-6, 1e-12, 1e-8, 1e-7, 1e-5)

IN_ROOT = tuple(10.0**-digits for digits in range(2, 17))

LARGEST_EPS = 1.0

FEW_NORMS = 8
"""With fewer than FEW_NORMS distinct norms, a small wrong eps cannot be distinguished from rounding."""

NARROW_WIDTH = 0.05
"""An interval of possible numbers is narrow if its relative width is below this number."""

ONE_DIGIT = 0.005
"""In an interval whose relative width is below this number, a number of one digit, such as 0.5, is taken as the
setting. By chance, 2 % of all intervals of this width contain a number of one digit."""

DIGITS = (1, 2, 3, 6, 17)

Interval = tuple[float, float]

Prediction = Callable[[Observation], Hypothesis]


class Candidate(NamedTuple):
    hypothesis: Hypothesis
    """The prediction for the call that is diagnosed."""

    predict: Prediction | None = None
    """Predicts the results of another call. If None, the other call has hypotheses of its own about the variation."""

    digits: int = 0
    """The number of digits of the number that the calls reveal."""

    is_weak: bool = False
    """Whether the candidate is only an alternative to another one."""


class Setting(NamedTuple):
    """A number of the clip that may be wrong."""

    kind: CauseKind
    sentence: Callable[[Observation, float], str]
    coef: Callable[[Observation, float, float], float]
    """Takes a call, a norm and the number. Returns the coefficient."""

    number: Callable[[Observation, float, float], float]
    """The inverse of `coef`: takes a coefficient in place of the number."""

    correct: Callable[[Observation], float] = lambda call: 1.0
    returned: Callable[[Observation, float], Sequence[float]] = lambda call, number: [call.total_norm]
    common: Sequence[float] = ()
    is_eps: bool = False
    needs_several: bool = True
    """Whether a single call does not show the number, unless it is common."""

    is_evident: Callable[[Sequence[Observation]], bool] = lambda calls: True

    def at(self, number: float) -> Prediction:
        return lambda call: self.predict(call, number)

    def predict(self, call: Observation, number: float) -> Hypothesis:
        coefs = self._coefs(call, number)
        sentence, returned = self.sentence(call, number), self.returned(call, number)
        is_visible = not self.is_eps or self._is_visible(call, coefs)
        kind = self.kind if is_visible else ""
        return Hypothesis(kind, sentence, returned=returned, coefs=coefs, form=sentence.partition(f"{number:g}")[0])

    def _coefs(self, call: Observation, number: float) -> Sequence[float]:
        return [self.coef(call, n, number) if i in call.counted and n else 1.0 for i, n in enumerate(call.norms)]

    def _is_visible(self, call: Observation, coefs: Sequence[float]) -> bool:
        is_measured = call.norm is not None or len({call.norms[number] for number in call.wrong}) >= FEW_NORMS
        right, is_exact = self._coefs(call, self.correct(call)), is_measured and self is EPS[0]

        def noise(number: int) -> float:
            elements = call.counted[number].array.size if call.by == "per tensor" else call.elements
            return 0.0 if is_exact else max(rounding_noise(elements), IN_FLOAT32)

        return any(abs(coefs[number] - right[number]) > noise(number) * right[number] for number in call.counted)

    def interval(self, call: Observation) -> Interval:
        """Return the interval of the numbers that explain all coefficients of a call."""
        tolerance, common = IN_FLOAT32 + call.noise, (-math.inf, math.inf)
        for index in call.counted:
            if (scaling := call.scalings.get(index)) and (norm := call.norms[index]) > 0:
                low, high = max(0.0, scaling.low) * (1 - tolerance), scaling.high * (1 + tolerance)
                # a coefficient of 1 sets no upper end
                high = math.inf if low <= 1 + SLACK and high >= 1 else high
                ends = sorted(self.number(call, norm, coef) for coef in (low, high))
                if not any(map(math.isnan, ends)):
                    common = overlap(common, (ends[0], ends[1]))
        return common


def overlap(left: Interval, right: Interval) -> Interval:
    return max(left[0], right[0]), min(left[1], right[1])


def _quotient(dividend: float, divisor: float) -> float:
    return dividend / divisor if divisor else math.nan if not dividend else math.inf


def _norm_factor(call: Observation, norm: float, coef: float) -> float:
    """Return the factor of the returned norm. If the call returns no norm, return the factor that `coef` shows."""
    if call.norm is None:
        return (_quotient(call.threshold, coef) - call.eps) / norm
    return _quotient(call.norm, call.expected_norm or 0.0)


def _factor_before(call: Observation, norm: float, coef: float) -> float:
    """Return the factor of gradients that are clipped afterwards. A clipped gradient does not show the factor."""
    if call.norm is not None:
        return _norm_factor(call, norm, coef)
    return coef if norm * coef < call.threshold * (1 - SLACK) else math.nan


def _change_unclipped(calls: Sequence[Observation]) -> bool:
    scalings = [each for call in calls for each in call.scalings.values()]
    is_changed = any(each.unchanged_is_expected and not each.is_unchanged for each in scalings)
    # a lower threshold also makes the gradients of a single call smaller
    return any(each.low > 1 + SLACK for each in scalings) or (len(calls) > 1 and is_changed)


def _have_several_thresholds(calls: Sequence[Observation]) -> bool:
    return len({call.threshold for call in calls}) > 1


def count_lists(calls: Sequence[Observation]) -> int:
    """Count the clipped lists of gradients. Count lists with the same total norm only once."""
    return len({f"{call.norm_over(call.counted):.6g}" for call in calls})


EPS = (
    Setting(
        "another eps of the clip",
        lambda call, eps: instead("eps", eps, call.eps),
        lambda call, n, eps: coefficient(n, call.threshold, eps),
        lambda call, n, coef: _quotient(call.threshold, coef) - n,
        lambda call: call.eps,
        lambda call, eps: [call.total_norm, call.total_norm + eps],  # the norm that is returned may include eps
        COMMON_EPS,
        is_eps=True,
    ),
    Setting(
        "another eps of the clip",
        lambda call, eps: f"as if eps {eps:g} were added inside the root of the norm",
        lambda call, n, eps: coefficient(math.sqrt(n * n + eps), call.threshold, 0.0) if n * n > -eps else math.nan,
        lambda call, n, coef: (
            _quotient(call.threshold, coef) * _quotient(call.threshold, coef) - n * n if call.p == 2 else math.nan
        ),
        lambda call: 0.0,
        lambda call, eps: [call.total_norm, math.sqrt(max(0.0, call.total_norm**2 + eps))],
        IN_ROOT,
        is_eps=True,
        is_evident=lambda calls: all(call.p == 2 and call.passed_norm is None for call in calls),
    ),
    Setting(
        "another eps of the clip",
        lambda call, eps: f"as if eps {eps:g} were added to the coefficient",
        lambda call, n, eps: min(1.0, coefficient(n, call.threshold, 0.0) + eps),
        lambda call, n, coef: coef - coefficient(n, call.threshold, 0.0),
        lambda call: 0.0,
        common=COMMON_EPS[1:],
        is_eps=True,
    ),
)
THRESHOLDS = (
    Setting(
        "another threshold",
        lambda call, factor: instead("the threshold", factor * call.threshold, call.threshold),
        lambda call, n, factor: coefficient(n, factor * call.threshold, call.eps),
        lambda call, n, coef: _quotient(coef * (n + call.eps), call.threshold),
        common=(0.5, 2.0),
        needs_several=False,
    ),
    Setting(
        "another threshold",
        lambda call, threshold: f"as if the threshold were {threshold:.6g} in all calls",
        lambda call, n, threshold: coefficient(n, threshold, call.eps),
        lambda call, n, coef: coef * (n + call.eps),
        lambda call: call.threshold,
        is_evident=_have_several_thresholds,
    ),
    Setting(
        "another threshold",
        lambda call, norm: f"as if gradients above the threshold were scaled to a norm of {norm:.6g}",
        lambda call, n, norm: norm / (n + call.eps) if n + call.eps > call.threshold else 1.0,
        lambda call, n, coef: coef * (n + call.eps) if n + call.eps > call.threshold else math.nan,
        lambda call: call.threshold,
        is_evident=_have_several_thresholds,
    ),
    Setting(
        "another threshold",
        lambda call, norm: f"as if all gradients were scaled to a norm of {norm:.6g}",
        lambda call, n, norm: norm / n,
        lambda call, n, coef: coef * n,
        lambda call: call.threshold,
        is_evident=lambda calls: _have_several_thresholds(calls) and _change_unclipped(calls),
    ),
)
FACTORS = (
    Setting(
        "coefficient",
        lambda call, factor: f"as if the norm were {factor:.6g} times as large",
        lambda call, n, factor: coefficient(factor * n, call.threshold, call.eps),
        _norm_factor,
        returned=lambda call, factor: [factor * call.norm_over(call.counted)],
        is_evident=lambda calls: calls[0].norm is None or count_lists(calls) > 1,
    ),
    Setting(
        "scaled gradients",
        lambda call, factor: f"as if every gradient were {factor:.6g} times as large before the clip",
        lambda call, n, factor: factor * coefficient(factor * n, call.threshold, call.eps),
        _factor_before,
        returned=lambda call, factor: [factor * call.norm_over(call.counted)],
        is_evident=_change_unclipped,
    ),
    Setting(
        "scaled gradients",
        lambda call, factor: f"as if every gradient were {factor:.6g} times as large",
        lambda call, n, factor: factor * coefficient(n, call.threshold, call.eps),
        lambda call, n, coef: _quotient(coef, coefficient(n, call.threshold, call.eps)),
        returned=lambda call, factor: [call.total_norm, factor * call.total_norm],
        needs_several=False,
        is_evident=_change_unclipped,
    ),
)
SETTINGS = (*THRESHOLDS, *FACTORS, *EPS)


def common_eps(call: Observation) -> Iterator[Hypothesis]:
    for setting in EPS:
        for number in setting.common:
            if number != setting.correct(call) and setting.is_evident([call]):
                hypothesis = setting.predict(call, number)
                if hypothesis.kind:
                    yield hypothesis


def revealed_numbers(
    this: Observation, correct: Sequence[Observation], differing: Sequence[Observation]
) -> Iterator[Candidate]:
    """Yield the simplest number of each setting that explains this call, all correct calls, and others if possible."""
    calls = [this, *correct, *differing]
    for setting in SETTINGS:
        finite = [call for call in calls if call.threshold < math.inf or setting in FACTORS]
        intervals = {call: setting.interval(call) for call in finite}
        common = (-math.inf, math.inf)
        for call, interval in intervals.items():
            shared = overlap(common, interval)
            if shared[0] > shared[1] and (call is this or call in correct):
                break
            common = shared if shared[0] <= shared[1] else common
        else:
            is_wrong = this in intervals and not common[0] <= setting.correct(this) <= common[1]
            if is_wrong and setting.is_evident(calls):
                yield from _simplest(setting, this, common, list(intervals.values()))


def _simplest(
    setting: Setting, this: Observation, common: Interval, intervals: Sequence[Interval]
) -> Iterator[Candidate]:
    low, high = common
    width, is_narrow = _width(common), sum(_width(each) < NARROW_WIDTH for each in intervals) > 1
    is_clear = is_narrow or not setting.needs_several
    if not math.isfinite(width) or (width > NARROW_WIDTH and not is_narrow):
        return
    digits = DIGITS[: 3 if setting.is_eps else 5] if is_clear else DIGITS[:1] if width < ONE_DIGIT else ()
    rounded = (float(f"{(low + high) / 2:.{each}g}") for each in digits)
    number = next((each for each in (*setting.common, *rounded) if low <= each <= high), None)
    if number is None or (not 0 <= number <= LARGEST_EPS if setting.is_eps else not number):
        return
    count = next(count for count in range(1, 18) if float(f"{number:.{count}g}") == number)
    predict, is_weak = setting.at(number), not is_clear and len(intervals) == 1
    yield Candidate(predict(this), predict, count, is_weak)


def _width(ends: Interval) -> float:
    are_finite = all(map(math.isfinite, ends))
    return (ends[1] - ends[0]) / (max(map(abs, ends)) or 1.0) if are_finite else math.inf
