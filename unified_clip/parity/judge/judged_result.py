"""Compare the results of a worker with the exact results while the worker runs.

Long tensors are not kept after the comparison, to save memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from ...causes.cause import Cause
from ...causes.explain import find_causes
from ...causes.observation import Observation
from ..call_outcome import CallOutcome, Failure
from ..known import measure
from ..known.entries import WITH_NUMBERS, KnownDifference, NativeDeviation
from ..modes import NATIVE
from ..results import NativeResult, UnifiedClipResult, WorstElement
from ..suite.case import Case
from ..suite.schema import TOLERANCE, FrameworkTable
from ..workers.worker_files import WorkItem
from . import oracle, worst_element
from .diagnose import diagnose, observe
from .oracle import Expected
from .verdict import compare_with_exact


@dataclass
class JudgedResult:
    result: UnifiedClipResult | NativeResult | None
    """None if the framework has no function for the case."""

    outcome: CallOutcome | None = None
    """None if the call failed, or if its tensors are too long to keep in memory."""

    differs: bool = False
    needs_no_cause: bool = False

    @property
    def lacks(self) -> bool:
        return self.result is not None and self.result.verdict == "not available"

    @property
    def native(self) -> NativeResult | None:
        return self.result if isinstance(self.result, NativeResult) and not self.result.is_failure else None


class ExpectedResults:
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
    framework: FrameworkTable,
    known: Sequence[KnownDifference],
) -> JudgedResult:
    mode, case = item
    shared: dict[str, Any] = {"details": None, "reproduce": None, "sha256": None}
    if isinstance(outcome, Failure):
        shared |= {"verdict": outcome.kind, "detail": outcome.detail}
        if mode != NATIVE:
            return JudgedResult(UnifiedClipResult(**shared, ulps=math.inf, cause="", stages={}))
        shared |= {"function": framework.functions.get(case.call_name), "problem": ""}
        return JudgedResult(NativeResult(**vars(NativeDeviation("")) | shared))
    shared |= {"sha256": outcome.digests, "seconds": outcome.seconds}
    judged = JudgedResult(None, outcome)
    if mode == NATIVE:
        deviation = measure.measure(case, expected, outcome, framework.tolerance)
        if deviation and deviation.kind:
            judged.needs_no_cause = _needs_no_cause(case, deviation, expected, outcome, known)
            if not judged.needs_no_cause and (cause := diagnose(case, expected, outcome)):
                deviation = dataclasses.replace(deviation, cause=cause.sentence, cause_kind=cause.kind)
        if deviation:
            native = judged.result = NativeResult(**vars(deviation), **shared, verdict="different", problem="")
            judged.differs = bool(native.kind or native.size)
    else:
        verdict = compare_with_exact(case, expected, outcome, mode, flushes=framework.flushes)
        shared |= {"verdict": verdict.kind, "detail": verdict.detail, "ulps": verdict.ulps, "cause": ""}
        judged.result = UnifiedClipResult(**shared, stages=dict(verdict.stages))
        judged.differs = verdict.kind != "equal"
        if verdict.kind == "different" and (cause := diagnose(case, expected, outcome)):
            judged.result.cause, judged.result.detail = cause.kind, f"{cause.sentence} ({verdict.detail})"
    if oracle.is_long_vector(case):
        judged.outcome = None
        if judged.differs and judged.result:
            elements = worst_element.find_worst_element(case, expected, {mode: outcome}, [mode], framework.tolerance)
            judged.result.details = elements.get(mode)
    return judged


def _needs_no_cause(
    case: Case, deviation: NativeDeviation, expected: Expected, outcome: CallOutcome, known: Sequence[KnownDifference]
) -> bool:
    shapes = [[each and each.shape for each in side.gradients or ()] for side in (expected, outcome)]
    is_only_form = deviation.kind == "form" and shapes[0] == shapes[1]
    if (is_only_form and not (deviation.finite_size or deviation.not_finite)) or deviation.kind not in WITH_NUMBERS:
        return True
    # the reason in the list explains a known difference of a framework's function
    return ".py:" not in deviation.function and _is_known(case.name, deviation, known)


def _is_known(case: str, deviation: NativeDeviation | NativeResult, known: Sequence[KnownDifference]) -> bool:
    return any(each.is_for(each.framework, case, deviation) and each.bounds(deviation) for each in known)


def worst_elements(
    case: Case, expected: Expected, judged: Mapping[str, JudgedResult], tolerance: float = TOLERANCE
) -> dict[str, WorstElement]:
    outcomes = {mode: each.outcome for mode, each in judged.items() if each.outcome}
    differing = [mode for mode in outcomes if judged[mode].differs]
    return worst_element.find_worst_element(case, expected, outcomes, differing, tolerance)


# -- causes that agree with all cases of a user's function

Results = Mapping[tuple[str, str], JudgedResult]


def choose_causes(
    cases: Sequence[Case],
    expected: Callable[[Case], Expected],
    results: Mapping[str, Results],
    known: Sequence[KnownDifference] = (),
) -> None:
    for framework, of_framework in results.items():
        for calls, differing in _by_function(cases, expected, of_framework):

            def is_known(
                name: str, cause: Cause, framework: str = framework, of_framework: Results = of_framework
            ) -> bool:
                native = of_framework[NATIVE, name].native
                listed = [entry for entry in known if entry.framework == framework]
                return native is not None and _is_known(name, native, listed)

            for name, diagnosis in find_causes(calls, differing, is_known).items():
                native, cause = of_framework[NATIVE, name].native, diagnosis.cause
                assert native
                native.cause, native.cause_kind = (cause.sentence, cause.kind) if cause else ("", "")
                native.contradiction = diagnosis.contradiction


def _by_function(
    cases: Sequence[Case], expected: Callable[[Case], Expected], results: Results
) -> list[tuple[dict[str, Observation], list[str]]]:
    functions: dict[str, tuple[dict[str, Observation], list[str]]] = {}
    for case in cases:
        judged = results.get((NATIVE, case.name))
        native = judged and judged.native
        if not judged or not judged.outcome or not native or not native.function or not native.is_users:
            continue
        call = observe(case, expected(case), judged.outcome)
        if call is not None:
            calls, differing = functions.setdefault(native.function, ({}, []))
            calls[case.name] = call
            if native.kind and not judged.needs_no_cause:
                differing.append(case.name)
    return [(calls, differing) for calls, differing in functions.values() if differing]
