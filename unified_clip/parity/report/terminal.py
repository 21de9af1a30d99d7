"""Print the report of a run on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ..._kit.display import as_started, cell
from ..results import ParityReport
from . import build, markdown

MOST_LINES = 40
"""More lines on problems would hide the verdict above them."""


def show(report: ParityReport, out: Path, annotations: Sequence[str] | None = None, *, accepting: bool = False) -> None:
    """Print the verdict, the problems and what to do about them.

    annotations: With `--format github`, these lines are printed instead of the problems.
    accepting: Whether the run has the option `--accept`, so that there is nothing else to do.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    console.print(cell(report.verdict, "bold red" if report.exit_code else "bold green"), soft_wrap=True)
    lines = list(markdown.problem_lines(report))
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"- and {len(lines) - MOST_LINES} more lines, in {out / 'parity.md'}"]
    for annotation in annotations or ():
        console.print(Text(annotation), soft_wrap=True)
    for line in [*(lines if annotations is None else ()), *(() if accepting else build.next_steps(report))]:
        console.print(cell(as_started(line)), soft_wrap=True)
    where = f"The report: {out / 'index.html'}, and parity.md, parity.json and parity.xml beside it."
    for line in [*markdown.glance(report), where]:
        console.print(cell(line), soft_wrap=True)
