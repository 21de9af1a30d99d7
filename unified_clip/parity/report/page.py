"""The report as one self-contained HTML page, from parity.json's data.

python -m unified_clip.parity.report.page report/parity.json > index.html
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ..._display import safe
from ..known.entries import KINDS
from ..modes import NATIVE, OURS
from . import baseline, by_rule, plots, recorded_plot
from .markdown import size

Data = Mapping[str, Any]

CODE = ("text", "suggestion")
"""Keys of reports whose values are source code."""

TITLES = {**OURS, NATIVE: "its own functions"}
"""The names of modes."""

VERDICTS = {
    "equal": "the same bits as exact arithmetic; of a native the same numbers",
    "close": "within what the contract allows; of a native within rounding",
    "flushed": "right but for subnormal numbers, which the framework takes for zero",
    "known": "a difference of a native that the suite lists",
    "different": "a difference that should not be; of a native one that is not listed, or not as it is listed",
    "crashed": "the worker ended",
    "timed out": "the worker gave nothing for too long",
    "out of memory": "the worker had too little memory",
    "unreadable": "the worker left something else than a result",
    "missing": "the framework is not installed",
}
"""The verdicts from best to worst, and their meanings."""


class Column(NamedTuple):
    """A column of the matrix."""

    framework: str
    mode: str


@dataclass(frozen=True)
class Row:
    """A case in the page."""

    number: int
    case: Data
    columns: Sequence[Column]

    @cached_property
    def cells(self) -> list[Data | None]:
        return [self.case["frameworks"].get(column.framework, {}).get(column.mode) for column in self.columns]

    @property
    def shown(self) -> list[tuple[int, Column, Data]]:
        """Results that are not equal, with the numbers of their columns, from 1."""
        pairs = zip(self.columns, self.cells, strict=True)
        found = [(number, column, cell) for number, (column, cell) in enumerate(pairs, 1) if cell]
        return [each for each in found if each[2]["verdict"] != "equal"]


@dataclass(frozen=True)
class View:
    """The report for the template."""

    data: Data

    @cached_property
    def columns(self) -> list[Column]:
        """The modes of each framework that ran."""
        cases = self.data["cases"]
        run = {(name, mode) for case in cases for name, modes in case["frameworks"].items() for mode in modes}
        return [Column(name, mode) for name in self.data["frameworks"] for mode in TITLES if (name, mode) in run]

    @cached_property
    def rows(self) -> list[Row]:
        return [Row(number, case, self.columns) for number, case in enumerate(self.data["cases"], 1)]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The numbers of rows, by case name."""
        return {row.case["name"]: row.number for row in self.rows}

    @cached_property
    def verdicts(self) -> list[str]:
        """The verdicts that occur, in order."""
        found = {cell["verdict"] for row in self.rows for cell in row.cells if cell}
        return [verdict for verdict in VERDICTS if verdict in found]

    def modes(self, framework: str) -> list[str]:
        return [column.mode for column in self.columns if column.framework == framework]

    def counts(self, column: Column) -> list[tuple[str, int]]:
        """Return how often each verdict occurs."""
        number = self.columns.index(column)
        found = Counter(cell["verdict"] for row in self.rows if (cell := row.cells[number]))
        return [(verdict, found[verdict]) for verdict in VERDICTS if found[verdict]]

    @cached_property
    def natives(self) -> list[str]:
        """The frameworks whose own functions ran."""
        return [name for name in self.data["frameworks"] if NATIVE in self.modes(name)]

    @cached_property
    def by_rule(self) -> list[by_rule.Row]:
        return by_rule.rows(self.data, self.natives)

    @cached_property
    def _reasons(self) -> dict[tuple[str, str], str]:
        return {(each["framework"], case): each["reason"] for each in self.data["known"] for case in each["cases"]}

    def reason(self, framework: str, case: str) -> str:
        """Return the reason of a known difference, else ''."""
        return self._reasons.get((framework, case), "")

    def result(self, problem: Data) -> Data | None:
        """Return the first result that shows a problem."""
        if not problem["framework"]:
            return None
        found: Data = self.data["cases"][self.numbers[problem["cases"][0]] - 1]["frameworks"]
        result: Data = found[problem["framework"]][problem["mode"]]
        return result

    @property
    def notes(self) -> list[str]:
        """The lines below the verdict."""
        changes = self.data["baseline"]
        return [*([] if changes is None else [baseline.headline(changes)]), *self.data["notes"]]

    @property
    def changes(self) -> list[list[str]]:
        """The changes since the baseline."""
        return baseline.rows(self.data["baseline"] or [])

    @property
    def passed(self) -> bool:
        return bool(self.data["exit_code"] == 0)


def render(data: Data, record: Sequence[Data] = (), ported: Any = None) -> str:
    """Return the page.

    record: The lines of a recorded training run, for a plot.
    ported: The report of `unified-clip port`, for a section.
    """
    data = safe(data, code=CODE)
    environment = _environment()
    environment.filters |= {"ulps": _ulps, "breakable": _breakable}
    view = View(data)
    page: str = environment.get_template("page.html").render(
        data=data,
        view=view,
        titles=TITLES,
        meanings=VERDICTS,
        kinds=KINDS,
        change=baseline.HEADER,
        native=NATIVE,
        size=size,
        plots=list(_plots(data, record)),
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


def _ulps(distance: float | str) -> str:
    """Return a distance as text. inf is the distance from NaN."""
    if isinstance(distance, str):
        return "no number"
    return f"{distance:.3g} ulp" if not 10 <= distance < 1e9 else f"{distance:,.0f} ulp"


def _breakable(name: str) -> Markup:
    """Return a name that may wrap after a dot, a comma and an underscore."""
    return Markup(re.sub(r"([._,])", r"\1<wbr>", str(escape(name))))


def _plots(data: Data, record: Sequence[Data]) -> Iterator[tuple[str, str, Any]]:
    """Yield the plots with title and description."""
    found = (
        (
            "How far results are from the exact ones",
            "How many results lie how far from the exact one, counted in representable numbers, at the stage where "
            "they begin to differ. The height of a bar goes by the logarithm of the count above it.",
            plots.histogram(data),
        ),
        (
            "The norm of the frameworks' own functions",
            "Relative distance from the exact norm over the number of elements; a mark for each list of gradients.",
            plots.norms(data),
        ),
        (
            "The recorded run",
            "Total norm and threshold at each step. Clipped steps are marked below, and on the line if they are few.",
            recorded_plot.record(record),
        ),
    )
    return (each for each in found if each[2])
