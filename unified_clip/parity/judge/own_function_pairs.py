"""Compare the user's functions of different frameworks with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from ...tensors.types import Dense
from ..call_outcome import CallOutcome
from ..known.entries import size_in_words
from ..known.measure import measured_difference, values
from ..results import CaseResult, NativeResult, OwnPair
from ..suite.case import Case
from ..suite.public_calls import CALLS
from ..suite.schema import FrameworkTable


def compare(
    case: Case,
    results: Mapping[str, NativeResult],
    outcomes: Mapping[str, CallOutcome | None],
    frameworks: Mapping[str, FrameworkTable],
) -> list[OwnPair]:
    own = [name for name, result in results.items() if result.is_users and not result.is_failure]
    pairs = []
    for left, right in combinations(own, 2):
        verdicts = {results[left].verdict, results[right].verdict}
        a, b = outcomes[left], outcomes[right]
        if a is None or b is None:
            detail, size = "the list of gradients is long, so each result was compared with the exact result", None
            verdict = next((each for each in ("different", "known", "close") if each in verdicts), "equal")
        else:
            detail, size = _difference(case, a, b)
            # each result can differ this much from the exact result
            tolerance = frameworks[left].tolerance + frameworks[right].tolerance
            is_known = "known" in verdicts and "different" not in verdicts
            verdict = "known" if is_known else "different"
            if not detail and (size or 0.0) <= tolerance:
                verdict = "close" if size else "equal"
        fields = {"left": left, "right": right, "verdict": verdict, "detail": detail, "size": size}
        pairs.append(OwnPair.model_validate(fields))
    return pairs


def _difference(case: Case, left: CallOutcome, right: CallOutcome) -> tuple[str, float | None]:
    if left.raised or right.raised:
        return ("" if left.raised and right.raised else "only one of them raises an error"), None
    sizes = []
    for name, a, b in (("norm", _norm(left), _norm(right)), ("gradients", left.gradients, right.gradients)):
        if a is None or b is None:
            continue
        if [each and each.array.shape for each in a] != [each and each.array.shape for each in b]:
            return "they return gradients of different shapes", None
        distance = measured_difference(values(a), values(b), values(case.clipped_inputs) if name == "gradients" else [])
        if not distance.is_finite:
            return f"only one of them has inf or NaN in the {name}", None
        sizes.append(distance.size)
    return "", max(sizes, default=0.0)


def _norm(outcome: CallOutcome) -> Sequence[Dense | None] | None:
    return None if outcome.norm is None else [Dense(outcome.norm.dtype, outcome.norm.array.reshape(-1))]


class _Own(NamedTuple):
    framework: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.text} ({self.framework}, {self.name})"


def uncompared(cases: Sequence[CaseResult], frameworks: Mapping[str, FrameworkTable]) -> list[str]:
    ran = {(name, case.call) for case in cases for name, each in case.natives.items() if each.is_users}
    own = [
        _Own(framework, name, text)
        for framework, table in frameworks.items()
        for name, text in table.functions.items()
        if (framework, name) in ran
    ]
    pairs = {(frozenset((pair.left, pair.right)), case.call) for case in cases for pair in case.own_pairs}
    alone = [each for each in own if not any(each.framework in both and each.name == name for both, name in pairs)]
    compared = {both for both, _ in pairs}
    without = [
        each
        for each in alone
        if {other.framework for other in alone} - {each.framework}
        or any(frozenset((each.framework, other.framework)) not in compared for other in own if _differ(each, other))
    ]
    counts = Counter(each.name for each in own)
    notes = []
    if listed := ", ".join(str(each) for each in without if counts[each.name] > 1):
        notes.append(f"{NOT_COMPARED}: {listed}. No case has the results of two of these functions.")
    if others := [each for each in without if counts[each.name] == 1]:
        notes.append(f"{NOT_COMPARED}: {', '.join(map(str, others))}. {_remedy(others, own)}")
    return notes


def _differ(left: _Own, right: _Own) -> bool:
    return left.framework != right.framework


NOT_COMPARED = "Your functions that were not compared with each other"


def _remedy(alone: Sequence[_Own], own: Sequence[_Own]) -> str:
    rule = "Functions of two frameworks are compared if both are listed under one name."
    page = "See docs/own-functions.md#your-functions-with-each-other."
    pairs = ((one, other) for one in alone for other in own if _differ(one, other) and _kind(one) == _kind(other))
    first, other = next(pairs, (None, None))
    if not (first and other):
        return f"{rule} {page}"
    if first.name != "clip_by_global_norm" and other.name == "clip_by_global_norm":
        first, other = other, first
    return (
        f"{rule} For example, write a function that calls {other.text} and has the signature of {first.name}, and add "
        f'under [frameworks.{other.framework}.functions]: {first.name} = "FILE.py:FUNCTION". {page}'
    )


def _kind(function: _Own) -> tuple[bool, bool, bool]:
    call = CALLS[function.name]
    return call.style == "measure", call.by_total_norm, call.by_value


def in_words(pair: OwnPair) -> str:
    return ", ".join(filter(None, (pair.verdict, f"by {size_in_words(pair.size)}" if pair.size else "", pair.detail)))
