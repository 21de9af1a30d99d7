"""For each function of the user, choose causes that agree with all cases of the function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...causes.consistent_causes import consistent_causes
from ...causes.observation import Observation
from ..modes import NATIVE
from ..suite.case import Case
from .diagnose import observe
from .judged_result import JudgedResult
from .oracle import Expected

Results = Mapping[tuple[str, str], JudgedResult]


def choose_causes(cases: Sequence[Case], expected: Callable[[Case], Expected], results: Mapping[str, Results]) -> None:
    for of_framework in results.values():
        for calls, differing in _by_function(cases, expected, of_framework):
            for name, diagnosis in consistent_causes(calls, differing).items():
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
