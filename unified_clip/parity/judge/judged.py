"""Compare each result with the exact one as soon as it arrives. Keep verdicts and digests, and tensors unless long."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from ...tensors.types import Stage
from ..known import measure
from ..known.entries import Judgement, KnownDifference, NativeDeviation
from ..modes import NATIVE
from ..outcome import CallOutcome, Failure
from ..results import NativeResult, UnifiedClipResult, WorstElement
from ..suite.cases import Case
from ..suite.load import Framework
from ..workers.pool import WorkItem
from . import diagnose, oracle, worst_element
from .oracle import Expected
from .verdict import Verdict, judge


@dataclass(frozen=True)
class JudgedResult:
    """One result, compared with the exact one."""

    verdict: Verdict | None = None
    """On unified_clip."""

    digests: Mapping[Stage, str] | None = None
    deviation: NativeDeviation | None = None
    """Of a framework's function."""

    failure: Verdict | None = None
    """Set if a framework's function has no result."""

    seconds: float | None = None
    differs: bool = False
    outcome: CallOutcome | None = None
    """The result itself. None if the list of gradients is long."""

    details: Mapping[str, WorstElement] = field(default_factory=dict)
    """The numbers where a long result differs, by mode."""


class ExpectedResults:
    """The exact results, computed once per case by the first thread that asks."""

    def __init__(self) -> None:
        self._results: dict[str, Expected] = {}
        self._lock = Lock()

    def __call__(self, case: Case) -> Expected:
        with self._lock:
            if case.name not in self._results:
                self._results[case.name] = oracle.expect(case)
                _ = self._results[case.name].digests
            return self._results[case.name]


def judge_result(
    item: WorkItem,
    expected: Expected,
    outcome: CallOutcome | Failure,
    framework: Framework,
    known: Sequence[KnownDifference],
) -> JudgedResult:
    """Compare a result with the exact one. No cause is looked for where an entry of `known` covers the difference."""
    if item.mode == NATIVE:
        judged = _native(item, expected, outcome, framework, known)
    else:
        judged = _ours(item, expected, outcome, framework)
    if isinstance(outcome, Failure):
        return judged
    judged = dataclasses.replace(judged, seconds=outcome.seconds)
    if not oracle.is_long(item.case):
        return dataclasses.replace(judged, outcome=outcome)
    if judged.differs:
        details = worst_element.find(item.case, expected, {item.mode: outcome}, [item.mode])
        return dataclasses.replace(judged, details=details)
    return judged


def _ours(item: WorkItem, expected: Expected, outcome: CallOutcome | Failure, framework: Framework) -> JudgedResult:
    verdict = judge(item.case, expected, outcome, item.mode, flushes=framework.flushes)
    if isinstance(outcome, Failure):
        return JudgedResult(verdict)
    verdict = diagnose.explained(verdict, item.case, expected, outcome)
    return JudgedResult(verdict, outcome.digests, differs=verdict.kind != "equal")


def _native(
    item: WorkItem,
    expected: Expected,
    outcome: CallOutcome | Failure,
    framework: Framework,
    known: Sequence[KnownDifference],
) -> JudgedResult:
    if isinstance(outcome, Failure):
        return JudgedResult(failure=Verdict(outcome.kind, detail=outcome.detail))
    deviation = measure.measure(item.case, expected, outcome, framework.tolerance)
    if deviation is None:
        return JudgedResult()
    if not any(entry.covers(entry.framework, item.case.name, deviation.function, deviation.kind) for entry in known):
        deviation = diagnose.native_explained(deviation, item.case, expected, outcome)
    return JudgedResult(deviation=deviation, differs=bool(deviation.kind) or deviation.is_rounded)


def worst_elements(case: Case, expected: Expected, judged: Mapping[str, JudgedResult]) -> dict[str, WorstElement]:
    """Return, by mode, the numbers where a framework's results differ from the exact ones."""
    outcomes = {mode: each.outcome for mode, each in judged.items() if each.outcome}
    differing = [mode for mode in outcomes if judged[mode].differs]
    found = worst_element.find(case, expected, outcomes, differing)
    return found | {mode: each for result in judged.values() for mode, each in result.details.items()}


def result(
    judged: JudgedResult, details: WorstElement | None, command: str, judgement: tuple[Judgement, str] | None
) -> UnifiedClipResult | NativeResult | None:
    """Return a result for the report. None: the framework has no such function.

    command: Runs the case again.
    judgement: On the deviation of a framework's function, with its problem.
    """
    seconds = judged.seconds or 0.0
    if judged.verdict:
        verdict = judged.verdict
        return UnifiedClipResult(
            verdict=verdict.kind,
            detail=verdict.detail,
            details=details,
            reproduce=_again(verdict.kind, command),
            seconds=seconds,
            ulps=verdict.ulps,
            cause=verdict.cause,
            stages=dict(verdict.stages),
            sha256=None if judged.digests is None else dict(judged.digests),
        )
    kind = judged.failure.kind if judged.failure else judgement and judgement[0]
    if kind is None:
        return None
    deviation = judged.deviation or NativeDeviation("")
    return NativeResult(
        verdict=kind,
        detail=judged.failure.detail if judged.failure else deviation.detail,
        details=details,
        reproduce=_again(kind, command),
        seconds=seconds,
        function=deviation.function or None,
        kind=deviation.kind,
        norm=deviation.norm,
        gradients=deviation.gradients,
        cause=deviation.cause,
        problem=judgement[1] if judgement else "",
    )


def _again(verdict: str, command: str) -> str | None:
    return None if verdict in ("equal", "close", "missing") else command
