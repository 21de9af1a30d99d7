"""Build the report of a run from its results: the problems, the summary sentence, and the exit status."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from ..._kit.display import counted
from ..known import match
from ..known.entries import ERRORS, NO_REASON
from ..modes import NATIVE, TITLES, UNIFIED_CLIP_MODES
from ..results import (
    SCHEMA,
    CaseResult,
    Counts,
    KnownDifferenceResult,
    NativeResult,
    ParityReport,
    Problem,
    Result,
    Summary,
    UnifiedClipResult,
)
from . import view


def build_report(
    frameworks: Sequence[str], cases: Sequence[CaseResult], known: Sequence[KnownDifferenceResult] = (), **fields: Any
) -> ParityReport:
    defaults: dict[str, Any] = {"suite": "", "versions": {}, "notes": []}
    defaults |= {"verdict": "", "exit_code": 0, "problems": []}
    result = ParityReport(
        schema=SCHEMA,
        frameworks=list(frameworks),
        summary=_summary(frameworks, cases),
        known=list(known),
        cases=list(cases),
        **defaults | fields,
    )
    return with_verdict(result)


def with_verdict(report: ParityReport) -> ParityReport:
    judged = report.model_copy(update={"exit_code": exit_status(report)})
    judged = judged.model_copy(update={"problems": _problems(judged)})
    return judged.model_copy(update={"verdict": _verdict_sentence(judged)})


def exit_status(report: ParityReport) -> Literal[0, 1, 3]:
    if is_different(report):
        return 1
    return 3 if is_incomplete(report) else 0


def is_different(report: ParityReport) -> bool:
    natives = any(result.problem for _, result in report.natives())
    return unified_clip_is_different(report) or natives or any(entry.problem for entry in report.known)


def unified_clip_is_different(report: ParityReport) -> bool:
    is_wrong = any(result.verdict == "different" for _, result in report.results())
    return is_wrong or any(case.differing_stages for case in report.cases)


def is_incomplete(report: ParityReport) -> bool:
    results: list[tuple[str, Result]] = [*report.results(), *report.natives()]
    if report.untested or always_raising(report) or all(result.is_failure for _, result in results):
        return True
    return any(result.is_failure and is_problem(report, name, result) for name, result in results)


def is_problem(report: ParityReport, framework: str, result: Result) -> bool:
    if result.verdict == "missing":
        return framework not in report.may_be_missing
    if result.verdict == "not available":
        return framework in report.unavailable or (isinstance(result, NativeResult) and result.is_users)
    return result.is_failure or (isinstance(result, UnifiedClipResult) and result.verdict == "different")


def always_raising(report: ParityReport) -> list[str]:
    returning = {f"{each.function} ({name})" for name, each in report.natives() if each.sha256}
    raising = [f"{r.function} ({name})" for name, r in report.natives() if r.is_users and r.kind == "raises"]
    return [] if report.chosen_cases else [name for name in dict.fromkeys(raising) if name not in returning]


def _summary(frameworks: Sequence[str], cases: Sequence[CaseResult]) -> Summary:
    def counts(mode: str) -> Counts:
        by_framework = {}
        for framework in frameworks:
            results = [case.frameworks[framework].get(mode) for case in cases if framework in case.frameworks]
            ran = [each for each in results if each and each.verdict != "not available"]
            kinds = Counter[str](each.verdict for each in ran if not (mode == NATIVE and each.is_failure))
            if kinds:
                by_framework[framework] = dict(sorted(kinds.items()))
        return by_framework

    agreeing = sum(not case.differing_stages for case in cases)
    by_mode = {mode: counts(mode) for mode in UNIFIED_CLIP_MODES}
    return Summary(cases=len(cases), cases_where_frameworks_agree=agreeing, natives=counts(NATIVE), **by_mode)


def _problems(report: ParityReport) -> list[Problem]:
    problems = _joined(failure for case in report.cases for failure in _failures_of(report, case))
    subjects = list(dict.fromkeys(problem.what for problem in problems))

    def rank(problem: Problem) -> tuple[bool, int, int]:
        is_frameworks = problem.function is not None and ".py:" not in problem.function
        return is_frameworks, subjects.index(problem.what), -len(problem.cases)

    problems.sort(key=rank)
    untested = [Problem(what=f"nothing tests {', '.join(report.untested)}", detail=UNTESTED)] if report.untested else []
    stale = [_stale(known) for known in report.known if known.problem]
    names = _raising_as_listed(report)
    raising = [Problem(what=f"no result of {', '.join(names)} was compared", detail=ALWAYS_RAISES)] if names else []
    return [*untested, *raising, *problems, *stale]


Key = tuple[object, ...]
"""Failures with the same key are one problem of the report."""


def _joined(failures: Iterable[tuple[Key, Problem, NativeResult | None]]) -> list[Problem]:
    """Join failures with the same cause. The case with the largest difference comes first."""
    joined: dict[Key, list[tuple[Problem, NativeResult | None]]] = defaultdict(list)
    for key, failure, native in failures:
        joined[(failure.what, *key)].append((failure, native))
    problems = []
    for parts in joined.values():
        parts.sort(key=lambda part: part[1].finite_size if part[1] else 0.0, reverse=True)
        (problem, largest), natives = parts[0], [native for _, native in parts if native]
        problem.cases = [name for each, _ in parts for name in each.cases]
        sizes, causes = ({getattr(each, name) for each in natives} for name in ("finite_size", "cause"))
        if largest and len(sizes) > 1:
            words = match.in_words(largest, largest.finite_size, is_largest=True)
            problem.detail = f"{words}{''.join(problem.detail.partition(match.LISTED)[1:])}"
        if largest and len(causes) > 1:
            problem.detail = problem.detail.replace(largest.cause, f"{largest.cause} in this case", 1)
        problems.append(problem)
    return problems


NO_RESULTS = "unified_clip itself did not run"

DIFFERING = "results of unified_clip differ between frameworks on the host path"

UNTESTED = "a function that does nothing would pass. Add a case with a norm above the threshold"

ALWAYS_RAISES = (
    "it raised an error in each case. Correct the function, list it under a name with its signature "
    "(docs/own-functions.md#signatures), or install the packages that it needs"
)


def _failures_of(report: ParityReport, case: CaseResult) -> Iterator[tuple[Key, Problem, NativeResult | None]]:
    def problem(what: str, detail: str, **names: Any) -> Problem:
        return Problem(what=what, detail=detail, cases=[case.name], **names)

    if case.differing_stages:
        yield tuple(case.differing_stages), problem(DIFFERING, ", ".join(case.differing_stages)), None
    for framework, result in case.frameworks.items():
        for mode, each in result.by_mode.items():
            if is_problem(report, framework, each):
                what, detail = f"{framework}, {TITLES[mode]}, {each.verdict}", _detail(report, framework, each)
                stages = tuple(stage for stage, size in each.stages.items() if size)
                yield (each.cause, stages or detail), problem(what, detail, framework=framework, mode=mode), None
        if native := result.native:
            place = view.title(NATIVE, native)
            names: dict[str, Any] = {"framework": framework, "mode": NATIVE, "function": native.function}
            if is_problem(report, framework, native):
                detail = _detail(report, framework, native)
                yield (detail,), problem(f"{framework}, {place}, {native.verdict}", detail, **names), None
            if native.problem:
                listed = native.problem.partition(match.LISTED)[2]
                cause = native.detail if native.kind in ERRORS else native.cause_kind
                key = (native.kind, cause, native.not_finite, listed)
                yield key, problem(f"{framework}, {native.function}", native.problem, **names), native


def next_steps(report: ParityReport) -> list[str]:
    """Return what to do about the problems."""
    natives = [native for _, native in report.natives() if native.problem]
    own = {native.function for native in natives if native.is_users}
    chosen = ["--frameworks", ",".join(report.chosen_frameworks)] if report.chosen_frameworks else []
    accept = f"run `{command(report.suite, *chosen, '--accept')}`."
    steps = []
    if own:
        steps.append(f"Correct your function{'s' * (len(own) > 1)}. Only if a difference is intended, {accept}")
    elif natives:
        steps.append(
            "The framework's function differs, not unified_clip. If its release, the case or the processor is new, "
            f"{accept} If an entry was removed from the list, restore it."
        )
    elif any(_is_stale(entry) for entry in report.known):
        steps.append(f"If the differences have gone for a reason that you know, {accept}")
    results = (report.result_of(problem) for problem in report.problems)
    commands = [result.reproduce for result in results if result and result.reproduce]
    looks = [f"To rerun one case, run `{command}`" for command in commands[:1]]
    return [*steps, *looks]


def command(suite: str, *options: str) -> str:
    """Return a shell command.

    >>> command("parity", "--case", "worked example: global_norm()", "--frameworks", "torch")
    "unified-clip parity --case 'worked example: global_norm()' --frameworks torch"
    """
    return shlex.join(["unified-clip", "parity", *(() if suite in ("", "parity") else ("--suite", suite)), *options])


def _is_stale(entry: KnownDifferenceResult) -> bool:
    return bool(entry.problem) and not entry.problem.startswith(NO_REASON)


def _stale(known: KnownDifferenceResult) -> Problem:
    return Problem(
        what=f"known difference {known.framework}, {known.function}",
        detail=f"{known.reason!r}: {known.problem}" if known.reason else known.problem,
        function=known.function,
        file=known.entry.file if known.entry else None,
        line=known.entry.line if known.entry else None,
    )


def _detail(report: ParityReport, framework: str, result: Result) -> str:
    if result.verdict != "missing" or framework in report.versions:  # only the package with its functions is missing
        return result.detail
    return f"{result.detail}. Install the framework, or set `python` under [frameworks.{framework}] of the suite"


def _verdict_sentence(report: ParityReport) -> str:
    absent = report.absent
    if report.exit_code:
        why = f": {', '.join(absent)} {_are(len(absent))} missing" if {*absent} >= {*report.frameworks} else ""
        return f"FAIL: {'; '.join(_failures(report)) or f'nothing was compared{why}'}."
    verdicts = Counter[str](result.verdict for _, result in report.results())
    natives = Counter[str](native.verdict for _, native in report.natives())
    within = ", ".join(f"{verdicts[each]} {each}" for each in ("close", "flushed") if verdicts[each])
    allowed = f", {within} (within the allowed rounding)" if within else ""
    users = [native.verdict for _, native in report.natives() if native.is_users and not native.is_failure]
    right, known = len(users) - users.count("known"), users.count("known")
    accepted = f", and {counted(known, 'known difference')} {_are(known)} accepted" if known else ""
    missing = {name for name, each in [*report.results(), *report.natives()] if each.verdict == "missing"} - {*absent}
    theirs, unlisted = natives["known"] - known, natives["different"]
    sentences = {
        f"{counted(right, 'result')} of {view.YOUR_FUNCTIONS} {_are(right)} right{accepted}": users,
        f"{counted(verdicts['equal'], 'result')} of unified_clip {_are(verdicts['equal'])} exact{allowed}": verdicts,
        NO_RESULTS: not verdicts,
        f"{counted(theirs, 'difference')} of {view.THEIRS} {_are(theirs)} known": theirs,
        f"{counted(unlisted, 'difference')} of {view.whose(report, 'different')} {_are(unlisted)} not judged: "
        "the suite has no list of known differences": unlisted,
        f"{', '.join(absent)} {_are(len(absent))} missing, which the suite allows": absent,
        f"Some results of {', '.join(sorted(missing))} are missing": missing,
    }
    return f"PASS: {'. '.join(sentence for sentence, is_true in sentences.items() if is_true)}."


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _first(places: Iterable[str], noun: str = "") -> str:
    """Return the first of several places, with the number of other ones."""
    first, *others = places
    more = counted(len(others), f"more {noun}") if noun else f"{len(others)} more"
    return f"{first}; {more} below" if others else first


def _failures(report: ParityReport) -> Iterator[str]:
    results, natives = report.results(), report.natives()
    lost = [(name, each) for name, each in [*results, *natives] if each.is_failure and is_problem(report, name, each)]
    own_lost = [f"{name}: {each.detail.partition('. ')[0]}" for name, each in lost if _is_own(each)]
    others_lost = [name for name, each in lost if not _is_own(each)]
    if wrong := [name for name, each in results if each.verdict == "different"]:
        of_all = f"{len(wrong)} of {counted(len(results), 'result')} of unified_clip"
        yield f"{of_all} {_are(len(wrong))} wrong ({_first(dict.fromkeys(wrong))})"
    if differing := sum(bool(case.differing_stages) for case in report.cases):
        yield f"{counted(differing, 'case')} in which {DIFFERING}"
    if own_lost:
        yield f"{counted(len(own_lost), 'result')} of {view.YOUR_FUNCTIONS} missing ({_first(dict.fromkeys(own_lost))})"
    if raising := _raising_as_listed(report):
        yield f"no result of {', '.join(raising)} was compared"
    for whose, is_users in ((view.YOUR_FUNCTIONS, True), (view.THEIRS, False)):
        judged = [each for _, each in natives if each.is_users == is_users and not each.is_failure]
        if count := sum(bool(each.problem) for each in judged):
            lacks = f"the list of known differences lacks {'it' if count == 1 else 'them'}"
            unlisted = f"differ{'s' * (count == 1)} from the exact result, and {lacks}"
            verb = f"{_are(count)} wrong" if is_users else unlisted
            findings = [
                f"{problem.what}: {re.split(' [(]|[:;] ', problem.detail)[0]}"
                for problem in report.problems
                if problem.function and (".py:" in problem.function) == is_users and problem.mode == NATIVE
            ]
            yield f"{count} of {counted(len(judged), 'result')} of {whose} {verb} ({_first(findings, 'finding')})"
    if stale := [f"{entry.framework}, {entry.function}" for entry in report.known if _is_stale(entry)]:
        yield f"{counted(len(stale), 'known difference')} with a stale entry ({_first(stale)})"
    if without_reason := sum(entry.problem.startswith(NO_REASON) for entry in report.known):
        yield f"{counted(without_reason, 'known difference')} without a `reason`"
    if report.untested:
        yield f"nothing tests {', '.join(report.untested)}"
    if others_lost:
        yield f"{counted(len(others_lost), 'result')} missing ({', '.join(sorted({*others_lost}))})"


def _raising_as_listed(report: ParityReport) -> list[str]:
    """Return the functions that always raise an error, without those whose errors are a problem of their own."""
    told = {f"{each.function} ({name})" for name, each in report.natives() if each.problem}
    return [name for name in always_raising(report) if name not in told]


def _is_own(result: Result) -> bool:
    return isinstance(result, NativeResult) and result.is_users
