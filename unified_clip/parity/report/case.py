"""One case on the terminal: every result, its numbers and its cause. And the command that runs the case again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ..known.entries import KINDS
from ..modes import NATIVE, OURS
from ..results import CaseResult, FrameworkResult, ParityRun


def command(suite: str, case: str, framework: str) -> str:
    """Return the shell command that runs a case of a suite again, on one framework.

    >>> command("parity", "worked example: global_norm()", "torch")
    "unified-clip parity --case 'worked example: global_norm()' --frameworks torch"
    """
    where = "" if suite in ("", "parity") else f"--suite {shlex.quote(suite)} "
    return f"unified-clip parity {where}--case {shlex.quote(case)} --frameworks {framework}"


def lines(run: ParityRun) -> Iterator[str]:
    """Yield what to print about each case of a run."""
    for row in run.cases:
        yield row.case.name
        if row.differing_stages:
            yield f"  frameworks differ from each other on the host path: {', '.join(row.differing_stages)}"
        for framework, cell in row.frameworks.items():
            for mode in (*OURS, NATIVE):
                if result := _result(run, row, framework, mode):
                    yield f"  {framework}, {OURS.get(mode, 'its own function')}: {result}"
                    yield from (f"    {line}" for line in _numbers(cell, mode))


def _result(run: ParityRun, row: CaseResult, framework: str, mode: str) -> str:
    """Return a verdict with its detail and its cause; '' if the case was not run in this mode."""
    cell = row.frameworks[framework]
    verdict = cell.failure if mode == NATIVE else cell.verdicts.get(mode)
    if verdict:
        return ": ".join(filter(None, (verdict.kind, verdict.detail)))
    native = cell.native
    if mode != NATIVE or native is None:
        return ""
    details = [cell.problem] if cell.problem else [KINDS.get(native.kind, ""), native.detail]
    known = [each.known for each in run.known if row.case.name in each.cases]
    reasons = [entry.reason for entry in known if entry.framework == framework]
    return ": ".join(filter(None, (native.function, cell.judgement, *details, *reasons)))


def _numbers(cell: FrameworkResult, mode: str) -> list[str]:
    """Return the numbers where a result is furthest from the exact one; [] if there are none to compare."""
    return str(cell.details[mode]).splitlines() if mode in cell.details else []
