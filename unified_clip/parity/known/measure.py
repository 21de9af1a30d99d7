"""Measure the difference between the result of a framework's function and the exact result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ...tensors.types import Dense, densify
from ..judge.oracle import Expected
from ..judge.verdict import relative_error
from ..outcome import CallOutcome
from ..suite.cases import Case
from ..suite.schema import TOLERANCE
from .entries import DifferenceKind, NativeDeviation


def measure(
    case: Case, expected: Expected, outcome: CallOutcome, tolerance: float = TOLERANCE
) -> NativeDeviation | None:
    """Return the difference between the result of a framework's function and the exact result.

    Return None if the framework has no function for this case. If the function raised an error, or should have raised
    one, compare no numbers.

    tolerance: A relative difference up to this size counts as rounding.
    """
    if not outcome.name:
        return None
    if outcome.raised:
        return NativeDeviation(outcome.name, "" if case.options.raises else "raises", detail=outcome.message)
    if case.options.raises:
        return NativeDeviation(outcome.name, "returns", detail=_first_numbers(outcome))
    if outcome.fault:
        return NativeDeviation(outcome.name, "form", detail=outcome.fault)
    norm = None
    if outcome.norm is not None and expected.wide_norm is not None and outcome.norm.array.size == 1:
        norm = relative_error(float(outcome.norm.values().reshape(())), expected.wide_norm)
    gradients = None
    if outcome.gradients is not None and expected.gradients is not None:
        if [g and g.shape for g in case.clipped_inputs] != [g and g.shape for g in outcome.gradients]:
            return NativeDeviation(outcome.name, "form", norm=norm, detail=_first_numbers(outcome))
        gradients = _largest_difference(expected.gradients, outcome.gradients)
    size = max(norm or 0.0, gradients or 0.0)
    kind: DifferenceKind | Literal[""] = (
        "value" if size > tolerance else "touched" if _touched(case, expected, outcome) else ""
    )
    if case.options.warns and not kind:
        return NativeDeviation(outcome.name, "silent", norm=norm, gradients=gradients)
    return NativeDeviation(outcome.name, kind, size if kind else 0.0, norm, gradients)


def _touched(case: Case, expected: Expected, outcome: CallOutcome) -> bool:
    """Return whether the function changed a gradient that must stay unchanged."""
    if expected.gradients is None or outcome.gradients is None:
        return False
    inputs = [densify(gradient) for gradient in case.clipped_inputs]
    return any(
        before is not None
        and right is not None
        and after is not None
        and np.array_equal(before.bits(), right.bits())
        and not np.array_equal(after.values(), right.values(), equal_nan=True)
        for before, right, after in zip(inputs, expected.gradients, outcome.gradients, strict=True)
    )


def _first_numbers(outcome: CallOutcome) -> str:
    """Return text with the first three numbers of each of the first three tensors."""
    tensors = [outcome.norm, *(outcome.gradients or [])]
    return "; ".join(str(t.values().reshape(-1)[:3].tolist()) for t in tensors[:3] if t is not None)


def _largest_difference(exact: Sequence[Dense | None], results: Sequence[Dense | None]) -> float:
    """Return the largest difference between an element and its exact value, divided by the largest exact element.

    Return inf if the difference is not finite, or if all exact elements are 0 and one differs.
    """
    difference = largest = 0.0
    for left, right in zip(exact, results, strict=True):
        if left is not None and right is not None:
            a, b = left.values(), right.values()
            with np.errstate(invalid="ignore"):
                same = (a == b) | (np.isnan(a) & np.isnan(b))
                # np.maximum returns NaN if either is NaN; Python's max() may not
                difference = float(np.maximum(difference, np.max(np.abs(a - b), where=~same, initial=0.0)))
            largest = max(largest, float(np.max(np.abs(a), where=np.isfinite(a), initial=0.0)))
    if difference == 0:
        return 0.0
    return difference / largest if math.isfinite(difference) and largest else math.inf
