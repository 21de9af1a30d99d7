"""Print the report of a comparison."""

from __future__ import annotations

from ..._display import cell
from .model import ComparisonReport


def show(report: ComparisonReport) -> None:
    """Print the sentences of the report on the terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    for line in report.sentences:
        console.print(cell(line), soft_wrap=True)
