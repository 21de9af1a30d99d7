"""Compare the user's functions of different frameworks with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from ...tensors.types import Dense
from ..call_outcome import CallOutcome
from ..known.entries import size_in_words
from ..known.measure import measured_difference, values
from ..results import NativeResult, OwnPair
from ..suite.case import Case
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
            detail, size = "the list of gradients is long, so each result was compared only with the exact result", None
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
        return ("" if left.raised and right.raised else "only one function raises an error"), None
    sizes = []
    for name, a, b in (("norm", _norm(left), _norm(right)), ("gradients", left.gradients, right.gradients)):
        if a is None or b is None:
            continue
        if [each and each.array.shape for each in a] != [each and each.array.shape for each in b]:
            return "the functions return gradients of different shapes", None
        inputs = values(case.clipped_inputs) if name == "gradients" else []
        distances = [measured_difference(*pair, inputs) for pair in ((values(a), values(b)), (values(b), values(a)))]
        if not all(distance.is_finite for distance in distances):
            return f"only one function returns inf or NaN in the {name}", None
        sizes.append(min(distance.size for distance in distances))  # relative to the larger result
    return "", max(sizes, default=0.0)


def _norm(outcome: CallOutcome) -> Sequence[Dense | None] | None:
    return None if outcome.norm is None else [Dense(outcome.norm.dtype, outcome.norm.array.reshape(-1))]


def in_words(pair: OwnPair) -> str:
    return ", ".join(filter(None, (pair.verdict, f"by {size_in_words(pair.size)}" if pair.size else "", pair.detail)))
