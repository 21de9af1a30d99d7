"""Run a suite: every case on every framework and path, and everything compared."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import compare, launch, oracle
from .cases import Case
from .compare import Distance, Verdict
from .launch import DEVICE, HOST, NATIVE, Failure, Found, Outcome
from .oracle import Expected
from .tensors import digest

FRAMEWORKS = ("numpy", "torch", "tensorflow", "paddle", "jax")

HOST_ONLY = ("numpy",)
"""Frameworks without a device path and without clipping functions of their own."""

AT_ONCE = 2
"""Workers that run side by side."""


@dataclass(frozen=True)
class Cell:
    """One case on one framework."""

    verdicts: dict[str, Verdict]
    """Ours against the oracle, by path."""

    digests: dict[str, str]
    """SHA-256 of ours, by path; none where there is no result."""

    native: Distance | None


@dataclass(frozen=True)
class Row:
    """One case: what is right, and what every framework made of it."""

    case: Case
    digest: str
    cells: dict[str, Cell]

    @property
    def frameworks_agree(self) -> bool:
        """Whether ours gave the same bits on the host path of every framework that gave any."""
        return len({cell.digests[HOST] for cell in self.cells.values() if HOST in cell.digests}) <= 1


@dataclass(frozen=True)
class Run:
    """What came of a suite."""

    frameworks: Sequence[str]
    versions: dict[str, str]
    rows: list[Row]

    def verdicts(self) -> list[Verdict]:
        return [verdict for row in self.rows for cell in row.cells.values() for verdict in cell.verdicts.values()]

    @property
    def exit_code(self) -> int:
        """0: all agree; 1: a difference between ours, or from the oracle; 3: a framework gave no result."""
        kinds = {verdict.kind for verdict in self.verdicts()}
        if "different" in kinds or not all(row.frameworks_agree for row in self.rows):
            return 1
        return 0 if all(verdict.agrees for verdict in self.verdicts()) else 3


def modes(framework: str) -> tuple[str, ...]:
    return (HOST,) if framework in HOST_ONLY else (HOST, DEVICE, NATIVE)


def run(cases: Sequence[Case], frameworks: Sequence[str], timeout: float) -> Run:
    """Run the cases on the frameworks."""
    # The last ones first: JAX compiles for each list of shapes, and takes longest.
    jobs = [(name, mode) for name in reversed(frameworks) for mode in modes(name)]

    def work(job: tuple[str, str]) -> Found:
        framework, mode = job
        return launch.run(launch.command(framework), cases, mode, timeout)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        pending = {job: pool.submit(work, job) for job in jobs}
        expected = [oracle.expect(case) for case in cases]
        found = {job: future.result() for job, future in pending.items()}
    versions = {name: version for one in found.values() for name, version in one.versions.items()}
    rows = [_row(case, right, frameworks, found) for case, right in zip(cases, expected, strict=True)]
    return Run(frameworks, dict(sorted(versions.items())), rows)


def _row(case: Case, expected: Expected, frameworks: Sequence[str], found: dict[tuple[str, str], Found]) -> Row:
    cells = {}
    for framework in frameworks:
        results = {mode: found[framework, mode].results[case.name] for mode in modes(framework)}
        native = results.pop(NATIVE, None)
        cells[framework] = Cell(
            {path: compare.judge(case, expected, result, framework, path) for path, result in results.items()},
            {path: _digest(result) for path, result in results.items() if not isinstance(result, Failure)},
            compare.measure(expected, native) if native else None,
        )
    return Row(case, _digest(expected), cells)


def _digest(result: Expected | Outcome) -> str:
    return digest([result.norm, *(result.gradients or [])])
