"""Compare each result with the exact result as soon as a worker returns it. Then drop long tensors: the tensors of a
whole run may not fit into memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from ...tensors.types import Stage
from ..elements import WorstElement
from ..known import measure
from ..known.entries import ANY, KnownDifference, NativeDeviation
from ..modes import NATIVE
from ..outcome import CallOutcome, Failure
from ..results import NativeResult, UnifiedClipResult
from ..suite.cases import Case
from ..suite.schema import TOLERANCE, Framework
from ..workers.pool import WorkItem
from . import oracle, worst_element
from .diagnose import diagnose
from .oracle import Expected
from .verdict import NativeVerdict, Verdict, compare_with_exact

CAUSE_KEYS = ("cause", "cause_kind", "contradiction")
"""The fields of a `NativeDeviation` about its cause, which the report has, too."""


@dataclass(frozen=True)
class JudgedResult:
    """The comparison of one result with the exact result: the verdict, digests, and the element that differs most."""

    verdict: Verdict | None = None
    """The verdict on unified_clip. A framework's function has one only if its run failed, such as by a crash."""

    deviation: NativeDeviation | None = None
    """The difference between a framework's function and the exact result. None for unified_clip."""

    digests: Mapping[Stage, str] | None = None
    """The SHA-256 of the tensors at each stage."""

    seconds: float = 0.0
    differs: bool = False
    """Whether any bit differs from the exact result."""

    is_for_any_cause: bool = False
    """Whether a known difference for any cause covers the difference, so that no cause is searched for."""

    outcome: CallOutcome | None = None
    """The tensors of the result. None if the list of gradients is long (see `oracle.is_long`)."""

    details: Mapping[str, WorstElement] = field(default_factory=dict)
    """The element that is furthest from the exact result, by mode. Empty unless `outcome` was dropped and differs."""


class ExpectedResults:
    """A cache of the exact results. Call it with a case to get the exact result of that case.

    The first call for a case computes the result. Later calls return the same object. Several threads may call it.
    """

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
    """Compare one result with the exact result, and find the cause of a difference that is larger than allowed.

    If the list of gradients is long, keep the element that differs most instead of the tensors. For a failure, only
    set the verdict.

    item: The mode and the case of the result.
    outcome: The result of the framework, or the failure of its worker.
    known: The known differences of this framework. If one for any cause covers the difference, do not search for a
        cause.
    """
    mode, case = item
    if isinstance(outcome, Failure):
        return JudgedResult(compare_with_exact(case, expected, outcome, mode))
    verdict = deviation = None
    is_for_any_cause = False
    if mode == NATIVE:
        deviation = measure.measure(case, expected, outcome, framework.tolerance)
        differs = deviation is not None and (bool(deviation.kind) or deviation.differs)
        if deviation and deviation.kind:
            is_for_any_cause = any(_covers_any_cause(entry, case, deviation) for entry in known)
            if not is_for_any_cause and (cause := diagnose(case, expected, outcome)):
                deviation = dataclasses.replace(deviation, cause=cause.sentence, cause_kind=cause.kind)
    else:
        verdict = compare_with_exact(case, expected, outcome, mode, flushes=framework.flushes)
        if verdict.kind == "different" and (cause := diagnose(case, expected, outcome)):
            verdict = dataclasses.replace(verdict, cause=cause.kind, detail=f"{verdict.detail}; {cause.sentence}")
        differs = verdict.kind != "equal"
    is_long = oracle.is_long(case)
    details = (
        worst_element.find(case, expected, {mode: outcome}, [mode], framework.tolerance) if is_long and differs else {}
    )
    return JudgedResult(
        verdict,
        deviation,
        outcome.digests,
        outcome.seconds,
        differs,
        is_for_any_cause,
        None if is_long else outcome,
        details,
    )


def _covers_any_cause(entry: KnownDifference, case: Case, deviation: NativeDeviation) -> bool:
    """Return whether an entry covers a difference, whatever its cause is."""
    covers = ANY in entry.causes and entry.covers(entry.framework, case.name, deviation)
    return covers and entry.bounds(deviation.size)


def worst_elements(
    case: Case, expected: Expected, judged: Mapping[str, JudgedResult], tolerance: float = TOLERANCE
) -> dict[str, WorstElement]:
    """Return {mode: the element that is furthest from the exact result}. Leave out modes without a difference.

    For a long list of gradients, return the elements that `judge_result` stored.

    judged: The results of the case on one framework, by mode.
    tolerance: The tolerance of this framework.
    """
    outcomes = {mode: each.outcome for mode, each in judged.items() if each.outcome}
    differing = [mode for mode in outcomes if judged[mode].differs]
    elements = worst_element.find(case, expected, outcomes, differing, tolerance)
    return elements | {mode: each for result in judged.values() for mode, each in result.details.items()}


def report_result(
    mode: str,
    judged: JudgedResult,
    details: WorstElement | None,
    command: str,
    judgement: tuple[NativeVerdict, str] | None,
    user_function: str = "",
) -> UnifiedClipResult | NativeResult | None:
    """Convert a compared result to a model of the report. Return None if the framework has no function for this case.

    details: The element that is furthest from the exact result.
    command: The shell command that runs the case again.
    judgement: For a framework's function: (verdict, the reason why the result fails the run, or ''). Else None.
    user_function: The function of the user that the mode `native` called, or '' if it called the framework's own.
    """
    verdict, deviation = judged.verdict, judged.deviation or NativeDeviation("")
    kind = verdict.kind if verdict else judgement and judgement[0]
    if kind is None:
        return None
    shared: dict[str, Any] = {
        "verdict": kind,
        "detail": verdict.detail if verdict else deviation.detail,
        "details": details,
        "reproduce": None if kind in ("equal", "no norm", "close", "missing") else command,
        "seconds": judged.seconds,
        "sha256": None if judged.digests is None else dict(judged.digests),
    }
    if verdict and mode != NATIVE:
        return UnifiedClipResult(
            **shared,
            ulps=verdict.ulps,
            cause=verdict.cause,
            stages=dict(verdict.stages),
        )
    return NativeResult(
        **shared,
        **{
            key: getattr(deviation, key)
            for key in ("kind", "norm", "gradients", "not_finite", "lacks_norm", *CAUSE_KEYS)
        },
        finite_size=deviation.size,
        function=deviation.function or user_function or None,
        problem=judgement[1] if judgement else "",
    )
