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

ACCEPT = ". Run the command with --accept to"


def match_deviations(
    known: Sequence[KnownDifference] | None,
    deviations: Mapping[Place, Deviation],
    versions: Mapping[str, Mapping[str, str]],
    *,
    accepting: bool = False,
) -> tuple[dict[Place, tuple[NativeVerdict, str]], list[KnownDifferenceResult]]:
    """Return (judgements, entries).

    `judgements` contains (verdict, problem) for each deviation. The problem is '' if the deviation is a known
    difference. `entries` contains a result for each entry of `known` that applies to the installed versions.

    known: None if the suite has no list of known differences.
    accepting: Whether the run has the option `--accept`.
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
        problem, remedy = _problem(case, entries, deviation, others, limited)
        problem += "" if accepting else remedy
        judgements[framework, case] = _verdict(deviation, entries, problem), "" if known is None else problem
    results = []
    for entry, covered in covered_by_entry:
        of_function = {case: each for (name, case), each in deviations.items() if entry.is_of(name, each)}
        unlisted = [case for case in of_function if judgements[entry.framework, case][0] == "different"]
        installed = versions[entry.framework]
        results.append(_judge_entry(entry, covered, installed, of_function, unlisted, accepting=accepting))
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
) -> tuple[str, str]:
    """Return (problem, remedy). Both texts are empty if the deviation does not fail the run.

    others: The known differences for the same function and case.
    limited: Known differences that match the deviation, but only for other versions of the package.
    """
    if not deviation.kind:
        return "", ""
    text = KINDS[deviation.kind]
    if deviation.not_finite:
        text += f", with inf or NaN in the {deviation.not_finite}"
    if deviation.finite_size:
        text += f", by {size_in_words(deviation.finite_size)}"
    if deviation.detail:
        text += f" ({deviation.detail})"
    cause = _cause(deviation)
    fix = _fix(deviation.function)
    if not entries and others:
        return f"{text}. {_listed_and_now(others, deviation)}", f"{fix} list this difference"
    if not entries:
        versions = ""
        if limited:
            entry = limited[0]
            versions = f" of the installed versions, because the entry {entry.reason!r} is only for {entry.versions}"
        return f"{text}; not listed as a known difference{versions}{cause}", f"{fix} list this difference"
    if len(entries) > 1:
        reasons = " and ".join(repr(entry.reason) for entry in entries)
        several = f"{len(entries)} known differences cover this case ({reasons})"
        remedy = (
            "Keep the case in one entry, and remove the case from the `cases` of the other entries. Remove an entry "
            "that has no case left"
        )
        return f"{text}: {several}. {remedy}", ""
    if not entries[0].bounds(case, deviation.finite_size):
        size = entries[0].listed_size(case)
        listed = f"the listed {size_in_words(size)}" if size else "rounding, as listed"
        return f"{text}: more than {listed}{cause}", f"{fix} list the new size"
    return "", ""


def _fix(function: str | None) -> str:
    return ACCEPT.replace("Run", "Correct your function, or run") if ".py:" in (function or "") else ACCEPT


def _cause(deviation: Deviation) -> str:
    if deviation.cause or deviation.kind not in SIZED:
        return deviation.cause and f"; {deviation.cause}"
    return f"; {_unknown(deviation)}"


def _unknown(deviation: Deviation) -> str:
    return f"the cause is unknown{deviation.contradiction and f' ({deviation.contradiction})'}"


def _listed_and_now(others: Sequence[KnownDifference], deviation: Deviation) -> str:
    alike = [entry for entry in others if entry.kind == deviation.kind]
    same = [entry for entry in alike if entry.not_finite == deviation.not_finite]
    entry, now = [*same, *alike, *others][0], _unknown(deviation)
    if deviation.cause or deviation.kind not in WITH_NUMBERS:
        now = deviation.cause or recorded_cause(deviation) or KINDS[deviation.kind]
    if same:
        listed = f"with the cause {' or '.join(map(repr, entry.causes))}"
    elif alike:
        places = entry.not_finite and f"inf or NaN in the {entry.not_finite}"
        listed = f"which covers only {places or 'finite numbers'}"
    else:
        listed = f"which covers only this difference: {KINDS[entry.kind]}"
    return f"Listed: {entry.reason!r}, {listed}. Now: {now}"


def _judge_entry(
    entry: KnownDifference,
    cases: Mapping[str, Deviation],
    installed: Mapping[str, str],
    results: Mapping[str, Deviation],
    unlisted: Sequence[str],
    *,
    accepting: bool,
) -> KnownDifferenceResult:
    has_cause = bool(entry.causes) and not {ANY, UNKNOWN} & {*entry.causes}
    # an unknown cause can hide the listed cause
    hidden = [case for case, each in results.items() if has_cause and recorded_cause(each) == UNKNOWN]
    size = max((deviation.finite_size for deviation in cases.values()), default=0.0)
    problem = incomplete = remedy = ""
    if entry.lacks_cause and cases:  # the line that `--accept` writes
        incomplete = f"cause = {json.dumps(cause_value(cases.values()), ensure_ascii=False)}"
    if installed and (package := entry.unreported(installed)):
        unreported = f"the run does not report the version of {package}"
        problem = f"`versions` names {package}, but {unreported}. Give versions of {' or '.join(installed)} instead"
    elif unmatched := entry.unmatched_patterns([*cases, *hidden, *unlisted]):
        is_whole = len(unmatched) == len(entry.cases)
        which = "no case" if is_whole else f"no case that matches {', '.join(map(repr, unmatched))}"
        problem = f"{which} shows this difference"
        remedy = f"{ACCEPT} {'remove the entry' if is_whole else 'update `cases`'}"
        if ".py:" in entry.function and not results:
            remedy += (
                ". The run did not call this function. If you renamed the function, write the new name into the entry"
            )
    elif smaller := entry.smaller_sizes({case: each.finite_size for case, each in cases.items()}):
        new, listed = map(size_in_words, smaller)
        problem, remedy = f"the difference is {new}, less than the listed {listed}", f"{ACCEPT} list the new size"
    return KnownDifferenceResult(
        **entry.model_dump(exclude={"cases", "size", "within", "cause"}),
        cause=", ".join(entry.causes),
        incomplete=incomplete,
        listed_size=(math.inf if entry.not_finite else max(entry.listed_sizes)) or None if cases else None,
        listed_sizes={case: entry.listed_size(case) for case in cases} if isinstance(entry.cases, dict) else {},
        size=(math.inf if entry.not_finite else size) or None if cases else None,
        finite_size=size,
        problem=problem if accepting else problem + remedy,
        is_outdated=bool(entry.unmatched_patterns([*cases, *hidden])),
        cases=list(cases),
        entry=entry,
    )
