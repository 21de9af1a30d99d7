"""Find the cause of a difference: test known mistakes on the numbers.

Mistakes that show in the tensors come first: results in another order, NaN, zeros, unchanged gradients. Then the rule
is computed with each mistake of `hypotheses`. A mistake is the cause if it gives the returned norm and its coefficients
explain every element: bit for bit, or else within `CLOSE`, as frameworks' own functions round. The correct rule must
not explain the numbers as well. If no mistake fits, or two of different kinds do, the cause is unknown.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...tensors.arithmetic import FORMATS
from ...tensors.types import digest
from ..known.entries import NativeDeviation
from ..outcome import CallOutcome, Failure
from ..suite.cases import Case
from . import hypotheses
from .evidence import Observation
from .hypotheses import Hypothesis
from .oracle import Expected
from .traces import EXACT
from .verdict import Verdict

CLOSE = 2.0**-20
"""Relative error of a few roundings to float32."""

CLEARLY = 8
"""Factor by which the correct rule must fit worse than the cause."""


class Cause(NamedTuple):
    """The cause of a difference."""

    kind: str
    """A word or two, the same for all causes of a kind."""

    sentence: str


def explained(verdict: Verdict, case: Case, due: Expected, outcome: CallOutcome | Failure) -> Verdict:
    """Return the verdict with the cause of the difference, if it is known."""
    if verdict.kind != "different" or isinstance(outcome, Failure):
        return verdict
    cause = diagnose(case, due, outcome)
    if cause is None:
        return verdict
    return dataclasses.replace(verdict, cause=cause.kind, detail=f"{verdict.detail}; {cause.sentence}")


def native_explained(difference: NativeDeviation, case: Case, due: Expected, outcome: CallOutcome) -> NativeDeviation:
    """Return the deviation of a framework's own function with its cause, if it is known."""
    cause = diagnose(case, due, outcome) if difference.kind else None
    return dataclasses.replace(difference, cause=cause.sentence) if cause else difference


def diagnose(case: Case, due: Expected, found: CallOutcome) -> Cause | None:
    """Return the cause of a difference. None if nothing differs, or the cause is not known."""
    if found.raised or case.raises or case.call_form.gradients_for_parameters:
        return None
    evidence = Observation(case, due, found)
    with np.errstate(all="ignore"):  # what overflows is part of what is looked for
        return next(filter(None, (look(evidence) for look in _looks(evidence))), None)


def _looks(evidence: Observation) -> Iterator[Callable[[Observation], Cause | None]]:
    """Yield the checks, in order."""
    if evidence.due.gradients and evidence.found.gradients:
        yield from (_moved, _without_result)
    if _has_form(evidence.due, evidence.found) and not _is_due(evidence):
        yield from (_beyond_range, _nan, _zeros, _not_clipped)
        yield _by_value if evidence.case.call.by_value else _by_the_rule


def _has_form(due: Expected, found: CallOutcome) -> bool:
    """Return whether the number, dtypes and shapes of the tensors are as expected."""
    forms = [[t and (t.dtype, t.shape) for t in side or []] for side in (due.gradients, found.gradients)]
    return (due.gradients is None) == (found.gradients is None) and forms[0] == forms[1]


def _is_due(evidence: Observation) -> bool:
    return evidence.norm_is_due and all(trace.is_due for trace in evidence.traces.values())


# -- what shows in the tensors


def _moved(evidence: Observation) -> Cause | None:
    """Check for correct results in another order."""
    sides = [[digest([tensor]) for tensor in side or []] for side in (evidence.due.gradients, evidence.found.gradients)]
    if sorted(sides[0]) != sorted(sides[1]) or not evidence.norm_is_due:
        return None
    places = [number for number, (due, found) in enumerate(zip(*sides, strict=True)) if due != found]
    if not places:
        return None
    what = "are swapped" if len(places) == 2 else "are in another order"
    return Cause("swapped", f"the results of {evidence.named(places)} {what}")


def _without_result(evidence: Observation) -> Cause | None:
    """Check for gradients without a result."""
    due, found = evidence.due.gradients or [], evidence.found.gradients or []
    if len(found) == len(due):
        lost = [number for number, (a, b) in enumerate(zip(due, found, strict=True)) if a is not None and b is None]
    else:
        rest = [digest([tensor]) for tensor in found]
        lost = [number for number, tensor in enumerate(due) if not _taken(rest, digest([tensor]))]
        lost = lost if not rest else []  # or else the others are not right either
    return Cause("left out", f"nothing came back for {evidence.named(lost)}") if lost else None


def _taken(digests: list[str], first: str) -> bool:
    """Return whether a list starts with a digest, and remove it."""
    begins = digests[:1] == [first]
    del digests[: int(begins)]
    return begins


def _nan(evidence: Observation) -> Cause | None:
    """Check for unexpected and for missing NaN."""
    extra = {number: trace for number, trace in evidence.traces.items() if trace.nan}
    lacking = [number for number, trace in evidence.traces.items() if trace.lacks_nan]
    is_infinite = evidence.case.call.by_total_norm and not evidence.case.call.by_value and evidence.n == math.inf
    if is_infinite and lacking:
        return Cause("inf", "as when an infinite norm gives a coefficient of 0, where every element is to be NaN")
    if lacking:
        return Cause("NaN", f"NaN does not spread to {evidence.named(lacking)}, as it should")
    if extra and all(evidence.traces[number].is_nan for number in evidence.counted):
        if is_infinite:
            return Cause("inf", "as when an infinite norm makes every element NaN, where the coefficient is to be 0")
        return Cause("NaN", "every element is NaN, and none should be")
    if extra:
        number, first = next(iter(extra.items()))
        some = f"{first.nan} of the {first.size} elements of {evidence.named([number])}, the first at {first.first_nan}"
        return Cause("NaN", f"NaN in {evidence.named(extra)}, where none should be: {some}")
    if evidence.norm_is_due or evidence.norm is None or evidence.due_norm is None:
        return None
    if math.isnan(evidence.norm):
        return Cause("NaN", "the norm is NaN, and should not be")
    return Cause("NaN", "the norm does not show the NaN in the gradients") if math.isnan(evidence.due_norm) else None


def _beyond_range(evidence: Observation) -> Cause | None:
    """Check for squares or products outside the range of the format that they were computed in."""
    norm, due = evidence.norm, evidence.due_norm
    is_narrow = any(gradient is not None and gradient.dtype == "float16" for gradient in evidence.given)
    narrowest = FORMATS["float16" if is_narrow else "float32"]
    if norm == math.inf and due and due < math.inf and due * due >= 2.0**narrowest.max_exponent:
        return Cause(
            "overflow", f"the norm is inf where {due:.6g} is due: squares beyond the range of the gradients' dtype"
        )
    if norm == 0 and due and due * due < 2.0**narrowest.min_exponent:
        return Cause("underflow", f"the norm is 0 where {due:.6g} is due: squares too small for the gradients' dtype")
    infinite = [number for number, trace in evidence.traces.items() if trace.is_infinite]
    if infinite:
        return Cause("overflow", f"infinite elements in {evidence.named(infinite)}, where finite ones are due")
    return None


def _zeros(evidence: Observation) -> Cause | None:
    """Check for zeros of the other sign, and no other difference."""
    apart = [number for number, trace in evidence.traces.items() if not trace.is_due]
    if not apart or not evidence.norm_is_due:
        return None
    if any(evidence.traces[number].distance for number in apart):
        return None
    return Cause("zeros", f"zeros of the other sign in {evidence.named(apart)}, and no other difference")


def _not_clipped(evidence: Observation) -> Cause | None:
    """Check for gradients that are all unchanged, and should not be."""
    as_given = all(trace.is_given for trace in evidence.traces.values())
    if not as_given or evidence.follows or not (evidence.norm in (None, evidence.n) or evidence.norm_is_due):
        return None
    return Cause("not clipped", "nothing was clipped: the gradients came back as they were given")


# -- clipping by value


def _by_value(evidence: Observation) -> Cause | None:
    low, high = evidence.case.call.bounds(evidence.case.arguments)
    ends = [
        (np.nanmin(f.values()), np.nanmax(f.values())) for *_, f in evidence.sides() if not np.isnan(f.values()).all()
    ]
    bounds = float(min(ends)[0]), float(max(end for _, end in ends))
    for _, given, _, found in evidence.sides():
        numbers = given.values()
        clamped = np.where(np.isnan(numbers), numbers, np.clip(numbers, *bounds))
        if not np.array_equal(clamped, found.values(), equal_nan=True):
            return None
    due = f"{low:.6g} and {high:.6g} are due"
    return Cause("threshold", f"as with bounds of {bounds[0]:.6g} and {bounds[1]:.6g} where {due}")


# -- clipping by norm


def _by_the_rule(evidence: Observation) -> Cause | None:
    """Return the only kind of mistake that fits."""
    for slack in (EXACT, CLOSE):
        if _due_fits(evidence, CLEARLY * slack):
            break
        if found := [each for each in hypotheses.all_of(evidence, slack) if fits(evidence, each, slack)]:
            alone = len({each.kind for each in found}) == 1 and found[0].kind
            return Cause(found[0].kind, found[0].sentence) if alone else None
        if any(explains(evidence, each, slack) for each in hypotheses.all_of(evidence, slack) if each.room):
            return _touched(evidence)  # rounding hides whether it is this one, or the correct rule
    last = next((each for each in hypotheses.computed_hypotheses(evidence) if fits(evidence, each, EXACT)), None)
    return Cause(last.kind, last.sentence) if last else _touched(evidence)


def fits(evidence: Observation, hypothesis: Hypothesis, slack: float) -> bool:
    """Return whether a hypothesis explains the numbers, and the correct rule does not."""
    by_norm = [n for n in hypothesis.norms if n != evidence.due_norm]
    is_shown_by_norm = not evidence.norm_is_due and bool(by_norm) and _norm_fits(evidence, by_norm, slack)
    if not is_shown_by_norm and (evidence.follows or _due_fits(evidence, CLEARLY * hypothesis.room)):
        return False
    return explains(evidence, hypothesis, slack)


def explains(evidence: Observation, hypothesis: Hypothesis, slack: float) -> bool:
    """Return whether a hypothesis explains the numbers. The correct rule may explain them too."""
    if not _norm_fits(evidence, hypothesis.norms or [evidence.n], slack):
        return False
    coefficients = enumerate(hypothesis.coefficients() if evidence.traces else [])
    room = max(slack, hypothesis.room)
    return all(evidence.traces[number].allows(c, room) for number, c in coefficients if number in evidence.traces)


def _due_fits(evidence: Observation, slack: float) -> bool:
    """Return whether the correct rule explains the numbers."""
    norm_fits = evidence.norm is None or _norm_fits(evidence, [evidence.due_norm], slack)
    return norm_fits and all(trace.distance <= slack for trace in evidence.traces.values())


def _norm_fits(evidence: Observation, norms: Sequence[float | None], slack: float) -> bool:
    norm = evidence.norm
    return norm is None or any(n is not None and abs(n - norm) <= slack * n for n in norms)


def _touched(evidence: Observation) -> Cause | None:
    """Check for gradients within the threshold that changed a little, and no other difference."""
    wrong = {number: trace for number, trace in evidence.traces.items() if not trace.is_due}
    if not wrong or not all(trace.due_is_given for trace in wrong.values()):
        return None
    size = max(trace.distance for trace in wrong.values())
    if size > CLOSE or not _norm_fits(evidence, [evidence.n], EXACT):
        return None
    return Cause("touched", f"{evidence.named(wrong)} should come back untouched, and changed by up to {size:.1e}")
