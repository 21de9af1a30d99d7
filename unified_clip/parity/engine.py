"""Run a suite: every case on every framework and path, and everything compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from .judge.judged import Oracle, Seen, look, numbers
from .judge.oracle import Expected
from .judge.verdict import STAGES, Verdict
from .judge.worst_element import Details
from .known import entries
from .known.entries import Judgement, KnownDifferenceStatus, NativeDeviation
from .modes import COMPILED, DEVICE, GRAPH, HOST, IN_GRAPHS, NATIVE, PROCESSES, STATIC
from .report.baseline import Change
from .suite.cases import Case
from .suite.load import Suite
from .workers import pool
from .workers.pool import LOOK_EVERY, Found

AT_ONCE = 2
"""Workers that run side by side."""

TOGETHER = ((COMPILED,), tuple(reversed(PROCESSES)), (HOST, DEVICE, GRAPH, NATIVE), (STATIC,))
"""Modes that one worker runs, one after the other: the slowest has one of its own, and so has Paddle's static mode."""

Progress = Callable[[str, int], Any]
"""Told of a framework and how many more results it has given."""


@dataclass(frozen=True)
class Cell:
    """One case on one framework."""

    verdicts: dict[str, Verdict]
    """Ours against the oracle, by path."""

    digests: Mapping[str, Mapping[str, str]]
    """SHA-256 of ours, by path and stage; none where there is no result."""

    native: NativeDeviation | None = None
    judgement: Judgement | None = None
    """Of the native."""

    problem: str = ""
    """What is wrong with the native's difference."""

    failure: Verdict | None = None
    """The native gave no result."""

    details: Mapping[str, Details] = field(default_factory=dict)
    """By mode, the numbers where a result differs."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """That a result took, by mode."""


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
        return [stage for stage in STAGES if len({one.get(stage) for one in found}) > 1]


@dataclass(frozen=True)
class Run:
    """What came of a suite."""

    frameworks: Sequence[str]
    versions: dict[str, str]
    rows: list[Row]
    known: Sequence[KnownDifferenceStatus] = ()
    may_be_missing: Sequence[str] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    """What tables call the frameworks' own functions."""

    suite: str = ""
    """The suite's directory, as it was given."""

    started: datetime = datetime(1970, 1, 1, tzinfo=UTC)

    changes: Sequence[Change] | None = None
    """Against a baseline, where there is one."""

    notes: Sequence[str] = ()
    """What is worth telling, and changes no verdict."""

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
        """0: all as it should be; 1: a difference that should not be, or against a baseline one that is worse; 3: a
        framework gave no result."""
        worse = self.differs if self.changes is None else any(change.worse for change in self.changes)
        return 1 if worse else 3 if self.incomplete else 0

    @property
    def differs(self) -> bool:
        """Whether there is a difference that should not be, in a baseline or not."""
        return self.ours_differ or self.natives_differ

    @property
    def ours_differ(self) -> bool:
        """From what is right, or between frameworks."""
        return any(verdict.kind == "different" for _, verdict in self.verdicts()) or any(row.apart for row in self.rows)

    @property
    def natives_differ(self) -> bool:
        """Otherwise than the list of known differences says."""
        cells = [cell for row in self.rows for cell in row.cells.values()]
        return any(cell.problem for cell in cells) or any(shown.problem for shown in self.known)

    @property
    def incomplete(self) -> bool:
        """Whether there are results missing that should be there, or nothing was compared."""
        return not self.compared or any(
            verdict.is_failure and not (verdict.kind == "missing" and framework in self.may_be_missing)
            for framework, verdict in [*self.verdicts(), *self.failures()]
        )

    def failures(self) -> list[tuple[str, Verdict]]:
        """Natives that gave no result, and whose they are."""
        cells = [(framework, cell) for row in self.rows for framework, cell in row.cells.items()]
        return [(framework, cell.failure) for framework, cell in cells if cell.failure]

    @property
    def compared(self) -> bool:
        """Whether there was anything to compare."""
        return not all(verdict.is_failure for _, verdict in self.verdicts()) or any(
            cell.judgement for row in self.rows for cell in row.cells.values()
        )


def _result(future: Future[Found]) -> Found:
    """Wait in steps: a wait without end is not ended by a signal that came just before it."""
    while not future.done():
        wait([future], LOOK_EVERY)
    return future.result()


def runs(suite: Suite, framework: str) -> list[pool.Run]:
    """What a framework's worker has to do, in order."""
    chosen = [case for case in suite.cases if not case.frameworks or framework in case.frameworks]
    table = suite.frameworks[framework]
    return [
        pool.Run(mode, case)
        for mode in table.modes
        for case in chosen
        if not case.modes or mode in case.modes
        if _can_run(case, mode, table.left_out.get(mode, ()))
    ]


def _can_run(case: Case, mode: str, left_out: Sequence[str]) -> bool:
    if mode in PROCESSES:
        return case.is_for_processes(left_out)
    return mode not in IN_GRAPHS or case.is_for_graphs(left_out)


def run(suite: Suite, progress: Progress = lambda framework, count: None) -> Run:
    """Run a suite on its frameworks."""
    right = Oracle()

    def work(name: str, modes: Sequence[str]) -> Found:
        framework = suite.frameworks[name]
        chosen = [each for each in runs(suite, name) if each.mode in modes]
        known = [entry for entry in suite.known or [] if entry.framework == name]
        return pool.run(
            pool.command(name, framework.python),
            chosen,
            suite.timeout,
            lambda run, outcome: look(run, right(run.case), outcome, framework, known),
            lambda count: progress(name, count),
        )

    started = datetime.now(UTC)
    # The longest first.
    jobs = [
        (name, modes) for modes in TOGETHER for name in reversed(list(suite.frameworks)) if _has(suite, name, modes)
    ]
    pool.STOP.clear()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        try:
            pending = [(name, threads.submit(work, name, modes)) for name, modes in jobs]
            for case in suite.cases:
                right(case)
            found = {name: Found() for name in suite.frameworks}
            for name, future in pending:
                part = _result(future)
                found[name].results |= part.results
                found[name].versions |= part.versions
                found[name].printed += part.printed
        except BaseException:
            pool.STOP.set()  # and not cleared: of an interrupted submit a thread is left that the pool does not know
            threads.shutdown(cancel_futures=True)
            raise
    versions = {name: version for one in found.values() for name, version in one.versions.items()}
    judged = _judge_natives(suite, found)
    rows = [_row(case, right(case), found, judged) for case in suite.cases]
    allowed = [name for name, framework in suite.frameworks.items() if framework.may_be_missing]
    titles = {name: framework.title for name, framework in suite.frameworks.items()}
    return Run(
        list(suite.frameworks),
        dict(sorted(versions.items())),
        rows,
        judged.shown,
        allowed,
        titles,
        suite.directory,
        started,
        notes=list(_notes(suite, found)),
    )


def _has(suite: Suite, framework: str, modes: Sequence[str]) -> bool:
    return any(mode in modes for mode in suite.frameworks[framework].modes)


def _notes(suite: Suite, found: Mapping[str, Found]) -> Iterator[str]:
    if suite.without:
        yield f"Not run, by --without: {', '.join(suite.without)}."
    for framework, one in found.items():
        for line in dict.fromkeys(one.printed):
            yield f"{framework}: its worker printed {line}, which is no result and was ignored."


@dataclass(frozen=True)
class _Judged:
    differences: Mapping[tuple[str, str], NativeDeviation]
    judgements: Mapping[tuple[str, str], Judgement]
    wrong: Mapping[tuple[str, str], str]
    shown: Sequence[KnownDifferenceStatus]


def _judge_natives(suite: Suite, found: Mapping[str, Found]) -> _Judged:
    """Of a framework that did not give all its results, the list is not judged: what is missing there could show."""
    differences: dict[tuple[str, str], NativeDeviation] = {}
    whole = set(found)
    for framework, one in found.items():
        for (_, name), seen in one.results.items():
            if seen.failure or (seen.verdict and seen.digests is None):
                whole.discard(framework)
            if seen.difference:
                differences[framework, name] = seen.difference
    known = suite.known
    if known is not None:
        known = [entry for entry in known if NATIVE in suite.frameworks[entry.framework].modes]
    versions = {framework: one.versions for framework, one in found.items()}
    judgements, wrong, shown = entries.judge(known, differences, versions)
    if suite.chosen_cases:  # an entry may show in the other cases
        shown = [replace(each, problem="") for each in shown if each.cases]
    return _Judged(differences, judgements, wrong, [each for each in shown if each.known.framework in whole])


def _row(case: Case, right: Expected, found: Mapping[str, Found], judged: _Judged) -> Row:
    cells = {}
    for framework, one in found.items():
        seen: dict[str, Seen] = {mode: result for (mode, name), result in one.results.items() if name == case.name}
        if seen:
            cells[framework] = _cell(case, right, seen, (framework, case.name), judged)
    return Row(case, right.digests, cells)


def _cell(case: Case, right: Expected, seen: Mapping[str, Seen], key: tuple[str, str], judged: _Judged) -> Cell:
    ours = {mode: each for mode, each in seen.items() if mode != NATIVE}
    return Cell(
        {mode: each.verdict for mode, each in ours.items() if each.verdict},
        {mode: each.digests for mode, each in ours.items() if each.digests is not None},
        judged.differences.get(key),
        judged.judgements.get(key),
        judged.wrong.get(key, ""),
        seen[NATIVE].failure if NATIVE in seen else None,
        numbers(case, right, seen),
        {mode: each.seconds for mode, each in seen.items() if each.seconds is not None},
    )
