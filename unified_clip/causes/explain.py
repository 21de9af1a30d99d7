"""Name the cause of wrong results: the simplest hypothesis that predicts the results of all calls of a function."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .._kit.display import counted, enumeration
from .cause import Cause
from .facts import find_fact
from .norms import OF_COUNT, not_scaled, other_norms
from .observation import IN_FLOAT32, NARROW, SLACK, Hypothesis, Observation
from .rounding import float32_error, in_16_bits, in_float32, steps_in_16_bits
from .rules import other_rules
from .scaling import CLOSE, EXACT
from .settings import Candidate, common_eps, count_lists, revealed_numbers

UNCHANGED = ("not clipped", "not scaled")
"""Causes that unchanged gradients show."""

SETTINGS = (
    "another condition",
    "another rule",
    "another eps of the clip",
    "another norm type",
    "another threshold",
    "scaled gradients",
)
"""Causes that do not depend on the dtype of the gradients."""

ROUNDING = ("float32", "")
"""Causes that depend on the order in which numbers are added."""

FEW_DIGITS = 2
"""A number is named beside another cause only if it has few digits."""

MOST_SENTENCES = 5
"""The largest number of distinct sentences in one cause. If more sentences fit, the cause is unknown."""


class Diagnosis(NamedTuple):
    cause: Cause | None = None
    contradiction: str = ""  # why a cause was rejected


class _Case:
    def __init__(self, name: str, call: Observation) -> None:
        self.name, self.call = name, call

    @cached_property
    def fact(self) -> Cause | None:
        return find_fact(self.call)

    @cached_property
    def is_correct(self) -> bool:
        return self.call.explains(Hypothesis(), self.call.slack)

    @cached_property
    def hypotheses(self) -> Mapping[str, Sequence[Hypothesis]]:
        """For each variation of the computation, its possible results."""
        call, groups = self.call, defaultdict[str, list[Hypothesis]](list)
        if call.has_one_form and call.by != "value":
            for hypothesis in _hypotheses(call):
                groups[hypothesis.key or hypothesis.sentence].append(hypothesis)
        return groups

    def can_judge(self, other: _Case) -> bool:
        """Return whether a result of this case can contradict a cause that explains the result of `other`."""
        here, there = self.call, other.call
        is_special = any(a > b for a, b in zip(here.is_special, there.is_special, strict=True))
        return here.is_regular and here.settings == there.settings and not is_special

    def predictions(self, candidate: Candidate) -> Sequence[Hypothesis]:
        if candidate.predict:
            return [candidate.predict(self.call)]
        hypothesis = candidate.hypothesis
        is_lost = hypothesis.kind in ROUNDING
        return [] if is_lost else self.hypotheses.get(hypothesis.key or hypothesis.sentence, [])


def _hypotheses(call: Observation) -> Iterator[Hypothesis]:
    yield from other_rules(call)
    yield from other_norms(call)
    if call.by == "per slice":
        return
    yield from common_eps(call)
    yield from not_scaled(call)
    yield from in_float32(call)
    yield from in_16_bits(call)


def find_cause(call: Observation) -> Cause | None:
    """Return None if the call is correct, or if the cause is unknown."""
    if call.has_one_form and call.norm_is_expected and not call.wrong:
        return None
    return find_causes({"": call}, [""])[""].cause


def find_causes(
    calls: Mapping[str, Observation],
    differing: Sequence[str],
    is_known: Callable[[str, Cause], bool] = lambda name, cause: False,
) -> dict[str, Diagnosis]:
    """is_known: Whether a difference with this cause is known, so that it does not help to explain others."""
    with np.errstate(all="ignore"):  # overflow is one of the causes
        cases = {name: _Case(name, call) for name, call in calls.items()}
        failing = [cases[name] for name in differing]
        diagnoses = {each.name: _diagnose(each, list(cases.values()), failing) for each in failing}
    regular = {each.name for each in failing if each.call.is_regular}
    causes = {name: each.cause for name, each in diagnoses.items() if each.cause and name in regular}
    kinds = Counter(cause.kind for name, cause in causes.items() if not is_known(name, cause))
    others = enumeration([f"in {counted(count, 'other case')} the cause is {kind!r}" for kind, count in kinds.items()])
    return {
        name: Diagnosis(None, others) if others and each == Diagnosis() and name in regular else each
        for name, each in diagnoses.items()
    }


def _diagnose(this: _Case, everything: Sequence[_Case], failing: Sequence[_Case]) -> Diagnosis:
    if this.fact or not this.call.has_one_form:
        return Diagnosis(this.fact)
    others = [each for each in everything if each is not this and each.can_judge(this)] if this.call.is_regular else []
    failing = [each for each in failing if each in others]
    contradictions: list[str] = []
    best: tuple[int, Cause | None] | None = None
    for slack, candidates in _enumerated(this, others):
        accepted = _accepted(this, candidates, slack, others, failing, contradictions)
        if accepted:
            explained = max(count for count, _ in accepted)
            best = explained, _common_cause([each.hypothesis for count, each in accepted if count == explained])
            break
    if not best and not contradictions and (cause := steps_in_16_bits(this.call)):
        return Diagnosis(cause)
    is_clear = this.call.clearly_wrong or not this.call.norm_fits([this.call.expected_norm], SLACK)
    if is_clear:
        numbers = _accepted(
            this, [*_numbers(this, others)], IN_FLOAT32 + this.call.noise, others, failing, contradictions
        )
        if cause := _with_numbers(best, numbers):
            return Diagnosis(cause)
    if best:
        return Diagnosis(best[1])
    cause = None if contradictions else float32_error(this.call) or touched(this.call)
    return Diagnosis(cause, "" if cause else next(iter(contradictions), ""))


def _with_numbers(best: tuple[int, Cause | None] | None, numbers: Sequence[tuple[int, Candidate]]) -> Cause | None:
    """Return the best cause or, if a number explains more results, the number with the fewest digits.

    Add another number of few digits that explains as many results.
    """
    explained, cause = best or (0, None)
    ranked = sorted(numbers, key=lambda each: (each[0], -each[1].is_weak, -each[1].digits), reverse=True)
    for count, each in ranked:
        kind, sentence = each.hypothesis.kind, each.hypothesis.sentence
        if not kind or count < explained:
            continue
        if count > explained and not each.is_weak:
            explained, cause = count, Cause(kind, sentence)
        elif cause and each.digits <= FEW_DIGITS and sentence not in cause.sentence:
            is_first = (kind, cause.kind) == ("another threshold", "another norm type")
            first, second = (sentence, cause.sentence) if is_first else (cause.sentence, sentence)
            return Cause(kind if is_first else cause.kind, f"{first}, or {second}")
    return cause


def _enumerated(this: _Case, others: Sequence[_Case]) -> Iterator[tuple[float, Sequence[Candidate]]]:
    """Yield hypotheses that predict the result of `this`, the most precise ones first."""
    call = this.call
    same = [each for hypotheses in this.hypotheses.values() for each in hypotheses]
    # only the returned norm, or several calls, are evidence for a rare variation
    possible = [Candidate(each) for each in same if others or not each.is_rare or call.shows_norm(each, CLOSE)]
    for slack in (EXACT, CLOSE, *([call.slack] if others else [])):
        if call.is_rounding(slack):
            return
        # several roundings to 16 bits hide an eps
        hidden = "another eps of the clip" if slack > SLACK else ""
        yield slack, [each for each in possible if each.hypothesis.kind != hidden and call.fits(each.hypothesis, slack)]


def _numbers(this: _Case, others: Sequence[_Case]) -> Iterator[Candidate]:
    precise = [each for each in others if each.call.dtypes == this.call.dtypes or each.call.dtypes.isdisjoint(NARROW)]
    correct = [each.call for each in precise if each.is_correct]
    differing = [each.call for each in precise if not each.is_correct]
    yield from revealed_numbers(this.call, correct, differing) if this.call.is_regular else ()


def _accepted(
    this: _Case, candidates: Sequence[Candidate], slack: float, others: Sequence[_Case], failing: Sequence[_Case],
    contradictions: list[str],
) -> Sequence[tuple[int, Candidate]]:  # fmt: skip
    """Return the number of results that each candidate explains, for candidates that no case contradicts."""
    accepted = []
    for each in candidates:
        if this.call.fits(each.hypothesis, slack):
            explained, opposing = _judge(this, each, slack, others, failing)
            if opposing:
                text = f"{each.hypothesis.sentence}, but the case {opposing.name!r} contradicts this"
                contradictions.append(text)
            elif explained:
                accepted.append((explained, each))
    return accepted


def _judge(
    this: _Case, candidate: Candidate, slack: float, others: Sequence[_Case], failing: Sequence[_Case]
) -> tuple[int, _Case | None]:
    """Return the number of results that the candidate explains, and a case that contradicts the candidate."""
    hypothesis, is_fitted = candidate.hypothesis, candidate.predict is not None
    explained, contradicting = [this], []
    is_shown, showing = hypothesis.kind in UNCHANGED or this.call.shows(hypothesis, slack), list[Observation]()
    for other in others:
        predictions = other.predictions(candidate)
        # the predictions for 16 bits differ little, so a larger slack cannot distinguish them
        of_other = SLACK if is_fitted or hypothesis.kind == "16 bits" else other.call.slack
        fitting = [each for each in predictions if other.call.explains(each, of_other)]
        if fitting and other in failing and not other.fact and not other.call.explains(Hypothesis(), of_other):
            explained.append(other)
            showing += [other.call] if any(other.call.shows(each, of_other) for each in fitting) else []
        is_of_dtype = hypothesis.kind in SETTINGS or other.call.dtypes == this.call.dtypes
        is_clear = is_fitted or (is_of_dtype and all(map(other.call.is_visible, predictions)))
        loose = SLACK if is_fitted and not other.is_correct else other.call.slack
        if predictions and is_clear and not any(other.call.explains(each, loose) for each in predictions):
            contradicting.append(other)
    correct = next((each for each in contradicting if each.is_correct), None)
    lists = [count_lists([each.call for each in cases]) for cases in (contradicting, explained)]
    opposing = correct or (contradicting[0] if contradicting and lists[0] >= lists[1] else None)
    # unchanged gradients fit any number that is large enough, so a single list does not show the number for them
    is_shown = is_shown or count_lists(showing) > is_fitted
    return len(explained) if is_shown else 0, opposing


def _common_cause(fitting: Sequence[Hypothesis]) -> Cause | None:
    fitting = [each for each in fitting if not each.is_rare] or fitting
    if len({each.kind for each in fitting}) > 1:  # a number of gradients that was chosen to fit is no evidence
        fitting = [each for each in fitting if each.form != OF_COUNT] or fitting
    kind, kinds = fitting[0].kind, {each.kind for each in fitting}
    if len(kinds) > 1 or not kind:
        return None
    by_set = {frozenset(each.about) or each.form or each.sentence: each.sentence for each in reversed(fitting)}
    sentences = list(dict.fromkeys(reversed(by_set.values())))
    if kind == "16 bits" and len(sentences) > 1:
        what = "the norm or the coefficient" if any(each.coefs for each in fitting) else "the norm"
        dtypes = set(NARROW).intersection(*map(str.split, sentences)) or {"16 bits"}
        return Cause(kind, f"as if {what} were computed in {min(dtypes)}")
    return Cause(kind, ", or ".join(sentences)) if len(sentences) <= MOST_SENTENCES else None


def touched(call: Observation) -> Cause | None:
    if not call.wrong or not all(call.scalings[number].unchanged_is_expected for number in call.wrong):
        return None
    size = max(call.scalings[number].distance for number in call.wrong)
    if size > CLOSE or not call.norm_fits([call.total_norm], EXACT):
        return None
    effect = f"changes elements by up to {size:.1e} times the largest element of the gradient"
    return Cause("touched", f"the call should return {call.names_of(call.wrong)} unchanged, but {effect}")
