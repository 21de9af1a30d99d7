"""Build the report of a run from its results: the problems, the summary sentence, and the exit status."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..._display import counted
from ..exit_status import always_raising, exit_status, is_different, is_problem
from ..known.entries import NO_REASON
from ..modes import NATIVE, TITLES, UNIFIED_CLIP_MODES
from ..results import (
    SCHEMA,
    CaseResult,
    Change,
    Counts,
    KnownDifferenceResult,
    NativeResult,
    ParityReport,
    Problem,
    Result,
    Summary,
)
from . import baseline, compared_functions


def build_report(
    frameworks: Sequence[str], cases: Sequence[CaseResult], known: Sequence[KnownDifferenceResult] = (), **fields: Any
) -> ParityReport:
    defaults: dict[str, Any] = {"suite": "", "versions": {}, "titles": {}, "notes": []}
    defaults |= {"verdict": "", "exit_code": 0, "baseline": None, "problems": []}
    result = ParityReport(
        schema=SCHEMA,
        frameworks=list(frameworks),
        summary=_summary(frameworks, cases),
        known=list(known),
        cases=list(cases),
        **defaults | fields,
    )
    return with_changes(result, None)


def with_changes(report: ParityReport, changes: list[Change] | None) -> ParityReport:
    judged = report.model_copy(update={"baseline": changes, "exit_code": exit_status(report, changes)})
    judged = judged.model_copy(update={"problems": _problems(judged)})
    return judged.model_copy(update={"verdict": _verdict_sentence(judged)})


def with_strict(report: ParityReport, *, accepting: bool = False) -> ParityReport:
    """accepting: Whether the run has the option `--accept`, which adds missing causes."""
    remedy = "" if accepting else ". Add the line {}, or run the command with --accept"
    no_cause = f"{NO_CAUSE}, so the entry accepts any difference up to its `size`{remedy}"

    def problem(entry: KnownDifferenceResult) -> str:
        lacks_reason = f"{NO_REASON}. {WRITE_REASON}" if _lacks_reason(entry) and not accepting else ""
        return entry.problem or (no_cause.format(entry.incomplete) if entry.incomplete else lacks_reason)

    known = [entry.model_copy(update={"problem": problem(entry)}) for entry in report.known]
    return with_changes(report.model_copy(update={"known": known, "strict": True}), report.baseline)


def notes_on_incomplete_entries(known: Sequence[KnownDifferenceResult]) -> list[str]:
    no_cause = [
        f"{entry.incomplete} ({entry.framework}, {entry.function}, {entry.reason!r})"
        for entry in known
        if entry.incomplete
    ]
    no_reason = [
        f"{entry.framework}, {entry.function}: {_first_of(entry.cases)}" for entry in known if _lacks_reason(entry)
    ]
    advice = "An entry without `cause` accepts any difference up to its `size`. "
    advice += "To add the causes, run the command with --accept, or add these lines to the entries"
    texts = [
        f"In the list of known differences, {_entries_without_cause(len(no_cause))}. {advice}: {_first_few(no_cause)}",
        f"For {counted(len(no_reason), 'known difference')}, {NO_REASON}: {_first_few(no_reason)}. {WRITE_REASON}",
    ]
    return [
        f"{text}. With --strict, the run fails."
        for text, lines in zip(texts, (no_cause, no_reason), strict=True)
        if lines
    ]


def _first_few(lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - SHOWN_ENTRIES} more, in parity.json"] if len(lines) > SHOWN_ENTRIES else []
    return "; ".join([*lines[:SHOWN_ENTRIES], *more])


def _first_of(cases: Sequence[str]) -> str:
    return f"{counted(len(cases), 'case')}, first {cases[0]}" if cases[1:] else ", ".join(cases)


def _lacks_reason(entry: KnownDifferenceResult) -> bool:
    return entry.entry is not None and entry.entry.lacks_reason


NO_CAUSE = "the entry has no `cause`"

WRITE_REASON = "Write why you accept the difference into `reason`, or correct the function"

SHOWN_ENTRIES = 5


def _entries_without_cause(count: int) -> str:
    return f"{count} {'entry has' if count == 1 else 'entries have'} no `cause`"


def _summary(frameworks: Sequence[str], cases: Sequence[CaseResult]) -> Summary:
    def counts(mode: str) -> Counts:
        by_framework = {}
        for framework in frameworks:
            results = [case.frameworks[framework].get(mode) for case in cases if framework in case.frameworks]
            kinds = Counter[str](each.verdict for each in results if each and not (mode == NATIVE and each.is_failure))
            if kinds:
                by_framework[framework] = dict(sorted(kinds.items()))
        return by_framework

    agreeing = sum(not case.differing_stages for case in cases)
    by_mode = {mode: counts(mode) for mode in UNIFIED_CLIP_MODES}
    return Summary(cases=len(cases), cases_where_frameworks_agree=agreeing, natives=counts(NATIVE), **by_mode)


def _problems(report: ParityReport) -> list[Problem]:
    problems = _joined(problem for case in report.cases for problem in _problems_of(report, case))
    problems.sort(key=lambda problem: problem.function is not None and ".py:" not in problem.function)
    untested = [Problem(what=f"nothing tests {what}", detail=UNTESTED) for what in report.untested]
    losses = [
        Problem(
            what=_place(report, each, with_case=False) or "the suite",
            detail=each.why,
            cases=[each.case] if each.case else [],
        )
        for each in baseline.losses(report)
    ]
    stale = [_stale(report, known, suffix) for known, suffix in baseline.numbered(report.known) if known.problem]
    raising = [
        Problem(what=f"no result of {name} was compared", detail=ALWAYS_RAISES) for name in always_raising(report)
    ]
    return [*untested, *raising, *problems, *_joined((loss, "") for loss in losses), *stale]


def _place(report: ParityReport, change: Change, *, with_case: bool = True) -> str:
    native = next((case.natives.get(change.framework) for case in report.cases if case.name == change.case), None)
    is_native = native is not None and change.what == compared_functions.title(NATIVE, native)
    what = f"{change.what} {native.function}" if native and is_native and native.function else change.what
    return ", ".join(filter(None, (change.framework, what, change.case if with_case else "")))


NUMBERS = re.compile(r"(?<=by )[\d.e+-]+( %| times)?|(?<=the threshold were )[\d.e+-]+|(?<=instead of )[\d.e+-]+")
NAMES = re.compile(r"'[^']*'(, '[^']*')*( and ('[^']*'|\d+ others))?( (is|are)\b)?")


def _joined(problems: Iterable[tuple[Problem, str]]) -> list[Problem]:
    """Join problems with the same cause. The joined problem has the detail of the first problem.

    problems: (problem, cause). The text of the cause is a part of the problem's detail.
    """
    joined: dict[tuple[str | bool | None, ...], Problem] = {}
    for each, cause in problems:
        detail = NUMBERS.sub("", each.detail.replace(cause, NAMES.sub("", cause)))
        key = (each.what, detail, each.function, each.excused)
        if key in joined:
            joined[key].cases.extend(each.cases)
        else:
            joined[key] = each
    return list(joined.values())


NO_RESULTS = "unified_clip itself did not run"

UNTESTED = (
    "in each case that could test it, the exact result equals the gradients before the clip, so a function that does "
    "nothing would pass. Add a case with a norm above the threshold"
)

ALWAYS_RAISES = (
    "the function raised an error in each case that should return a result. Correct the function, or install the "
    "packages that it needs"
)


def _problems_of(report: ParityReport, case: CaseResult) -> Iterator[tuple[Problem, str]]:
    """Yield (problem, cause) for each failure of a case."""

    def problem(what: str, detail: str, place: str, result: Result | None = None, **names: Any) -> tuple[Problem, str]:
        is_lost = result is not None and result.is_failure  # a baseline excuses no missing result
        excused = not is_lost and baseline.excuses(report, (names.get("framework", ""), place, case.name))
        cause = (result.cause or result.contradiction) if isinstance(result, NativeResult) else ""
        return Problem(what=what, detail=detail, excused=excused, cases=[case.name], **names), cause

    if case.differing_stages:
        what = "results of unified_clip differ between frameworks on the host path"
        yield problem(what, ", ".join(case.differing_stages), "between frameworks")
    for framework, result in case.frameworks.items():
        for mode, each in result.by_mode.items():
            if is_problem(report, framework, each):
                what, detail = f"{framework}, {TITLES[mode]}, {each.verdict}", _detail(report, framework, each)
                yield problem(what, detail, TITLES[mode], each, framework=framework, mode=mode)
        if native := result.native:
            place = compared_functions.title(NATIVE, native)
            names = {"framework": framework, "mode": NATIVE, "function": native.function}
            if is_problem(report, framework, native):
                what = f"{framework}, {place}, {native.verdict}"
                yield problem(what, _detail(report, framework, native), place, native, **names)
            if native.problem:
                yield problem(f"{framework}, {native.function}", native.problem, place, native, **names)


def _stale(report: ParityReport, known: KnownDifferenceResult, suffix: str) -> Problem:
    return Problem(
        what=f"known difference {known.framework}, {known.function}",
        detail=f"{known.reason!r}: {known.problem}",
        function=known.function,
        excused=baseline.excuses(report, (known.framework, f"{baseline.known_title(known)}{suffix}", "")),
    )


def _detail(report: ParityReport, framework: str, result: Result) -> str:
    if result.verdict != "missing" or framework in report.versions:  # only the package with its functions is missing
        return result.detail
    remedy = f"set `python` under [frameworks.{framework}] of the suite to an interpreter that has the framework"
    return f"{result.detail}. Install the framework, or {remedy}"


def _verdict_sentence(report: ParityReport) -> str:
    absent = report.absent
    present = [framework for framework in report.frameworks if framework not in absent]
    of = f"{counted(len(report.cases), 'case')} on {', '.join(present or report.frameworks)}"
    failures, excused = "; ".join(_failures(report)), baseline.excused(report)
    if report.exit_code:
        why = "" if present else f": {', '.join(absent)} {_are(len(absent))} missing"
        excuse = f". {excused} of these failures {_are(excused)} already in the baseline" if excused else ""
        return f"FAIL: {of}: {failures or f'nothing was compared{why}'}{excuse}."
    if is_different(report):
        return f"PASS: {of}. The baseline already contains {counted(excused, 'failure')}: {failures}."
    verdicts = [result.verdict for _, result in report.results()]
    within = sum(verdict in ("close", "flushed") for verdict in verdicts)
    exact = verdicts.count("equal")
    parts = [f"{counted(exact, 'result')} of unified_clip {_are(exact)} exact" if verdicts else NO_RESULTS]
    parts += [f"{within} {_has(within)} errors that docs/contract.md allows"] if within else []
    known = sum(len(entry.cases) for entry in report.known)
    unlisted = sum(native.verdict == "different" for _, native in report.natives())
    if known or unlisted:
        listed = "not judged, because the suite has no list of known differences" if unlisted else "all known"
        whose = compared_functions.whose(report, "known", "different")
        parts.append(f"{counted(known + unlisted, 'difference')} of {whose}, {listed}")
    if lacking := sum(bool(entry.incomplete) for entry in report.known):
        parts.append(f"{_entries_without_cause(lacking)}")
    missing = {name for name, each in [*report.results(), *report.natives()] if each.verdict == "missing"}
    parts += [f"{', '.join(absent)} {_are(len(absent))} missing, which the suite allows"] if absent else []
    parts += [f"some results of {', '.join(sorted(missing - {*absent}))} are missing"] if missing - {*absent} else []
    return f"PASS: {of}: {', '.join(parts)}."


SINCE_BASELINE = {
    "other bits of a known difference": ("known difference", "with other bits than in"),
    "other error": ("known difference", "with an error that differs from"),
    "other bits": ("result", "with other bits than in"),
    "not comparable": ("result", "that cannot be compared with"),
}


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _has(number: int) -> str:
    return "has" if number == 1 else "have"


def _first(places: Sequence[str]) -> str:
    return f"first: {places[0]}" if {*places} - {places[0]} else places[0]


def _failures(report: ParityReport) -> Iterator[str]:
    results, natives = report.results(), report.natives()
    lost = [name for name, each in [*results, *natives] if each.is_failure and is_problem(report, name, each)]
    if wrong := [name for name, each in results if each.verdict == "different"]:
        of_all = f"{len(wrong)} of {counted(len(results), 'result')} of unified_clip"
        yield f"{of_all} {_are(len(wrong))} wrong ({_first(wrong)})"
    if differing := sum(bool(case.differing_stages) for case in report.cases):
        where = "results of unified_clip differ between frameworks on the host path"
        yield f"{counted(differing, 'case')} in which {where}"
    if unlisted := [f"{name}, {each.function}" for name, each in natives if each.problem]:
        of_whom = f"{counted(len(unlisted), 'result')} of {compared_functions.whose(report, 'different')}"
        yield f"{of_whom} not listed as known differences ({_first(unlisted)})"
    without_cause = sum(entry.problem.startswith(NO_CAUSE) for entry in report.known)
    without_reason = sum(entry.problem.startswith(NO_REASON) for entry in report.known)
    stale = [entry for entry in report.known if entry.problem and not entry.problem.startswith((NO_CAUSE, NO_REASON))]
    if places := [f"{entry.framework}, {entry.function}" for entry in stale]:
        yield f"{counted(len(places), 'known difference')} with a stale entry ({_first(places)})"
    if without_cause:
        yield f"{counted(without_cause, 'known difference')} without `cause`"
    if without_reason:
        yield f"{counted(without_reason, 'known difference')} {_has(without_reason)} an unknown cause and no `reason`"
    for failure, (noun, what) in SINCE_BASELINE.items():
        if losses := [each for each in baseline.losses(report) if each.failure == failure]:
            why = f": {losses[0].why.partition('. ')[0]}" if failure == "not comparable" else ""
            yield f"{counted(len(losses), noun)} {what} the baseline ({_place(report, losses[0])}{why})"
    if report.untested:
        yield f"nothing tests {', '.join(report.untested)}"
    if raising := always_raising(report):
        yield f"no result of {', '.join(raising)} was compared"
    if lost:
        yield f"{counted(len(lost), 'result')} missing ({', '.join(sorted(set(lost)))})"
