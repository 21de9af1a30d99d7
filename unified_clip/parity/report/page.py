"""Render the report as a single HTML page, without other files."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from ..._page.templates import environment
from ..judge.verdict import VERDICTS
from ..known.entries import KINDS
from ..modes import NATIVE, TITLES
from ..results import SIDES, CaseResult, FrameworkResult, ParityReport, Problem, Result
from . import build, view


class Column(NamedTuple):
    framework: str
    mode: str


@dataclass(frozen=True)
class Card:
    result: Result
    columns: Sequence[tuple[int, Column, Result]]
    """(column number, column, result) for each result on the card. Column numbers start at 1. In the list of problems,
    all column numbers are 0."""

    @property
    def numbers(self) -> str:
        return " ".join(str(number) for number, _, _ in self.columns)

    @property
    def title(self) -> str:
        modes: dict[str, list[str]] = {}
        for _, column, result in self.columns:
            modes.setdefault(column.framework, []).append(view.title(column.mode, result))
        return "; ".join(f"{name}, {' and '.join(titles)}" for name, titles in modes.items())

    @property
    def commands(self) -> list[str]:
        return list(dict.fromkeys(result.reproduce for _, _, result in self.columns if result.reproduce))


@dataclass(frozen=True)
class PageRow:
    number: int
    case: CaseResult
    columns: Sequence[Column]

    @cached_property
    def cells(self) -> list[Result | None]:
        frameworks = self.case.frameworks
        return [frameworks.get(column.framework, FrameworkResult()).get(column.mode) for column in self.columns]

    @property
    def not_equal(self) -> list[tuple[int, Column, Result]]:
        numbered = enumerate(zip(self.columns, self.cells, strict=True), 1)
        return [(number, column, cell) for number, (column, cell) in numbered if cell and cell.verdict != "equal"]

    @property
    def cards(self) -> list[Card]:
        alike: dict[object, list[tuple[int, Column, Result]]] = {}
        for number, column, result in self.not_equal:
            key = (result.verdict, result.detail, repr(result.details))
            alike.setdefault(number if column.mode == NATIVE else key, []).append((number, column, result))
        return [Card(columns[0][2], columns) for columns in alike.values()]


@dataclass(frozen=True)
class PageView:
    report: ParityReport

    @cached_property
    def columns(self) -> list[Column]:
        results = [each for case in self.report.cases for each in case.frameworks.items()]
        ran = {(name, mode) for name, result in results for mode in result.model_fields_set}
        return [Column(name, mode) for name in self.report.frameworks for mode in TITLES if (name, mode) in ran]

    @cached_property
    def rows(self) -> list[PageRow]:
        return [PageRow(number, case, self.columns) for number, case in enumerate(view.ordered_cases(self.report), 1)]

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {row.case.name: row.number for row in self.rows}

    @cached_property
    def verdicts(self) -> list[str]:
        occurring = {cell.verdict for row in self.rows for cell in row.cells if cell}
        return sorted(occurring, key=list(VERDICTS).index)

    def modes(self, framework: str) -> list[str]:
        return [column.mode for column in self.columns if column.framework == framework]

    def counts(self, column: Column) -> list[tuple[str, int]]:
        number = self.columns.index(column)
        verdicts = Counter[str](cell.verdict for row in self.rows if (cell := row.cells[number]))
        return [(verdict, verdicts[verdict]) for verdict in sorted(verdicts, key=list(VERDICTS).index)]

    def percent(self, column: Column, count: int) -> str:
        share = 100 * count / sum(number for _, number in self.counts(column))
        if share in (0, 100):
            return f"{share:.0f} %"
        return f"{min(max(share, 0.1), 99.9):.{0 if 1 <= share <= 99 else 1}f} %"

    @cached_property
    def tiles(self) -> list[tuple[str, str, str]]:
        own, native = self._verdicts(native=False), self._verdicts(native=True)
        kept = own["equal"] + own["close"] + own["flushed"]
        quality = "equal" if 0 < kept == own.total() else "different"
        tiles = [(f"{kept} of {own.total()}", "results of unified_clip are right", quality)] if own else []
        if native:
            agreeing = native["equal"] + native["no norm"] + native["close"]
            whose = view.whose(self.report)
            quality = "equal" if agreeing == native.total() else ""
            tiles.append((f"{agreeing} of {native.total()}", f"results of {whose} are right", quality))
            if failing := sum(bool(result.problem) for _, result in self.report.natives()):
                what = "not in the list of known differences" if self.report.known else "different"
                tiles.append((str(failing), what, "different"))
        if native["known"]:
            tiles.append((str(native["known"]), "known differences", "known"))
        return [*tiles, (str(len(self.rows)), "cases", "")]

    def _verdicts(self, *, native: bool) -> Counter[str]:
        columns = [column for column in self.columns if (column.mode == NATIVE) == native]
        return Counter(verdict for column in columns for verdict, count in self.counts(column) for _ in range(count))

    @cached_property
    def reasons(self) -> dict[tuple[str, str], str]:
        return {(entry.framework, case): entry.reason for entry in self.report.known for case in entry.cases}

    def card(self, problem: Problem) -> Card | None:
        result = self.report.result_of(problem)
        column = Column(problem.framework or "", problem.mode or "")
        return Card(result, [(0, column, result)]) if result else None


def render(report: ParityReport) -> str:
    report = report.safe()
    page: str = _template("page.html").render(
        report=report,
        view=PageView(report),
        titles=view.titles(report),
        whose=view.whose(report),
        sides=dict([("exact", "exact"), *SIDES.items()]),
        meanings=VERDICTS,
        kinds=KINDS,
        notes=[view.compared(report), *report.notes],
        next_steps=build.next_steps(report),
        native=NATIVE,
        size=view.size,
    )
    return page


def _template(name: str) -> Any:
    templates = environment(__package__)
    templates.filters |= {"ulps": _ulps, "breakable": _breakable}
    return templates.get_template(name)


def _ulps(distance: float) -> str:
    if not math.isfinite(distance):
        return "no number"
    return f"{distance:.3g} ULP" if not 10 <= distance < 1e9 else f"{distance:,.0f} ULP"


def _breakable(name: str) -> Markup:
    return Markup(re.sub(r"([._,/])", r"\1<wbr>", str(escape(name))))
