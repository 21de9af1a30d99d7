"""Choose one cause for all wrong results of a function."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from .._kit.display import counted, enumeration
from ..tensors.arithmetic import FORMATS
from ..tensors.types import Sparse
from . import call_causes, hypotheses
from .cause import Cause
from .counted_gradients import twice, without
from .element_limits import ElementLimit, element_limits, limit_cause
from .eps import AND_WITH_EPS, OR_WITH_EPS
from .observation import NAMES, Hypothesis, Observation, common_cause
from .sums import NARROW
from .wrong_settings import count_lists, or_simple_threshold, wrong_settings

SLACK = 1e-5
"""The relative difference up to which two numbers are equal."""

BY_KIND = ("clipped twice", "need_clip", "rows")
"""Two causes of one of these kinds are the same cause, even if their sentences differ."""

LEFT_OUT = ("left out", "not scaled", "repeated parameter")
"""Causes that affect only some gradients."""

ALSO_HYPOTHESES = ("not clipped", "another eps of the clip")
"""If `shown_in_tensors` returns one of these causes, still test the hypotheses, which can have the same effect."""

LESS_LIKELY = ("float32", "touched", "16 bits", "scaled gradients")
"""Causes that are reported only if no wrong setting explains the results."""

SETTINGS = (
    "another condition",
    "another eps of the clip",
    "another norm type",
    "another threshold",
    "scaled gradients",
)
"""Causes that do not depend on the dtype of the gradients."""

OF_COEFFICIENT = (
    "another condition",
    "another eps of the clip",
    "another threshold",
    "coefficient",
    "scaled gradients",
)
"""Causes of a wrong coefficient. One call alone cannot distinguish these causes."""

ROUNDING = ("float32", "")
"""Causes that depend on the order in which numbers are added."""


INTEGERS: Mapping[str, Callable[[float], int]] = {
    "as if the call used the integer part of the threshold": int,
    "as if the threshold were rounded to an integer": round,
}


class Diagnosis(NamedTuple):
    cause: Cause | None = None
    contradiction: str = ""  # why a cause was rejected


class _Call:
    def __init__(self, name: str, call: Observation) -> None:
        self.name, self.call = name, call

    @cached_property
    def dtypes(self) -> frozenset[str]:
        """float64 counts as float32, because most causes affect both alike."""
        dtypes = (gradient.dtype for gradient in self.call.counted.values())
        return frozenset("float32" if dtype == "float64" else dtype for dtype in dtypes)

    @cached_property
    def cause(self) -> Cause | None:
        return call_causes.find_cause(self.call)

    @cached_property
    def shows_cause(self) -> bool:
        shown = call_causes.swapped(self.call) or call_causes.shown_in_tensors(self.call)
        return shown is not None and shown.kind not in ALSO_HYPOTHESES

    @cached_property
    def limits(self) -> Sequence[ElementLimit]:
        return element_limits(self.call)

    @cached_property
    def slack(self) -> float:
        narrow = [4 * 2.0 ** (1 - FORMATS[dtype].precision) for dtype in self.dtypes if dtype in NARROW]
        return max([SLACK, *narrow])

    @cached_property
    def possible(self) -> Sequence[Hypothesis]:
        call = self.call
        if not call.scalings:
            return list(hypotheses.common_causes(call, self.slack))
        unclipped = Hypothesis("not clipped", call_causes.NOT_CLIPPED, coefs=[1.0] * len(call.before))
        twice = Hypothesis("clipped twice", hypotheses.TWICE, coefs=[coef * coef for coef in call.expected_coefs])
        common = list(hypotheses.common_causes(call, self.slack))
        # The call may return the correct norm, but clip by another norm.
        by_norms = [each for each in common if each.norms and not each.coefs]
        common += _at_thresholds(call)
        others = (
            each._replace(returned=(), is_rare=each.kind == "16 bits") for each in by_norms if each.returned is None
        )
        return [twice, unclipped, *common, *others]

    @cached_property
    def possible_by_mistake(self) -> Mapping[tuple[str, str, bool], list[Hypothesis]]:
        groups = defaultdict[tuple[str, str, bool], list[Hypothesis]](list)
        for hypothesis in self.possible:
            groups[_mistake(hypothesis)].append(hypothesis)
        return groups

    @cached_property
    def is_regular(self) -> bool:
        call = self.call
        if call_causes.forms_differ(call) or call.by not in ("global", "per tensor", "per group"):
            return False
        numbers = [n for n in (call.norm, call.expected_norm) if n is not None]
        tensors = [tensor for _, *tensors in call.sides() for tensor in tensors]
        are_finite = all(np.isfinite(tensor.values()).all() for tensor in tensors)
        return are_finite and all(map(math.isfinite, numbers)) and bool(call.counted)

    @property
    def is_single(self) -> bool:
        return len(self.call.counted) == 1

    @cached_property
    def is_correct(self) -> bool:
        return self.call.explains(Hypothesis(), self.slack)

    def can_judge(self, other: _Call) -> bool:
        """Return whether a result of this call can contradict a cause that explains the result of `other`."""
        here, there = self.call, other.call
        settings = [(each.by, each.p, each.eps, each.passed_norm is None) for each in (here, there)]
        # frameworks have separate code for sparse gradients and for repeated gradients
        is_special = _has_sparse(here) > _has_sparse(there) or _has_repeated(here) > _has_repeated(there)
        return self.is_regular and settings[0] == settings[1] and not is_special

    def is_visible(self, hypothesis: Hypothesis) -> bool:
        call = self.call
        pairs = zip(call.coefficients(hypothesis), call.expected_coefs, strict=False)
        if call.scalings and any(abs(coef - right) > 4 * self.slack * right for coef, right in pairs):
            return True
        returned = hypothesis.norms[:1] if hypothesis.returned is None else hypothesis.returned
        expected = call.expected_norm
        if not returned or expected is None or call.norm is None:
            return False
        return all(abs(n - expected) > 4 * self.slack * expected for n in returned)


def _at_thresholds(call: Observation) -> Iterator[Hypothesis]:
    threshold = call.threshold
    for sentence, convert in INTEGERS.items() if threshold < math.inf else ():
        if threshold != convert(threshold):
            yield Hypothesis("another threshold", sentence, threshold=float(convert(threshold)))
    if threshold == 0:
        sentence = "as if a threshold of 0 switched clipping off"
        yield Hypothesis("not clipped", sentence, coefs=[1.0] * len(call.before))


def consistent_causes(
    calls: Mapping[str, Observation],
    differing: Sequence[str],
    is_known: Callable[[str, Cause], bool] = lambda name, cause: False,
) -> dict[str, Diagnosis]:
    """is_known: Whether a difference with this cause is known, so that it does not help to explain others."""
    with np.errstate(all="ignore"):
        everything = {name: _Call(name, call) for name, call in calls.items()}
        failing = [everything[name] for name in differing]
        diagnoses = {each.name: _diagnose(each, list(everything.values()), failing) for each in failing}
    regular = {each.name for each in failing if each.is_regular}
    causes = {name: each.cause for name, each in diagnoses.items() if each.cause and name in regular}
    kinds = Counter(cause.kind for name, cause in causes.items() if not is_known(name, cause))
    others = enumeration([f"in {counted(count, 'other case')} the cause is {kind!r}" for kind, count in kinds.items()])
    return {
        name: Diagnosis(None, others) if others and each == Diagnosis() and name in regular else each
        for name, each in diagnoses.items()
    }


def _diagnose(this: _Call, everything: Sequence[_Call], failing: Sequence[_Call]) -> Diagnosis:
    diagnosis = _diagnose_among(this, everything, failing)
    rest = [each for each in everything if each.is_single != this.is_single and each.is_regular]
    comparable = [each for each in rest if not each.shows_cause]
    if diagnosis.cause or not comparable or not all(each.is_correct for each in comparable):
        return diagnosis
    alike, failing_alike = ([each for each in calls if each not in rest] for calls in (everything, failing))
    cause = _diagnose_among(this, alike, failing_alike).cause
    lists = f"only in lists of {'one gradient' if this.is_single else 'several gradients'}"
    return Diagnosis(Cause(cause.kind, f"{cause.sentence}, {lists}")) if cause else diagnosis


def _diagnose_among(this: _Call, everything: Sequence[_Call], failing: Sequence[_Call]) -> Diagnosis:
    cause = this.cause
    others = [each for each in everything if each is not this and each.can_judge(this)]
    if not this.is_regular:
        return Diagnosis(cause)
    if this.shows_cause:
        return Diagnosis(cause)
    contradictions: list[str] = []
    precise = [each for each in others if each.dtypes == this.dtypes or each.dtypes.isdisjoint(NARROW)]
    if cause_of_limits := _limit_cause(this, precise):
        return Diagnosis(cause_of_limits)
    correct = [each.call for each in precise if each.is_correct]
    differing = [each.call for each in precise if not each.is_correct]
    for fitting in _fitting(this, is_alone=not others):
        remaining = []
        for each in fitting:
            explained = [other for other in failing if other.can_judge(this) and _is_explained(other, this, each)]
            if opposing := _opposing([other for other in others if _contradicts(other, this, each)], explained):
                contradictions.append(f"{this.call.sentence_of(each)}, but the case {opposing.name!r} contradicts this")
            elif each.kind not in LEFT_OUT or any(map(_has_effect, explained)):
                remaining.append((len(explained), each))
        if remaining:
            best = _best(remaining, this.call)
            rest = [each for each in failing if each.can_judge(this) and not each.shows_cause]
            if best and best.kind == "scaled gradients" and max(count for count, _ in remaining) < len(rest):
                conditions = wrong_settings(this.call, correct, differing)
                best = next((each for each in conditions if each.kind == "another condition"), best)
            return Diagnosis(best and or_simple_threshold(best, this.call, correct, differing))
    if not others:
        return Diagnosis(cause)
    if _is_by_value(this, others):
        return Diagnosis(call_causes.BY_VALUE)
    if cause and cause.kind in LESS_LIKELY and not contradictions:
        return Diagnosis(cause)
    if wrong_setting := next(wrong_settings(this.call, correct, differing), None):
        return Diagnosis(wrong_setting)
    if cause and not contradictions:
        contradictions = [f"{cause.sentence}, but the other cases contradict this"]
    return Diagnosis(None, next(iter(contradictions), ""))


def _limit_cause(this: _Call, others: Sequence[_Call]) -> Cause | None:
    possible = dict.fromkeys(limit for each in (this, *others) for limit in each.limits)
    return limit_cause([limit for limit in possible if all(limit.explains(each.call) for each in (this, *others))])


def _is_by_value(this: _Call, others: Sequence[_Call]) -> bool:
    agreeing = [this.call, *(each.call for each in others if each.is_correct)]
    is_shown = any(each.cause == call_causes.BY_VALUE for each in others)
    return is_shown and all(map(call_causes.is_clipped_by_value, agreeing))


def _opposing(contradicting: Sequence[_Call], explained: Sequence[_Call]) -> _Call | None:
    correct = next((each for each in contradicting if each.is_correct), None)
    lists = [count_lists(each.call for each in calls) for calls in (contradicting, explained)]
    return correct or (contradicting[0] if contradicting and lists[0] >= lists[1] > 0 else None)


def _has_effect(this: _Call) -> bool:
    call = this.call
    is_right = call.norm_is_expected or call.norm_fits([call.expected_norm], this.slack)
    return not is_right or not all(each.is_unchanged for each in call.scalings.values())


def _has_sparse(call: Observation) -> bool:
    return any(isinstance(gradient, Sparse) for gradient in call.before)


def _has_repeated(call: Observation) -> bool:
    return max(call.times, default=1) > 1


def _best(fitting: Sequence[tuple[int, Hypothesis]], call: Observation) -> Cause | None:
    most = max(explained for explained, _ in fitting)
    best = [each for explained, each in fitting if explained == most]
    return common_cause(best, call)


def _fitting(this: _Call, *, is_alone: bool) -> Iterator[Sequence[Hypothesis]]:
    call = this.call
    for slack in call.slacks if is_alone else (*call.slacks, this.slack):
        if call.expected_fits(slack):
            return
        if fitting := call.fitting(this.possible, slack):
            yield fitting
    yield [each for each in hypotheses.scaled_gradients(call) if call.fits(each, this.slack)]


def _transferred(hypothesis: Hypothesis, source: _Call, target: _Call) -> list[Hypothesis]:
    if hypothesis.kind in ROUNDING:
        return []
    same = hypothesis.kind in LEFT_OUT and not hypothesis.coefs and hypothesis.about
    predictions = _without_the_same(hypothesis, source, target) if same else []
    if hypothesis.kind == "scaled gradients" and not any(
        each.sentence == hypothesis.sentence for each in source.possible
    ):
        return _scaled_as_much(hypothesis, source, target)
    alike = [] if NAMES in hypothesis.sentence else target.possible_by_mistake.get(_mistake(hypothesis), [])
    return [*predictions, *alike]


def _mistake(hypothesis: Hypothesis) -> tuple[str, str, bool]:
    by_kind = hypothesis.kind in BY_KIND and (hypothesis.kind != "clipped twice" or bool(hypothesis.about))
    sentence = hypothesis.sentence.partition(OR_WITH_EPS)[0].partition(AND_WITH_EPS)[0]
    return hypothesis.kind, "" if by_kind else sentence, bool(hypothesis.about)


def _without_the_same(hypothesis: Hypothesis, source: _Call, target: _Call) -> list[Hypothesis]:
    here, there, left = source.call, target.call, hypothesis.about
    same = [number for number in there.counted if any(_is_same(here, each, there, number) for each in left)]
    if len(same) != len(left):
        return []
    return [_without(same, hypothesis, there), *_without_from_end(hypothesis, source, target)]


def _without_from_end(hypothesis: Hypothesis, source: _Call, target: _Call) -> list[Hypothesis]:
    there = target.call
    numbers = [len(there.before) - len(source.call.before) + each for each in hypothesis.about]
    are_left_out = hypothesis.kind in LEFT_OUT and bool(numbers)
    return [_without(numbers, hypothesis, there)] if are_left_out and min(numbers) >= 0 else []


def _without(numbers: Sequence[int], hypothesis: Hypothesis, call: Observation) -> Hypothesis:
    make = twice if hypothesis.kind == "repeated parameter" else without
    counted = [number for number in numbers if number in call.counted]  # leaving out None has no effect
    return hypothesis._replace(norms=make(call, counted, "").norms)


def _is_same(here: Observation, number: int, there: Observation, other: int) -> bool:
    names = here.names[number : number + 1] == there.names[other : other + 1]
    return number == other and names and here.counted[number].shape == there.counted[other].shape


def _scaled_as_much(hypothesis: Hypothesis, source: _Call, target: _Call) -> list[Hypothesis]:
    factor, there = hypothesis.coefs[0] / source.call.expected_coefs[0], target.call
    if not all(each.unchanged_is_expected for each in there.scalings.values()):
        return []
    norms = [there.total_norm, there.total_norm * factor]
    return [hypothesis._replace(returned=norms, coefs=[factor * coef for coef in there.expected_coefs])]


def _contradicts(other: _Call, this: _Call, hypothesis: Hypothesis) -> bool:
    if other.dtypes != this.dtypes and hypothesis.kind not in SETTINGS:  # it may be a mistake for one dtype alone
        return False
    predictions = _transferred(hypothesis, this, other)
    if not predictions or any(other.call.explains(each, other.slack) for each in predictions):
        return False
    if hypothesis.kind in LEFT_OUT and other.cause and other.cause.kind in LEFT_OUT:  # it may leave out more gradients
        return False
    return all(map(other.is_visible, predictions))


def _is_explained(other: _Call, this: _Call, hypothesis: Hypothesis) -> bool:
    if other is this:
        return True
    if other.shows_cause:
        return False
    # the predictions for 16 bits differ little, so a larger slack cannot distinguish them
    slack = SLACK if hypothesis.kind == "16 bits" else other.slack
    explains = partial(other.call.explains, slack=slack)
    predictions = [*_transferred(hypothesis, this, other), *_without_from_end(hypothesis, this, other)]
    return not explains(Hypothesis()) and any(map(explains, predictions))
