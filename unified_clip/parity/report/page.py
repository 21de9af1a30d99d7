"""Show the report as one HTML page that needs no other file."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ...recording.runs import RecordedCall
from ..known.entries import KINDS
from ..modes import NATIVE, TITLES
from ..results import CaseResult, NativeResult, ParityReport, Problem, UnifiedClipResult
from . import baseline, by_rule, plots, recorded_plot
from .markdown import size

VERDICTS = {
    "equal": "the same bits as exact arithmetic; for a framework's function the same numbers",
    "close": "within the contract's bound; for a framework's function within rounding",
    "flushed": "correct except for subnormal numbers, which the framework flushes to zero",
    "known": "a difference of a framework's function that the suite lists",
    "different": "a difference that should not be there; for a framework's function one that the suite does not "
    "list, or lists with another size",
    "crashed": "the worker ended without a result",
    "timed out": "the worker gave no result in time",
    "out of memory": "the worker had too little memory",
    "unreadable": "the worker wrote something that is not a result",
    "missing": "the framework is not installed",
}
"""The verdicts from best to worst, and their meanings."""


class Column(NamedTuple):
    """A column of the matrix."""

    framework: str
    mode: str


Result = UnifiedClipResult | NativeResult


@dataclass(frozen=True)
class Row:
    """A case in the page."""

    number: int
    case: CaseResult
    columns: Sequence[Column]

    @cached_property
    def cells(self) -> list[Result | None]:
        frameworks = self.case.frameworks
        return [
            frameworks[column.framework].get(column.mode) if column.framework in frameworks else None
            for column in self.columns
        ]

    @property
    def shown(self) -> list[tuple[int, Column, Result]]:
        """Results that are not equal, with the numbers of their columns, from 1."""
        pairs = zip(self.columns, self.cells, strict=True)
        found = [(number, column, cell) for number, (column, cell) in enumerate(pairs, 1) if cell]
        return [each for each in found if each[2].verdict != "equal"]


@dataclass(frozen=True)
class View:
    """The report for the template."""

    report: ParityReport

    @cached_property
    def columns(self) -> list[Column]:
        """The modes of each framework that ran."""
        ran = {
            (name, mode)
            for case in self.report.cases
            for name, result in case.frameworks.items()
            for mode in result.model_fields_set
        }
        return [Column(name, mode) for name in self.report.frameworks for mode in TITLES if (name, mode) in ran]

    @cached_property
    def rows(self) -> list[Row]:
        return [Row(number, case, self.columns) for number, case in enumerate(self.report.cases, 1)]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The numbers of rows, by case name."""
        return {row.case.name: row.number for row in self.rows}

    @cached_property
    def verdicts(self) -> list[str]:
        """The verdicts that occur, in order."""
        found = {cell.verdict for row in self.rows for cell in row.cells if cell}
        return [verdict for verdict in VERDICTS if verdict in found]

    def modes(self, framework: str) -> list[str]:
        return [column.mode for column in self.columns if column.framework == framework]

    def counts(self, column: Column) -> list[tuple[str, int]]:
        """Return how often each verdict occurs."""
        number = self.columns.index(column)
        found = Counter[str](cell.verdict for row in self.rows if (cell := row.cells[number]))
        return [(verdict, found[verdict]) for verdict in VERDICTS if found[verdict]]

    @cached_property
    def natives(self) -> list[str]:
        """The frameworks whose own functions ran."""
        return [name for name in self.report.frameworks if NATIVE in self.modes(name)]

    @cached_property
    def by_rule(self) -> list[by_rule.Row]:
        return by_rule.rows(self.report, self.natives)

    @cached_property
    def _reasons(self) -> dict[tuple[str, str], str]:
        return {(entry.framework, case): entry.reason for entry in self.report.known for case in entry.cases}

    def reason(self, framework: str, case: str) -> str:
        """Return the reason of a known difference, else ''."""
        return self._reasons.get((framework, case), "")

    def result(self, problem: Problem) -> Result | None:
        """Return the first result that shows a problem."""
        if not problem.framework or not problem.mode:
            return None
        case = self.report.cases[self.numbers[problem.cases[0]] - 1]
        return case.frameworks[problem.framework].get(problem.mode)

    @property
    def notes(self) -> list[str]:
        """The lines below the verdict."""
        changes = self.report.baseline
        return [*([] if changes is None else [baseline.headline(changes)]), *self.report.notes]

    @property
    def changes(self) -> list[list[str]]:
        """The changes since the baseline."""
        return baseline.rows(self.report.baseline or [])

    @property
    def passed(self) -> bool:
        return self.report.exit_code == 0


def render(report: ParityReport, recorded: Sequence[RecordedCall] = (), ported: Any = None) -> str:
    """Return the page.

    recorded: The calls of a recorded training run, for a plot.
    ported: The report of `unified-clip port`, for a section.
    """
    report = report.safe()
    environment = _environment()
    environment.filters |= {"ulps": _ulps, "breakable": _breakable}
    page: str = environment.get_template("page.html").render(
        report=report,
        view=View(report),
        titles=TITLES,
        sides={"exact": "exact", **plots.NAMES},
        meanings=VERDICTS,
        kinds=KINDS,
        change=baseline.HEADER,
        native=NATIVE,
        size=size,
        plots=list(_plots(report, recorded)),
        ported=ported and ported.escaped(),
    )
    return page


def render_ported(ported: Any) -> str:
    """Return a page with a report of `unified-clip port` alone."""
    return _environment().get_template("ported_page.html").render(ported=ported.escaped())


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("unified_clip.parity.report", "web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _ulps(distance: float) -> str:
    """Return a distance as text. inf is the distance from NaN."""
    if not math.isfinite(distance):
        return "no number"
    return f"{distance:.3g} ULP" if not 10 <= distance < 1e9 else f"{distance:,.0f} ULP"


def _breakable(name: str) -> Markup:
    """Return a name that may wrap after a dot, a comma and an underscore."""
    return Markup(re.sub(r"([._,])", r"\1<wbr>", str(escape(name))))


def _plots(report: ParityReport, recorded: Sequence[RecordedCall]) -> Iterator[tuple[str, str, Markup]]:
    """Yield the plots with title and description."""
    found = (
        (
            "Distances from the exact results",
            "How many results lie how far from the exact one, in representable numbers, at the first stage that "
            "differs. The height of a bar is the logarithm of the count above it.",
            plots.histogram(report),
        ),
        (
            "Norms of the frameworks' functions",
            "Relative distance from the exact norm by number of elements, with a mark for each list of gradients.",
            plots.norms(report),
        ),
        (
            "The recorded run",
            "Total norm and threshold at each step. Clipped steps are marked below, and on the line if they are few.",
            recorded_plot.plot(recorded),
        ),
    )
    return ((title, description, plot) for title, description, plot in found if plot)
