"""Choose the causes of a function's differences so that they agree with all cases of the function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence

from ...causes.consistent import consistent_causes
from ...causes.observation import Observation
from ..modes import NATIVE
from ..suite.cases import Case
from .diagnose import observe
from .judged_result import JudgedResult
from .oracle import Expected

Results = MutableMapping[tuple[str, str], JudgedResult]
"""The compared results of one framework, by (mode, case name)."""


def choose(cases: Sequence[Case], expected: Callable[[Case], Expected], results: Mapping[str, Results]) -> None:
    """Replace the causes of differences of the user's functions, in `results`, by causes that agree with all cases.

    The causes of cases with long lists of gradients stay, because their tensors were not kept.

    results: The results of each framework.
    """
    for of_framework in results.values():
        for calls, differing in _by_function(cases, expected, of_framework):
            for name, diagnosis in consistent_causes(calls, differing).items():
                judged, cause = of_framework[NATIVE, name], diagnosis.cause
                assert judged.deviation
                deviation = dataclasses.replace(
                    judged.deviation,
                    cause=cause.sentence if cause else "",
                    cause_kind=cause.kind if cause else "",
                    contradiction=diagnosis.contradiction,
                )
                of_framework[NATIVE, name] = dataclasses.replace(judged, deviation=deviation)


def _by_function(
    cases: Sequence[Case], expected: Callable[[Case], Expected], results: Results
) -> list[tuple[dict[str, Observation], list[str]]]:
    """Return (calls, names of the cases with a difference that needs a cause) for each function of the user."""
    functions: dict[str, tuple[dict[str, Observation], list[str]]] = {}
    for case in cases:
        judged = results.get((NATIVE, case.name))
        if not judged or not judged.deviation or not judged.outcome or ".py:" not in judged.deviation.function:
            continue
        call = observe(case, expected(case), judged.outcome)
        if call is not None:
            calls, differing = functions.setdefault(judged.deviation.function, ({}, []))
            calls[case.name] = call
            if judged.deviation.kind and not judged.is_for_any_cause:
                differing.append(case.name)
    return [(calls, differing) for calls, differing in functions.values() if differing]
