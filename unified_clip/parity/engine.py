"""Run a suite: every case on every framework and path, and everything compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from . import compare, launch, natives, oracle
from .cases import Case
from .compare import Verdict
from .launch import COMPILED, DEVICE, GRAPH, HOST, IN_GRAPHS, NATIVE, STATIC, Failure, Found, Outcome
from .natives import Difference, Judgement, Shown
from .oracle import Expected
from .suite import Suite
from .tensors import digest

AT_ONCE = 2
"""Workers that run side by side."""

TOGETHER = ((COMPILED,), (DEVICE, GRAPH), (HOST, NATIVE), (STATIC,))
"""Modes that one process runs, one after the other: the slowest have one of their own, and Paddle's static mode."""

Progress = Callable[[str, int], Any]
"""Told of a framework and how many more results it has given."""


@dataclass(frozen=True)
class Cell:
    """One case on one framework."""

    verdicts: dict[str, Verdict]
    """Ours against the oracle, by path."""

    digests: dict[str, dict[str, str]]
    """SHA-256 of ours, by path and stage; none where there is no result."""

    native: Difference | None = None
    judgement: Judgement | None = None
    """Of the native."""

    problem: str = ""
    """What is wrong with the native's difference."""

    failure: Verdict | None = None
    """The native gave no result."""


@dataclass(frozen=True)
class Row:
    """One case: what is right, and what every framework made of it."""

    case: Case
    digests: dict[str, str]
    """SHA-256 of what is right, by stage."""

    cells: dict[str, Cell]

    @property
    def apart(self) -> list[str]:
        """The stages at which ours gave other bits on the host path of one framework than on that of another."""
        found = [cell.digests[HOST] for cell in self.cells.values() if HOST in cell.digests]
        return [stage for stage in compare.STAGES if len({one.get(stage) for one in found}) > 1]


@dataclass(frozen=True)
class Run:
    """What came of a suite."""

    frameworks: Sequence[str]
    versions: dict[str, str]
    rows: list[Row]
    known: Sequence[Shown] = ()
    may_be_missing: Sequence[str] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    """What tables call the frameworks' own functions."""

    def verdicts(self) -> list[tuple[str, Verdict]]:
        """Every verdict on ours, and whose it is."""
        return [
            (framework, verdict)
            for row in self.rows
            for framework, cell in row.cells.items()
            for verdict in cell.verdicts.values()
        ]

    @property
    def exit_code(self) -> int:
        """0: all as it should be; 1: a difference that should not be; 3: a framework gave no result."""
        if any(verdict.kind == "different" for _, verdict in self.verdicts()) or any(row.apart for row in self.rows):
            return 1
        if any(cell.problem for row in self.rows for cell in row.cells.values()):
            return 1
        if any(shown.problem for shown in self.known):
            return 1
        failed = [
            framework
            for framework, verdict in [*self.verdicts(), *self.failures()]
            if not verdict.agrees and not (verdict.kind == "missing" and framework in self.may_be_missing)
        ]
        return 3 if failed or not self.compared else 0

    def failures(self) -> list[tuple[str, Verdict]]:
        """Natives that gave no result, and whose they are."""
        cells = [(framework, cell) for row in self.rows for framework, cell in row.cells.items()]
        return [(framework, cell.failure) for framework, cell in cells if cell.failure]

    @property
    def compared(self) -> bool:
        """Whether there was anything to compare."""
        return any(verdict.agrees for _, verdict in self.verdicts()) or any(
            cell.judgement for row in self.rows for cell in row.cells.values()
        )


def runs(suite: Suite, framework: str) -> list[launch.Run]:
    """What a framework's worker has to do, in order."""
    chosen = [case for case in suite.cases if not case.frameworks or framework in case.frameworks]
    table = suite.frameworks[framework]
    return [
        launch.Run(mode, case)
        for mode in table.modes
        for case in chosen
        if mode not in IN_GRAPHS or case.is_for_graphs(table.left_out.get(mode, ()))
    ]


def run(suite: Suite, progress: Progress = lambda framework, count: None) -> Run:
    """Run a suite on its frameworks."""

    def work(name: str, modes: Sequence[str]) -> Found:
        worker = launch.command(name, suite.frameworks[name].python)
        chosen = [each for each in runs(suite, name) if each.mode in modes]
        return launch.run(worker, chosen, suite.timeout, lambda count: progress(name, count))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            # The longest first.
            jobs = [(name, modes) for modes in TOGETHER for name in reversed(list(suite.frameworks))]
            pending = [(name, pool.submit(work, name, modes)) for name, modes in jobs]
            expected = {case.name: oracle.expect(case) for case in suite.cases}
            found = {name: Found() for name in suite.frameworks}
            for name, future in pending:
                found[name].results |= future.result().results
                found[name].versions |= future.result().versions
        except BaseException:
            launch.STOP.set()
            pool.shutdown(cancel_futures=True)
            launch.STOP.clear()
            raise
    versions = {name: version for one in found.values() for name, version in one.versions.items()}
    judged = _judge_natives(suite, expected, found)
    rows = [_row(case, expected[case.name], found, judged, suite) for case in suite.cases]
    allowed = [name for name, framework in suite.frameworks.items() if framework.may_be_missing]
    titles = {name: framework.title for name, framework in suite.frameworks.items()}
    return Run(list(suite.frameworks), dict(sorted(versions.items())), rows, judged.shown, allowed, titles)


@dataclass(frozen=True)
class _Judged:
    differences: Mapping[tuple[str, str], Difference]
    judgements: Mapping[tuple[str, str], Judgement]
    wrong: Mapping[tuple[str, str], str]
    shown: Sequence[Shown]


def _judge_natives(suite: Suite, expected: Mapping[str, Expected], found: Mapping[str, Found]) -> _Judged:
    """Of a framework that did not give all its results, the list is not judged: what is missing there could show."""
    cases = {case.name: case for case in suite.cases}
    differences: dict[tuple[str, str], Difference] = {}
    whole = set(found)
    for framework, one in found.items():
        for (mode, name), result in one.results.items():
            if isinstance(result, Failure):
                whole.discard(framework)
            elif mode == NATIVE and (difference := natives.measure(cases[name], expected[name], result)):
                differences[framework, name] = difference
    known = [entry for entry in suite.known if NATIVE in suite.frameworks[entry.framework].modes]
    versions = {framework: one.versions for framework, one in found.items()}
    judgements, wrong, shown = natives.judge(known, differences, versions)
    return _Judged(differences, judgements, wrong, [each for each in shown if each.known.framework in whole])


def _row(case: Case, right: Expected, found: Mapping[str, Found], judged: _Judged, suite: Suite) -> Row:
    cells = {}
    for framework, one in found.items():
        key, flushes = (framework, case.name), suite.frameworks[framework].flushes
        results = {mode: result for (mode, name), result in one.results.items() if name == case.name}
        if results:
            native = results.pop(NATIVE, None)
            cells[framework] = Cell(
                {path: compare.judge(case, right, each, path, flushes=flushes) for path, each in results.items()},
                {path: _digests(each) for path, each in results.items() if not isinstance(each, Failure)},
                judged.differences.get(key),
                judged.judgements.get(key),
                judged.wrong.get(key, ""),
                Verdict(native.kind, detail=native.detail) if isinstance(native, Failure) else None,
            )
    return Row(case, _digests(right), cells)


def _digests(result: Outcome | Expected) -> dict[str, str]:
    """By stage; the coefficient's shows in the tensors'."""
    stages = {"norm": [result.norm], "tensors": result.gradients, "update": result.update}
    return {stage: digest(held) for stage, held in stages.items() if held is not None}
