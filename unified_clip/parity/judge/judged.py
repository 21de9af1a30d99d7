"""What is kept of a result once it has been compared: verdicts and digests, and tensors unless they are long."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from ..known import measure
from ..known.entries import KnownDifference, NativeDeviation
from ..modes import NATIVE
from ..outcome import Failure, Outcome
from ..suite.cases import Case
from ..suite.load import Framework
from ..workers.pool import Run
from . import diagnose, oracle, worst_element
from .oracle import Expected
from .verdict import Verdict, judge
from .worst_element import Details


@dataclass(frozen=True)
class Seen:
    """One result."""

    verdict: Verdict | None = None
    """Of ours."""

    digests: Mapping[str, str] | None = None
    difference: NativeDeviation | None = None
    """Of a native."""

    failure: Verdict | None = None
    """There is no result of a native."""

    seconds: float | None = None
    differs: bool = False
    outcome: Outcome | None = None
    """The result itself, where the list of gradients is not long."""

    details: Mapping[str, Details] = field(default_factory=dict)
    """Where it is: the numbers where the result differs, seen by themselves."""


class Oracle:
    """What is right, worked out once for each case, by whichever thread asks first."""

    def __init__(self) -> None:
        self._found: dict[str, Expected] = {}
        self._lock = Lock()

    def __call__(self, case: Case) -> Expected:
        with self._lock:
            if case.name not in self._found:
                self._found[case.name] = oracle.expect(case)
                _ = self._found[case.name].digests
            return self._found[case.name]


def look(
    run: Run, right: Expected, outcome: Outcome | Failure, framework: Framework, known: Sequence[KnownDifference]
) -> Seen:
    """Compare a result with what is right. `known`: the differences of the framework's own functions that are."""
    if run.mode == NATIVE:
        seen = _native(run, right, outcome, framework, known)
    else:
        seen = _ours(run, right, outcome, framework)
    if isinstance(outcome, Failure):
        return seen
    seen = dataclasses.replace(seen, seconds=outcome.seconds)
    if not oracle.is_long(run.case):
        return dataclasses.replace(seen, outcome=outcome)
    if seen.differs:
        return dataclasses.replace(seen, details=worst_element.find(run.case, right, {run.mode: outcome}, [run.mode]))
    return seen


def _ours(run: Run, right: Expected, outcome: Outcome | Failure, framework: Framework) -> Seen:
    verdict = judge(run.case, right, outcome, run.mode, flushes=framework.flushes)
    if isinstance(outcome, Failure):
        return Seen(verdict)
    verdict = diagnose.explained(verdict, run.case, right, outcome)
    return Seen(verdict, outcome.digests, differs=verdict.kind != "equal")


def _native(
    run: Run, right: Expected, outcome: Outcome | Failure, framework: Framework, known: Sequence[KnownDifference]
) -> Seen:
    if isinstance(outcome, Failure):
        return Seen(failure=Verdict(outcome.kind, detail=outcome.detail))
    difference = measure.measure(run.case, right, outcome, framework.tolerance)
    if difference is None:
        return Seen()
    if not any(entry.covers(entry.framework, run.case.name, difference) for entry in known):
        difference = diagnose.native_explained(difference, run.case, right, outcome)
    return Seen(difference=difference, differs=bool(difference.kind) or difference.is_rounded)


def numbers(case: Case, right: Expected, seen: Mapping[str, Seen]) -> dict[str, Details]:
    """By mode, the numbers where a framework's results differ; beside each other, unless the list is long."""
    outcomes = {mode: each.outcome for mode, each in seen.items() if each.outcome}
    differing = [mode for mode in outcomes if seen[mode].differs]
    found = worst_element.find(case, right, outcomes, differing)
    return found | {mode: each for one in seen.values() for mode, each in one.details.items()}
