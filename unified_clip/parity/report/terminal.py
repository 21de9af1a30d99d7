"""Print the report of a run on the terminal, or every result of a case for `unified-clip parity --case NAME`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ..._kit.display import as_started, cell
from ..known import match
from ..known.entries import SIZED
from ..modes import TITLES
from ..results import CaseResult, NativeResult, ParityReport
from . import build, view

MOST_LINES = 40
"""More lines on problems would hide the verdict above them."""

ALONE = "This cause explains the chosen cases. For a cause that explains all cases, run without --case."

UNKNOWN_ALONE = "More cases can show the cause: run without --case."


def show(report: ParityReport, out: Path, annotations: Sequence[str] | None = None, *, accepting: bool = False) -> None:
    """Print the verdict, the problems and what to do about them.

    annotations: With `--format github`, these lines are printed instead of the problems.
    accepting: Whether the run has the option `--accept`, so that there is nothing else to do.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    verdict = f"Before --accept: {report.verdict.removeprefix('FAIL: ')}" if accepting else report.verdict
    console.print(cell(verdict, "bold red" if report.exit_code else "bold green"), soft_wrap=True)
    lines = list(view.problem_lines(report, accepting=accepting))
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"- and {len(lines) - MOST_LINES} more lines, in {out / 'parity.md'}"]
    for annotation in annotations or ():
        console.print(Text(annotation), soft_wrap=True)
    for line in [*(lines if annotations is None else ()), *(() if accepting else build.next_steps(report))]:
        console.print(cell(as_started(line)), soft_wrap=True)
    where = f"The report: {out / 'index.html'}, and parity.md, parity.json and parity.xml beside it."
    for line in [*view.glance(report), where]:
        console.print(cell(line), soft_wrap=True)


def case_lines(report: ParityReport) -> Iterator[str]:
    for case in report.cases:
        yield case.name
        if case.differing_stages:
            stages = ", ".join(case.differing_stages)
            yield f"  results of unified_clip differ between frameworks on the host path: {stages}"
        for framework, results in case.frameworks.items():
            for mode in TITLES:
                if result := results.get(mode):
                    is_native = isinstance(result, NativeResult) and not result.is_failure
                    texts = _native(report, case, framework, result) if is_native else [result.verdict, result.detail]
                    yield f"  {framework}, {view.title(mode, result)}: {': '.join(filter(None, texts))}"
                    yield from (f"    {line}" for line in view.numbers(result))
                    if isinstance(result, NativeResult) and result.is_users and result.kind in SIZED:
                        yield f"    {ALONE if result.cause else UNKNOWN_ALONE}"
    yield from [*report.notes, view.compared(report), report.verdict]


def _native(report: ParityReport, case: CaseResult, framework: str, native: Any) -> list[str | None]:
    difference = match.in_words(native, native.finite_size) if native.kind else ""
    reasons = [
        f"listed as {entry.reason!r}"
        for entry in report.known
        if entry.entry and entry.entry.is_for(framework, case.name, native) and entry.entry.is_alike(native)
    ]
    return [native.function, native.verdict, native.problem or difference, *reasons]
