"""Measure the difference between the result of a framework's function and the exact result."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import numpy as np

from ...tensors.arithmetic import FORMATS, Float64s, rounded
from ...tensors.types import Dense, Gradient, Sparse, densify, encode
from ..call_outcome import CallOutcome
from ..judge.oracle import Expected
from ..judge.verdict import wrong_forms
from ..suite.case import Case
from ..suite.schema import TOLERANCE
from .entries import DifferenceKind, NativeDeviation, NotFinite


def measure(
    case: Case, expected: Expected, outcome: CallOutcome, tolerance: float = TOLERANCE
) -> NativeDeviation | None:
    if not outcome.name:
        return None
    if outcome.raised:
        return _error(case, outcome)
    if case.options.raises:
        return NativeDeviation(outcome.name, "returns", detail=_first_numbers(outcome))
    parts = dict[str, MeasuredDifference]()
    if outcome.norm is not None and expected.wide_norm is not None and outcome.norm.array.size == 1:
        parts["norm"] = measured_difference([outcome.norm.values()], [np.asarray(expected.wide_norm)], [])
    kind: DifferenceKind | Literal[""] = "form" if outcome.fault else ""
    if outcome.gradients is not None and expected.gradients is not None:
        results: Sequence[Dense | None] | None = outcome.gradients
        if kind or [g and g.shape for g in case.clipped_inputs] != [g and g.shape for g in outcome.gradients]:
            results = _converted(outcome.gradients, expected.gradients)
            kind = "elements" if results is None else "form"
        if results is not None:
            sides = (results, expected.gradients, case.clipped_inputs)
            parts["gradients"] = measured_difference(*map(values, sides))
    not_finite = cast(NotFinite, " and ".join(name for name, part in parts.items() if not part.is_finite))
    size = max((part.size for part in parts.values() if part.size > tolerance or part.has_nonzero), default=0.0)
    if not kind and (size or not_finite):
        kind = "value"
    elif not kind and _touched(case, expected, outcome):
        kind, size = "touched", parts["gradients"].size
    elif not kind and outcome.changed_inputs:
        kind = "inputs"
    elif not kind and case.options.warns:
        kind = "silent"
    detail = ""
    if kind in ("form", "elements"):
        wrong = wrong_forms("gradient", expected.gradients or (), outcome.gradients or ())
        detail = outcome.fault or wrong or _first_numbers(outcome)
    shown = {name: part.size if part.is_finite else math.inf for name, part in parts.items()}
    lacks_norm = case.call.returns_norm and outcome.norm is None
    numbers = (shown.get("norm"), shown.get("gradients"), not_finite)
    return NativeDeviation(outcome.name, kind, size, *numbers, lacks_norm=lacks_norm, detail=detail)


def _error(case: Case, outcome: CallOutcome) -> NativeDeviation:
    """If the case expects an error, a framework's function may raise any exception. A function of the user must
    raise the exception class that the case names.
    """
    expected, detail = case.options.raises, outcome.message
    kind: DifferenceKind | Literal[""] = ""
    if not expected:
        kind = "raises"
    elif ".py:" in outcome.name and expected not in outcome.raised:
        kind, detail = "error", f"{detail}; the case expects {expected}"
    elif outcome.changed_inputs:
        kind, detail = "inputs", f"before it raises {detail}"
    return NativeDeviation(outcome.name, kind, detail=detail)


class MeasuredDifference(NamedTuple):
    size: float = 0.0
    is_finite: bool = True
    has_nonzero: bool = False
    """Whether a result has nonzero elements, although the exact array and the input gradient have only zeros."""


Arrays = Sequence[Float64s]


def measured_difference(results: Arrays, exact: Arrays, inputs: Arrays) -> MeasuredDifference:
    """Return the largest relative difference between results and exact results.

    Differences are divided by the largest finite element of the exact array, if this element is not 0.

    inputs: The gradients before the clip, or [] for norms.
    """
    overall = _largest(exact) or _largest(inputs)
    size, is_finite, has_nonzero = 0.0, True, False
    for result, right, before in zip(results, exact, inputs or [np.empty(0)] * len(exact), strict=True):
        both = np.isfinite(result) & np.isfinite(right)
        with np.errstate(all="ignore"):
            same = (result == right) | (np.isnan(result) & np.isnan(right))
            distance = float(np.max(np.abs(result - right), where=both & ~same, initial=0.0))
        largest = _largest([right]) or min(_largest([before]), overall)
        has_nonzero = has_nonzero or bool(distance and not largest)
        size = max(size, distance / (largest or overall or 1.0))
        is_finite = is_finite and bool((both | same).all())
    return MeasuredDifference(min(size, sys.float_info.max), is_finite, has_nonzero)


def _largest(arrays: Arrays) -> float:
    return max((float(np.max(np.abs(a), where=np.isfinite(a), initial=0.0)) for a in arrays), default=0.0)


def values(tensors: Sequence[Gradient]) -> list[Float64s]:
    return [np.empty(0) if dense is None else dense.values() for dense in map(densify, tensors)]


def _converted(results: Sequence[Dense | None], exact: Sequence[Dense | None]) -> list[Dense | None] | None:
    """Convert the results to the shapes and dtypes of the exact results. Replace None by zeros.

    Return None if a result has another number of elements than the exact result.
    """
    if len(results) != len(exact):
        remaining = iter([tensor for tensor in results if tensor is not None])
        results = [right and next(remaining, None) for right in exact]
        if next(remaining, None) is not None:
            return None
    converted: list[Dense | None] = []
    for result, right in zip(results, exact, strict=True):
        if result is None or right is None:
            present = result if right is None else right
            if present is not None and right is None and present.values().any():
                return None
            converted.append(None if right is None else Dense(right.dtype, np.zeros_like(right.array)))
        elif result.array.size != right.array.size:
            return None
        else:
            dtype = right.dtype if right.dtype in FORMATS else "float64"  # not int64, which has no inf
            converted.append(encode(rounded(result.values().reshape(right.array.shape), dtype), dtype))
    return converted


def _touched(case: Case, expected: Expected, outcome: CallOutcome) -> bool:
    """Return whether the function changed a gradient that should be unchanged.

    Sparse gradients with repeated rows are ignored, because the sum of the rows can be rounded differently.
    """
    if expected.gradients is None or outcome.gradients is None:
        return False
    for gradient, right, after in zip(case.clipped_inputs, expected.gradients, outcome.gradients, strict=True):
        before = densify(gradient)
        if before is None or right is None or after is None:
            continue
        if isinstance(gradient, Sparse) and np.unique(gradient.rows).size < gradient.rows.size:
            continue
        is_unchanged = np.array_equal(before.bits(), right.bits())
        if is_unchanged and not np.array_equal(after.values(), right.values(), equal_nan=True):
            return True
    return False


def _first_numbers(outcome: CallOutcome) -> str:
    tensors = [outcome.norm, *(outcome.gradients or [])]
    return "; ".join(str(t.values().reshape(-1)[:3].tolist()) for t in tensors[:3] if t is not None)
