"""Decide which entries of known.toml cover the results of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from ..judge.verdict import NativeVerdict
from ..results import KnownDifferenceResult, NativeResult
from .entries import (
    ANY,
    KINDS,
    SIZED,
    UNKNOWN,
    WITH_NUMBERS,
    KnownDifference,
    NativeDeviation,
    cause_value,
    is_match,
    recorded_cause,
    size_in_words,
)

Place = tuple[str, str]
"""(framework, case name)"""

Deviation = NativeDeviation | NativeResult

LISTED = "; listed"
"""Separates the description of a difference from its entry in the list of known differences."""


def match_deviations(
    known: Sequence[KnownDifference] | None,
    deviations: Mapping[Place, Deviation],
    versions: Mapping[str, Mapping[str, str]],
) -> tuple[dict[Place, tuple[NativeVerdict, str]], list[KnownDifferenceResult]]:
    """Return (judgements, entries).

    `judgements` contains (verdict, problem) for each deviation. The problem is '' if the deviation is a known
    difference. `entries` contains a result for each entry of `known` that applies to the installed versions.

    known: None if the suite has no list of known differences.
    """
    judgements: dict[Place, tuple[NativeVerdict, str]] = {}
    covered_by_entry: list[tuple[KnownDifference, dict[str, Deviation]]] = [
        (entry, {}) for entry in known or [] if entry.applies(versions[entry.framework])
    ]
    for (framework, case), deviation in deviations.items():
        entries = []
        for entry, covered in covered_by_entry:
            if entry.covers(framework, case, deviation):
                entries.append(entry)
                covered[case] = deviation
        others = [
            entry for entry, _ in covered_by_entry if entry.is_of(framework, deviation) and is_match(case, entry.cases)
        ]
        limited = [
            entry
            for entry in known or []
            if not entry.applies(versions[entry.framework]) and entry.covers(framework, case, deviation)
        ]
        problem = _problem(case, entries, deviation, others, limited)
        judgements[framework, case] = _verdict(deviation, entries, problem), "" if known is None else problem
    results = []
    for entry, covered in covered_by_entry:
        of_function = {case: each for (name, case), each in deviations.items() if entry.is_of(name, each)}
        unlisted = [case for case in of_function if judgements[entry.framework, case][0] == "different"]
        installed = versions[entry.framework]
        results.append(_judge_entry(entry, covered, installed, of_function, unlisted))
    return judgements, results


def _verdict(deviation: Deviation, entries: Sequence[KnownDifference], problem: str) -> NativeVerdict:
    if problem:
        return "different"
    if entries:
        return "known"
    if deviation.norm or deviation.gradients:
        return "close"
    return "no norm" if deviation.lacks_norm else "equal"


def _problem(
    case: str,
    entries: Sequence[KnownDifference],
    deviation: Deviation,
    others: Sequence[KnownDifference],
    limited: Sequence[KnownDifference],
) -> str:
    """Return the description of a difference that fails the run, and what the list of known differences contains.

    others: The known differences for the same function and case.
    limited: Known differences that match the deviation, but only for other versions of the package.
    """
    if not deviation.kind:
        return ""
    text = in_words(deviation, deviation.finite_size)
    if not entries and others:
        return f"{text}{LISTED}: {_listed(others, deviation)}"
    if not entries and limited:
        return f"{text}{LISTED} only for {limited[0].versions}: {limited[0].reason!r}"
    if not entries:
        return text
    if len(entries) > 1:
        reasons = " and ".join(repr(entry.reason) for entry in entries)
        remedy = "Keep the case in one entry. Remove an entry that has no case left"
        return f"{text}{LISTED} in {len(entries)} entries ({reasons}). {remedy}"
    if not entries[0].bounds(case, deviation.finite_size):
        size = entries[0].listed_size(case)
        return f"{text}{LISTED}: {size_in_words(size) if size else 'rounding only'}"
    return ""


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
    if size:
        numbers += f"{',' if has_structure else ''} by {'up to ' if is_largest else ''}{size_in_words(size)}"
    if deviation.not_finite:
        numbers += f", with inf or NaN in the {deviation.not_finite}"
    unknown = f"the cause is unknown{deviation.contradiction and f' ({deviation.contradiction})'}"
    if numbers:
        numbers = f"{deviation.cause} ({numbers})" if deviation.cause else f"{numbers}, and {unknown}"
    return "; ".join(filter(None, (detail or text if has_structure else "", numbers)))


def _listed(others: Sequence[KnownDifference], deviation: Deviation) -> str:
    alike = [entry for entry in others if entry.kind == deviation.kind]
    same = [entry for entry in alike if entry.not_finite == deviation.not_finite]
    entry = [*same, *alike, *others][0]
    if same:
        return f"{entry.reason!r}, with the cause {' or '.join(map(repr, entry.causes))}"
    if alike:
        places = entry.not_finite and f"inf or NaN in the {entry.not_finite}"
        return f"{entry.reason!r}, which covers only {places or 'finite numbers'}"
    return f"{entry.reason!r}, which covers only this difference: {KINDS[entry.kind]}"


def _judge_entry(
    entry: KnownDifference,
    cases: Mapping[str, Deviation],
    installed: Mapping[str, str],
    results: Mapping[str, Deviation],
    unlisted: Sequence[str],
) -> KnownDifferenceResult:
    has_cause = bool(entry.causes) and not {ANY, UNKNOWN} & {*entry.causes}
    # an unknown cause can hide the listed cause
    hidden = [case for case, each in results.items() if has_cause and recorded_cause(each) == UNKNOWN]
    size = max((deviation.finite_size for deviation in cases.values()), default=0.0)
    problem = incomplete = ""
    if entry.lacks_cause and cases:  # the line that `--accept` writes
        incomplete = f"cause = {json.dumps(cause_value(cases.values()), ensure_ascii=False)}"
    if installed and (package := entry.unreported(installed)):
        unreported = f"the run does not report the version of {package}"
        problem = f"`versions` names {package}, but {unreported}. Give versions of {' or '.join(installed)} instead"
    elif unmatched := entry.unmatched_patterns([*cases, *hidden, *unlisted]):
        is_whole = len(unmatched) == len(entry.cases)
        which = "no case" if is_whole else f"no case that matches {', '.join(map(repr, unmatched))}"
        problem = f"{which} shows this difference"
        if ".py:" in entry.function and not results:
            problem += (
                ". The run did not call this function. If you renamed the function, write the new name into the entry"
            )
    elif smaller := entry.smaller_sizes({case: each.finite_size for case, each in cases.items()}):
        new, listed = map(size_in_words, smaller)
        problem = f"the difference is {new}, less than the listed {listed}"
    return KnownDifferenceResult(
        **entry.model_dump(exclude={"cases", "size", "within", "cause"}),
        cause=", ".join(entry.causes),
        incomplete=incomplete,
        listed_size=(math.inf if entry.not_finite else max(entry.listed_sizes)) or None if cases else None,
        listed_sizes={case: entry.listed_size(case) for case in cases} if isinstance(entry.cases, dict) else {},
        size=(math.inf if entry.not_finite else size) or None if cases else None,
        finite_size=size,
        problem=problem,
        is_outdated=bool(entry.unmatched_patterns([*cases, *hidden])),
        cases=list(cases),
        entry=entry,
    )
