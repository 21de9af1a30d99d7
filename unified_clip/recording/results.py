"""Compute the fields of a call from its whole gradients before and after the clip."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..causes import scaling
from ..recorder.clips import NativeCall, Row, line_of, rounded_fields, rows_of
from ..tensors.files.convert_worker import read_tensor
from ..tensors.types import PARTS, Dense, densify, from_numpy, to_numpy

SLACK = 2.0**-50
"""The largest relative rounding error of `low` and `high` in the function `coefficient`."""

ROUNDINGS = (0.5, 1.5, 2.5)
"""Possible errors of an element, in ULP. One multiplication causes 0.5 ULP, and several operations cause more."""


def copy_of(gradient: Any) -> Dense:
    """Copy an array, or a tensor of a framework."""
    if isinstance(gradient, np.ndarray):
        return from_numpy(np.array(gradient))
    dense = densify(read_tensor("a gradient", gradient))
    assert dense is not None
    return Dense(dense.dtype, np.array(dense.array))


def line_of_tensors(
    call: NativeCall, names: Sequence[str], before: Sequence[Dense], after: Sequence[Dense]
) -> dict[str, Any]:
    measured = zip(rows_of(call, list(map(_array, before)), (), names), before, strict=True)
    rows = [row._replace(dtype=each.dtype, stored=each) for row, each in measured]
    line = line_of(call, rows)
    line |= {"is_gradient": True, "parameters": {each.name: rounded_fields(each, line["dtype"]) for each in rows}}
    return line | result_fields(call, line, rows, after)


def _array(dense: Dense) -> npt.NDArray[Any]:
    """Convert bfloat16 to float32, because NumPy has no bfloat16."""
    return dense.values().astype(np.float32) if dense.dtype == "bfloat16" else to_numpy(dense)


def result_fields(
    call: NativeCall, line: Mapping[str, Any], rows: Sequence[Row], after: Sequence[Dense]
) -> dict[str, Any]:
    """Return the fields that the results of a call show. The clip multiplies the rows of a sparse gradient."""
    before: list[Dense] = [each.stored for each in rows]
    fields: dict[str, Any] = {
        "clipped": any((a.bits() != b.bits()).any() for a, b in zip(before, after, strict=True)),
        "nan": sum(int(np.isnan(each.values()).sum()) for each in before),
        "inf": sum(int(np.isinf(each.values()).sum()) for each in before),
    }
    if call.rule == "value":
        return fields
    pairs = list(map(_multiplied, rows, after))
    if call.rule == "global":
        return fields | {"coef": coefficient(pairs, line["coef"])}
    return fields | {"coef": [coefficient([pair], coef) for pair, coef in zip(pairs, line["coef"], strict=True)]}


def _multiplied(row: Row, after: Dense) -> tuple[Dense, Dense]:
    if row.sparse_rows is None or row.sparse_rows[1] is None:
        return row.stored, after
    before, result = map(from_numpy, row.sparse_rows)
    return before, result


def stored(names: Sequence[str], tensors: Sequence[Dense | None]) -> dict[str, tuple[str, npt.NDArray[Any]]]:
    """Return {name: (dtype, array)}, without None. For a complex array, the dtype is the dtype of its real part."""
    known = [(name, each) for name, each in zip(names, tensors, strict=True) if each is not None]
    return {name: (PARTS.get(each.dtype, each.dtype), each.array) for name, each in known}


def coefficient(pairs: Sequence[tuple[Dense, Dense]], formula: float | None) -> float | None:
    """Return the coefficient that turned each tensor into its result, or None if no coefficient explains all elements.

    If rounding makes several coefficients possible, return the one nearest to `formula`.
    """
    if all((a.bits() == b.bits()).all() for a, b in pairs):
        return 1.0
    if all(np.isnan(b.values()).all() for _, b in pairs):
        return math.nan
    for off in ROUNDINGS:
        lows, highs = zip(*(scaling.coefficient_bounds(a, b, off) for a, b in pairs), strict=True)
        low, high = max(0.0, *lows) * (1 - SLACK), min(highs) * (1 + SLACK)
        if low <= high:
            guess = math.nan if formula is None else formula
            return _nearest_within(guess, low, high, wide=any(each.dtype == "float64" for each, _ in pairs))
    return None


def _nearest_within(formula: float, low: float, high: float, *, wide: bool) -> float:
    if wide:
        return min(max(formula, low), high) if math.isfinite(formula) else (low + high) / 2
    # the function followed its formula: record its float64 value, as unified_clip does
    if low <= np.float32(formula) <= high:
        return formula
    middle = np.float32(min(max(formula, low), high) if math.isfinite(formula) else (low + high) / 2)
    candidates = [middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(math.inf))]
    return float(next((each for each in candidates if low <= each <= high), middle))
