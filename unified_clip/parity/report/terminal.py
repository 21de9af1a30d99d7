"""Print the report of a run as tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..._display import cell
from ..results import ParityReport
from . import change_rows, markdown

MOST_CASES = 40
"""Tables with more cases are not printed, because they would hide the problems."""


def show(report: ParityReport, out: Path, annotations: Sequence[str] | None = None) -> None:
    """Print the report.

    annotations: With `--format github`, these lines are printed instead of the problems.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    header = ["case", *report.frameworks]
    tables = [
        (markdown.LEGEND, header, markdown.rows(report, markdown.unified_clip)),
        (markdown.legend(markdown.NATIVE_LEGEND, report), header, markdown.native_rows(report)),
        (markdown.KNOWN_LEGEND, markdown.KNOWN_HEADER, markdown.known_rows(report)),
    ]
    where = f"The report: {out / 'index.html'}, and parity.md, parity.json and parity.xml beside it."
    if report.baseline is not None:
        tables = [("Since the baseline.", change_rows.HEADER, change_rows.rows(report.baseline))]
    elif len(report.cases) > MOST_CASES:
        tables, where = [], f"{where} parity.md has tables of the {len(report.cases)} cases."
    for annotation in annotations or ():
        console.print(Text(annotation), soft_wrap=True)
    if annotations is None:
        for text in markdown.problem_lines(report):
            console.print(cell(text), soft_wrap=True)
    for legend, columns, lines in tables:
        if lines:
            table = Table(caption=legend, caption_justify="left")
            for title in columns:
                table.add_column(cell(title))
            for line in lines:
                table.add_row(*map(cell, line))
            console.print(table)
    for text in [*markdown.headline(report), where]:
        console.print(cell(text), soft_wrap=True)
