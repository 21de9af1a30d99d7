"""Build the report of a run from its results: the problems, the summary sentence, and the exit status."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..._kit.display import counted
from ..exit_status import always_raising, exit_status, is_problem
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
)
from . import compared_functions


def build_report(
    frameworks: Sequence[str], cases: Sequence[CaseResult], known: Sequence[KnownDifferenceResult] = (), **fields: Any
) -> ParityReport:
    defaults: dict[str, Any] = {"suite": "", "versions": {}, "titles": {}, "notes": []}
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
    """Join failures with the same cause. A difference gets the largest size of its cases."""
    joined: dict[Key, tuple[Problem, list[NativeResult]]] = {}
    for key, failure, native in failures:
        problem, natives = joined.setdefault((failure.what, *key), (failure, []))
        if problem is not failure:
            problem.cases.extend(failure.cases)
        natives += [native] if native else []
    for problem, natives in joined.values():
        sizes, causes = ({getattr(each, name) for each in natives} for name in ("finite_size", "cause"))
        if len(sizes) > 1:
            words = match.in_words(natives[0], max(sizes), is_largest=True)
            problem.detail = f"{words}{''.join(problem.detail.partition(match.LISTED)[1:])}"
        if len(causes) > 1:
            problem.detail = problem.detail.replace(natives[0].cause, f"{natives[0].cause} in the first case", 1)
    return [problem for problem, _ in joined.values()]


NO_RESULTS = "unified_clip itself did not run"

UNTESTED = (
    "in each case that could test it, the exact result equals the gradients before the clip, so a function that does "
    "nothing would pass. Add a case with a norm above the threshold"
)

ALWAYS_RAISES = (
    "the function raised an error in each case that should return a result. Correct the function, or install the "
    "packages that it needs"
)


def _failures_of(report: ParityReport, case: CaseResult) -> Iterator[tuple[Key, Problem, NativeResult | None]]:
    def problem(what: str, detail: str, **names: Any) -> Problem:
        return Problem(what=what, detail=detail, cases=[case.name], **names)

    if case.differing_stages:
        what = "results of unified_clip differ between frameworks on the host path"
        yield tuple(case.differing_stages), problem(what, ", ".join(case.differing_stages)), None
    for framework, result in case.frameworks.items():
        for mode, each in result.by_mode.items():
            if is_problem(report, framework, each):
                what, detail = f"{framework}, {TITLES[mode]}, {each.verdict}", _detail(report, framework, each)
                stages = tuple(stage for stage, size in each.stages.items() if size)
                yield (each.cause, stages or detail), problem(what, detail, framework=framework, mode=mode), None
        if native := result.native:
            place = compared_functions.title(NATIVE, native)
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
    accept = "run the command with --accept to update the list of known differences."
    steps = []
    if own:
        steps.append(f"Correct your function{'s' * (len(own) > 1)}, or {accept}")
    elif natives or any(_is_stale(entry) for entry in report.known):
        steps.append(f"Check whether the new results are right. Then {accept}")
    results = (report.result_of(problem) for problem in report.problems)
    commands = [result.reproduce for result in results if result and result.reproduce]
    return [*steps, *(f"To see the numbers of the first case, run `{command}`" for command in commands[:1])]


def _is_stale(entry: KnownDifferenceResult) -> bool:
    return bool(entry.problem) and not entry.problem.startswith(NO_REASON)


def _stale(known: KnownDifferenceResult) -> Problem:
    return Problem(
        what=f"known difference {known.framework}, {known.function}",
        detail=f"{known.reason!r}: {known.problem}",
        function=known.function,
    )


def _detail(report: ParityReport, framework: str, result: Result) -> str:
    if result.verdict != "missing" or framework in report.versions:  # only the package with its functions is missing
        return result.detail
    remedy = f"set `python` under [frameworks.{framework}] of the suite to an interpreter that has the framework"
    return f"{result.detail}. Install the framework, or {remedy}"


def _verdict_sentence(report: ParityReport) -> str:
    absent = report.absent
    if report.exit_code:
        why = f": {', '.join(absent)} {_are(len(absent))} missing" if {*absent} >= {*report.frameworks} else ""
        return f"FAIL: {'; '.join(_failures(report)) or f'nothing was compared{why}'}."
    verdicts = [result.verdict for _, result in report.results()]
    within = sum(verdict in ("close", "flushed") for verdict in verdicts)
    exact = verdicts.count("equal")
    allowed = f", {within} {_has(within)} errors that docs/contract.md allows" if within else ""
    users = [native.verdict for _, native in report.natives() if native.is_users and not native.is_failure]
    right = len(users) - users.count("known")
    known = sum(native.verdict == "known" for _, native in report.natives())
    unlisted = sum(native.verdict == "different" for _, native in report.natives())
    whose_known, whose = (compared_functions.whose(report, verdict) for verdict in ("known", "different"))
    missing = {name for name, each in [*report.results(), *report.natives()] if each.verdict == "missing"} - {*absent}
    because = "the suite has no list of known differences"
    sentences = {
        f"{right} of {counted(len(users), 'result')} of {compared_functions.YOUR_FUNCTIONS} {_are(right)} right": users,
        f"{counted(exact, 'result')} of unified_clip {_are(exact)} exact{allowed}": verdicts,
        NO_RESULTS: not verdicts,
        f"{counted(known, 'difference')} of {whose_known} {_are(known)} known": known,
        f"{counted(unlisted, 'difference')} of {whose} {_are(unlisted)} not judged: {because}": unlisted,
        f"{', '.join(absent)} {_are(len(absent))} missing, which the suite allows": absent,
        f"Some results of {', '.join(sorted(missing))} are missing": missing,
    }
    return f"PASS: {'. '.join(sentence for sentence, is_true in sentences.items() if is_true)}."


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _has(number: int) -> str:
    return "has" if number == 1 else "have"


def _first(places: Sequence[str]) -> str:
    return f"first: {places[0]}" if {*places} - {places[0]} else places[0]


def _failures(report: ParityReport) -> Iterator[str]:
    results, natives = report.results(), report.natives()
    lost = [(name, each) for name, each in [*results, *natives] if each.is_failure and is_problem(report, name, each)]
    own_lost = [f"{name}: {each.detail.partition('. ')[0]}" for name, each in lost if _is_own(each)]
    others_lost = sorted({name for name, each in lost if not _is_own(each)})
    if wrong := [name for name, each in results if each.verdict == "different"]:
        of_all = f"{len(wrong)} of {counted(len(results), 'result')} of unified_clip"
        yield f"{of_all} {_are(len(wrong))} wrong ({_first(wrong)})"
    if differing := sum(bool(case.differing_stages) for case in report.cases):
        where = "results of unified_clip differ between frameworks on the host path"
        yield f"{counted(differing, 'case')} in which {where}"
    if own_lost:
        yield f"{counted(len(own_lost), 'result')} of {compared_functions.YOUR_FUNCTIONS} missing ({_first(own_lost)})"
    if raising := _raising_as_listed(report):
        yield f"no result of {', '.join(raising)} was compared"
    for whose, is_users in ((compared_functions.YOUR_FUNCTIONS, True), (compared_functions.THEIRS, False)):
        judged = [each for _, each in natives if each.is_users == is_users and not each.is_failure]
        if count := sum(bool(each.problem) for each in judged):
            verb = f"{_are(count)} wrong" if is_users else f"{_has(count)} a new difference"
            findings = [
                f"{problem.what}: {re.split(' [(]|[:;] ', problem.detail)[0]}"
                for problem in report.problems
                if problem.function and (".py:" in problem.function) == is_users and problem.mode == NATIVE
            ]
            yield f"{count} of {counted(len(judged), 'result')} of {whose} {verb} ({_first(findings)})"
    without_reason = sum(entry.problem.startswith(NO_REASON) for entry in report.known)
    if places := [f"{entry.framework}, {entry.function}" for entry in report.known if _is_stale(entry)]:
        yield f"{counted(len(places), 'known difference')} with a stale entry ({_first(places)})"
    if without_reason:
        yield f"{counted(without_reason, 'known difference')} {_has(without_reason)} no `reason`"
    if report.untested:
        yield f"nothing tests {', '.join(report.untested)}"
    if others_lost:
        count = len(lost) - len(own_lost)
        yield f"{counted(count, 'result')} missing ({', '.join(others_lost)})"


def _raising_as_listed(report: ParityReport) -> list[str]:
    """Return the functions that always raise an error, without those whose errors are a problem of their own."""
    told = {f"{each.function} ({name})" for name, each in report.natives() if each.problem}
    return [name for name in always_raising(report) if name not in told]


def _is_own(result: Result) -> bool:
    return isinstance(result, NativeResult) and result.is_users
