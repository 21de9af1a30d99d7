"""Print the report of a run as tables on the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..._display import cell
from ..results import ParityReport
from . import baseline, markdown


def show(report: ParityReport, out: Path) -> None:
    """Print the report to the terminal: tables, problems if the run fails, the summary, and the path of the report.

    With a baseline, print only the table of changes instead of all tables.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    header = ["case", *report.frameworks]
    tables = [
        (markdown.LEGEND, header, markdown.rows(report, markdown.unified_clip)),
        (markdown.native_legend(report), header, markdown.native_rows(report)),
        (markdown.known_legend(report), markdown.KNOWN_HEADER, markdown.known_rows(report)),
    ]
    if report.baseline is not None:
        tables = [("Since the baseline.", baseline.HEADER, baseline.rows(report.baseline))]
    for legend, columns, lines in tables:
        if lines:
            table = Table(caption=legend, caption_justify="left")
            for title in columns:
                table.add_column(cell(title))
            for line in lines:
                table.add_row(*map(cell, line))
            console.print(table)
    where = f"The report: {out / 'index.html'}, and parity.md, parity.json and parity.xml beside it."
    problems = (
        markdown.problem_lines(report) if report.exit_code else []
    )  # without a failure, the baseline has all of them
    for text in [*problems, *markdown.headline(report), where]:
        console.print(cell(text), soft_wrap=True)
