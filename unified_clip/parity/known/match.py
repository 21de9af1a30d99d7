"""Decide which entries of known.toml cover the results of a run."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence

from ..judge.verdict import NativeVerdict
from ..results import KnownDifferenceResult, NativeResult
from .entries import (
    KINDS,
    NO_REASON,
    SIZED,
    WITH_NUMBERS,
    KnownDifference,
    NativeDeviation,
    is_match,
    parts,
    size_in_words,
)

Place = tuple[str, str]
"""(framework, case name)"""

Deviation = NativeDeviation | NativeResult

LISTED = "; listed"
"""Separates the description of a difference from its entry in the list of known differences."""


def match_deviations(
    known: Sequence[KnownDifference] | None, deviations: Mapping[Place, Deviation], names: Collection[str] = ()
) -> tuple[dict[Place, tuple[NativeVerdict, str]], list[KnownDifferenceResult]]:
    """Return (judgements, entries).

    `judgements` contains (verdict, problem) for each deviation. The problem is '' if the deviation is a known
    difference. `entries` contains a result for each entry of `known`.

    known: None if the suite has no list of known differences.
    names: The names of all cases of the suite. The default is those of `deviations`.
    """
    judgements: dict[Place, tuple[NativeVerdict, str]] = {}
    for (framework, case), deviation in deviations.items():
        problem = _problem([entry for entry in known or [] if entry.is_for(framework, case, deviation)], deviation)
        judgements[framework, case] = _verdict(deviation, problem), "" if known is None else problem
    unlisted = {place for place, (verdict, _) in judgements.items() if verdict == "different"}
    names = names or {case for _, case in deviations}
    return judgements, [_judge_entry(entry, deviations, unlisted, names) for entry in known or []]


def _verdict(deviation: Deviation, problem: str) -> NativeVerdict:
    if problem:
        return "different"
    if deviation.kind:
        return "known"
    if deviation.norm or deviation.gradients:
        return "close"
    return "no norm" if deviation.lacks_norm else "equal"


def _problem(entries: Sequence[KnownDifference], deviation: Deviation) -> str:
    """Return the description of a difference that fails the run, and what the list of known differences contains.

    entries: The known differences of the same function and case.
    """
    if not deviation.kind or any(entry.bounds(deviation) for entry in entries):
        return ""
    text = in_words(deviation, deviation.finite_size)
    alike = [entry for entry in entries if entry.is_alike(deviation)]
    return f"{text}{LISTED}: {(alike or entries)[0].in_words}" if entries else text


def in_words(deviation: Deviation, size: float, *, is_largest: bool = False) -> str:
    """Describe a difference, with its cause or its most specific part first.

    size: The relative difference, or the largest of several cases if `is_largest` is true.
    """
    text, detail, kind = KINDS[deviation.kind], deviation.detail, deviation.kind
    if kind not in WITH_NUMBERS:
        return f"{text}: {detail}" if detail else text
    has_structure = kind not in SIZED
    numbers = "" if has_structure and not (size or deviation.not_finite) else text
    if has_structure and numbers:
        numbers = "numbers differ, too"
    names_nan = bool(deviation.not_finite) and any(word in deviation.cause for word in ("NaN", "inf"))
    if names_nan:  # the size is that of the other numbers
        numbers = "finite numbers differ" if size else ""
    if size:
        numbers += f"{',' if has_structure else ''} by {'up to ' if is_largest else ''}{size_in_words(size)}"
        norm = deviation.norm or 0.0
        of_norm = size_in_words(norm) if 0 < norm < math.inf and not is_largest else ""
        numbers += f", the norm by {of_norm}" if of_norm not in ("", size_in_words(size)) else ""
    if deviation.not_finite and not names_nan:
        numbers += f", with inf or NaN in the resulting {deviation.not_finite}"
    unknown = f"the cause is unknown{deviation.contradiction and f' ({deviation.contradiction})'}"
    if numbers:
        numbers = f"{deviation.cause} ({numbers})" if deviation.cause else f"{numbers}, and {unknown}"
    elif names_nan:
        numbers = deviation.cause
    return "; ".join(filter(None, (detail or text if has_structure else "", numbers)))


def _near(patterns: Sequence[str], names: Collection[str]) -> str:
    """Return a sentence on the first pattern that no case has, with the nearest name."""
    unknown = next((text for text in patterns if not any(is_match(name, [text]) for name in names)), None)
    near = difflib.get_close_matches(unknown or "", names, n=1)
    return f" No case is called {unknown!r}. Did you mean {near[0]!r}?" if near else ""


def _judge_entry(
    entry: KnownDifference, deviations: Mapping[Place, Deviation], unlisted: set[Place], names: Collection[str]
) -> KnownDifferenceResult:
    results = {place: each for place, each in deviations.items() if entry.is_of(place[0], each)}
    matching = {place: each for place, each in results.items() if entry.is_for(*place, each)}
    cases = {case: each for (_, case), each in matching.items() if entry.bounds(each)}
    problem = ""
    # a case with another difference is already a problem
    if unmatched := entry.unmatched_patterns([*cases, *(place[1] for place in matching if place in unlisted)]):
        is_whole = len(unmatched) == len(entry.cases)
        which = "no case" if is_whole else f"no case that matches {', '.join(map(repr, unmatched))}"
        is_called = results or ".py:" not in entry.function
        called = "" if is_called else " The run did not call this function."
        near = _near(unmatched, names)
        problem = f"{which} shows this difference.{near}{called} Correct or remove the entry in {entry.place}"
    elif unlisted.isdisjoint(matching) and entry.is_too_large(parts(each)[1] for each in cases.values()):
        largest = size_in_words(max(parts(each)[1] for each in cases.values()))
        problem = f"the largest difference is now {largest}, much smaller than the size in {entry.place}"
    elif not entry.reason:
        problem = f"{NO_REASON}. Write why you accept this difference into {entry.place}"
    what, number = entry.parts
    kinds = [what.partition(" ")[0], *(each.kind for each in cases.values()), "value"]
    return KnownDifferenceResult(
        framework=entry.framework,
        function=entry.function,
        kind=next(filter(None, kinds)),  # type: ignore[arg-type]  # pydantic checks the kind
        listed_size=(number or None) if cases else None,
        size=max((parts(each)[1] for each in cases.values()), default=0.0) or None,
        reason=entry.reason,
        problem=problem,
        cases=list(cases),
        entry=entry,
    )
