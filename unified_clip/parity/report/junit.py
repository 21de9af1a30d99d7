"""The test suites and test cases of the JUnit XML (xunit2), which the template `web/parity.xml` writes.

Each combination of a framework and a mode is a test suite, and each case is a test case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ..modes import TITLES
from ..results import NativeResult, ParityReport, Result
from . import view
from .build import ALWAYS_RAISES, UNTESTED, always_raising, is_problem


class Mark(NamedTuple):
    tag: Literal["failure", "error", "skipped"]
    kind: str
    message: str
    numbers: Sequence[str] = ()


class Entry(NamedTuple):
    group: str
    name: str
    mark: Mark | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class TestSuite:
    name: str
    entries: Sequence[Entry]

    @property
    def counts(self) -> dict[str, int]:
        tags = [entry.mark.tag for entry in self.entries if entry.mark]
        failed = {f"{tag}s": tags.count(tag) for tag in ("failure", "error")}
        return {"tests": len(self.entries), **failed, "skipped": tags.count("skipped")}

    @property
    def seconds(self) -> float:
        return sum(round(entry.seconds, 3) for entry in self.entries)


def test_suites(report: ParityReport) -> list[TestSuite]:
    suites: dict[str, list[Entry]] = {}
    for name, entry in _entries(report):
        suites.setdefault(name, []).append(entry)
    return [TestSuite(name, entries) for name, entries in suites.items()]


def _entries(report: ParityReport) -> Iterator[tuple[str, Entry]]:
    """Yield (name of the test suite, entry)."""
    for framework in report.frameworks:
        results = [(case.name, case.frameworks[framework]) for case in report.cases if framework in case.frameworks]
        for mode in TITLES:
            for name, of_modes in results:
                if result := of_modes.get(mode):
                    mark = _mark(report, framework, result)
                    yield (
                        f"{framework}, {_title(mode, result)}",
                        Entry(_group(framework, mode, result), name, mark, result.seconds),
                    )
    for row in report.cases:
        bits = f"different bits: {', '.join(row.differing_stages)}"
        mark = Mark("failure", "different", bits) if row.differing_stages else None
        yield "between frameworks, host path", Entry("between", row.name, mark)
    count = Counter[tuple[str, str]]()
    for entry in report.known:
        name = f"{entry.function}: {entry.entry.cases[0] if entry.entry else entry.reason}"
        count[entry.framework, name] += 1
        number = count[entry.framework, name]
        mark = Mark("failure", "different", entry.problem) if entry.problem else None
        yield "known differences", Entry(f"known.{entry.framework}", f"{name} ({number})" if number > 1 else name, mark)
    for what in report.untested:
        yield "what the cases test", Entry("untested", what, Mark("error", "untested", UNTESTED))
    for what in always_raising(report):
        yield "what the cases test", Entry("not compared", what, Mark("error", "not compared", ALWAYS_RAISES))


def _group(framework: str, mode: str, result: Result) -> str:
    function = (result.function if isinstance(result, NativeResult) else None) or mode
    path, separator, name = function.rpartition(".py:")
    group = f"{Path(path).name}:{name}" if separator else function
    return group if group.startswith(f"{framework}.") else f"{framework}.{group}"


def _title(mode: str, result: Result) -> str:
    title = view.title(mode, result)
    return f"{title} {result.function}" if isinstance(result, NativeResult) and result.is_users else title


def _mark(report: ParityReport, framework: str, result: Result) -> Mark | None:
    is_wrong, numbers = is_problem(report, framework, result), view.numbers(result)
    numbers += [f"To see this result, run {result.reproduce}"] if result.reproduce else []
    if result.is_failure:
        return Mark("error" if is_wrong else "skipped", result.verdict, result.detail, numbers)
    problem = result.problem if isinstance(result, NativeResult) else result.detail if is_wrong else ""
    message = ". ".join(filter(None, (problem, view.example(result, problem))))
    return Mark("failure", "different", message, numbers) if problem or is_wrong else None
