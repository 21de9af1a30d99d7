"""Compare each result with the exact one as soon as it arrives, so that long tensors need not be kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from ...tensors.types import Stage
from ..known import measure
from ..known.entries import KnownDifference, NativeDeviation
from ..modes import NATIVE
from ..outcome import CallOutcome, Failure
from ..results import NativeResult, UnifiedClipResult, WorstElement
from ..suite.cases import Case
from ..suite.schema import Framework
from ..workers.pool import WorkItem
from . import oracle, worst_element
from .diagnose import diagnose
from .oracle import Expected
from .verdict import NativeVerdict, Verdict, compare_with_exact


@dataclass(frozen=True)
class JudgedResult:
    """The verdict on one result, with its digests. Short tensors are kept for the report."""

    verdict: Verdict | None = None
    """On unified_clip, and on a framework's function without a result."""

    deviation: NativeDeviation | None = None
    """The deviation of a framework's function."""

    digests: Mapping[Stage, str] | None = None
    seconds: float = 0.0
    differs: bool = False
    outcome: CallOutcome | None = None
    """The result itself. None if the list of gradients is long."""

    details: Mapping[str, WorstElement] = field(default_factory=dict)
    """The numbers where a long result differs, by mode."""


class ExpectedResults:
    """A cache of exact results by case. Call it from any thread: the first call for a case computes the result."""

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
    """Compare a result with the exact one. Find the cause of a difference, unless an entry of `known` covers it."""
    mode, case = item
    if isinstance(outcome, Failure):
        return JudgedResult(compare_with_exact(case, expected, outcome, mode))
    verdict = deviation = digests = None
    if mode == NATIVE:
        deviation = measure.measure(case, expected, outcome, framework.tolerance)
        differs = deviation is not None and (bool(deviation.kind) or deviation.differs)
        if (
            deviation
            and deviation.kind
            and not any(entry.covers(entry.framework, case.name, deviation.function, deviation.kind) for entry in known)
        ):
            cause = diagnose(case, expected, outcome)
            deviation = dataclasses.replace(deviation, cause=cause.sentence if cause else "")
    else:
        verdict = compare_with_exact(case, expected, outcome, mode, flushes=framework.flushes)
        if verdict.kind == "different" and (cause := diagnose(case, expected, outcome)):
            verdict = dataclasses.replace(verdict, cause=cause.kind, detail=f"{verdict.detail}; {cause.sentence}")
        digests, differs = outcome.digests, verdict.kind != "equal"
    is_long = oracle.is_long(case)
    details = worst_element.find(case, expected, {mode: outcome}, [mode]) if is_long and differs else {}
    return JudgedResult(verdict, deviation, digests, outcome.seconds, differs, None if is_long else outcome, details)


def worst_elements(case: Case, expected: Expected, judged: Mapping[str, JudgedResult]) -> dict[str, WorstElement]:
    """Return by mode the element furthest from the exact one. A mode that does not differ has none."""
    outcomes = {mode: each.outcome for mode, each in judged.items() if each.outcome}
    differing = [mode for mode in outcomes if judged[mode].differs]
    elements = worst_element.find(case, expected, outcomes, differing)
    return elements | {mode: each for result in judged.values() for mode, each in result.details.items()}


def report_result(
    mode: str,
    judged: JudgedResult,
    details: WorstElement | None,
    command: str,
    judgement: tuple[NativeVerdict, str] | None,
) -> UnifiedClipResult | NativeResult | None:
    """Return a result as a model of the report. None if the framework has no function for this case."""
    verdict, deviation = judged.verdict, judged.deviation or NativeDeviation("")
    kind = verdict.kind if verdict else judgement and judgement[0]
    if kind is None:
        return None
    shared: dict[str, Any] = {
        "verdict": kind,
        "detail": verdict.detail if verdict else deviation.detail,
        "details": details,
        "reproduce": None if kind in ("equal", "close", "missing") else command,
        "seconds": judged.seconds,
    }
    if verdict and mode != NATIVE:
        return UnifiedClipResult(
            **shared,
            ulps=verdict.ulps,
            cause=verdict.cause,
            stages=dict(verdict.stages),
            sha256=None if judged.digests is None else dict(judged.digests),
        )
    return NativeResult(
        **shared,
        **{key: getattr(deviation, key) for key in ("kind", "norm", "gradients", "cause")},
        function=deviation.function or None,
        problem=judgement[1] if judgement else "",
    )
