"""Print every result of a case, for `unified-clip parity --case NAME`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ..judge import own_function_pairs
from ..known import match
from ..known.entries import SIZED
from ..modes import NATIVE, TITLES
from ..results import CaseResult, NativeResult, ParityReport, Result
from . import compared_functions

ALONE = "This cause explains the chosen cases. For a cause that explains all cases, run without --case."

UNKNOWN_ALONE = "More cases can show the cause: run without --case."


def command(suite: str, case: str, framework: str) -> str:
    """Return the shell command that repeats a case on one framework.

    >>> command("parity", "worked example: global_norm()", "torch")
    "unified-clip parity --case 'worked example: global_norm()' --frameworks torch"
    """
    where = "" if suite in ("", "parity") else f"--suite {shlex.quote(suite)} "
    return f"unified-clip parity {where}--case {shlex.quote(case)} --frameworks {framework}"


def lines(report: ParityReport) -> Iterator[str]:
    for case in report.cases:
        yield case.name
        if case.differing_stages:
            stages = ", ".join(case.differing_stages)
            yield f"  results of unified_clip differ between frameworks on the host path: {stages}"
        for framework, results in case.frameworks.items():
            for mode, result in results.by_mode.items():
                yield f"  {framework}, {TITLES[mode]}: {_joined(result.verdict, result.detail)}"
                yield from _numbers(result)
            if results.native:
                whose = compared_functions.title(NATIVE, results.native)
                yield f"  {framework}, {whose}: {_native(report, case, framework, results.native)}"
                yield from _numbers(results.native)
                if results.native.is_users and results.native.kind in SIZED:
                    yield f"    {ALONE if results.native.cause else UNKNOWN_ALONE}"
        for pair in case.own_pairs:
            result_text = own_function_pairs.in_words(pair)
            yield f"  your functions for {pair.left} and {pair.right}, compared with each other: {result_text}"


def _native(report: ParityReport, case: CaseResult, framework: str, native: NativeResult) -> str:
    if native.is_failure:
        return _joined(native.verdict, native.detail)
    difference = match.in_words(native, native.finite_size) if native.kind else ""
    reasons = [
        f"listed as {entry.reason!r}"
        for entry in report.known
        if entry.entry and entry.entry.is_for(framework, case.name, native) and entry.entry.is_alike(native)
    ]
    return _joined(native.function, native.verdict, native.problem or difference, *reasons)


def _joined(*parts: str | None) -> str:
    return ": ".join(filter(None, parts))


def _numbers(result: Result) -> Iterator[str]:
    yield from (f"    {line}" for line in compared_functions.numbers(result))
