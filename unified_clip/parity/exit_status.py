"""Decide the exit status of `unified-clip parity`."""

from __future__ import annotations

from typing import Literal

from .results import NativeResult, ParityReport, Result, UnifiedClipResult


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
