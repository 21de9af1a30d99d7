"""Compute the recorded fields of a call from its gradients before and after the clip."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...causes import scaling
from ...numpy import get_total_norm
from ...recorder.clips import NativeCall
from ...recorder.clips import coefficient as by_formula
from ...recorder.lines import canonical, unique_names
from ...recorder.samples import positions
from ...tensors.files.convert_worker import read_tensor
from ...tensors.types import PARTS, Dense, densify, from_numpy

SLACK = 2.0**-50
"""The largest relative rounding error of `low` and `high` in the function `coefficient`."""

ROUNDINGS = (0.5, 1.5, 2.5)
"""Possible errors of an element, in ULP. One multiplication causes 0.5 ULP, and several operations cause more."""


USED_NORMS = ("passed_norm", "returned_norm", "stored_norm")
"""The first of these fields that is recorded is the norm from which the function computed its coefficient."""


@dataclass(frozen=True)
class ObservedTensors:
    """The gradients of a call before and after the clip, and the weights to which these gradients belong."""

    before: Sequence[Dense]
    """On TensorFlow, each array is empty if recordings need only the returned norm."""

    after: Sequence[Dense]
    """Empty if no recording stores the clipped gradients."""

    weights: Sequence[Dense | None] = ()

    names: Sequence[str] = ()
    """Without names, use positions."""

    is_gradient: bool | None = True
    """None if it is unknown: `tf.clip_by_value` also clips other tensors."""

    sources: Sequence[Any] = ()

    sparse: int = 0
    rows: Mapping[int, tuple[Dense, Dense | None]] = field(default_factory=dict)
    """{position of a sparse gradient: its stored rows before and after the clip}."""

    returned_norm: float | None = None
    place: str | None = None
    """The line of the user's code that built the graph of the call."""

    @classmethod
    def from_arrays(cls, arrays: Sequence[Any], lengths: Sequence[int], *more: Any) -> ObservedTensors:
        rest = iter([from_numpy(np.array(each)) for each in arrays])
        before, after, weights = ([next(rest) for _ in range(length)] for length in lengths)
        return cls(before, after, weights, *more)


def line_fields(call: NativeCall, observed: ObservedTensors) -> dict[str, Any]:
    p = call.norm_type or 2.0
    norms = [exact_norm([each], p) for each in observed.before]
    line: dict[str, Any] = {
        "call": call.name,
        **call.fields([each.dtype for each in observed.before]),
        "is_gradient": observed.is_gradient,
        "clipped": any((a.bits() != b.bits()).any() for a, b in zip(observed.before, observed.after, strict=True)),
        "nan": sum(int(np.isnan(each.values()).sum()) for each in observed.before),
        "inf": sum(int(np.isinf(each.values()).sum()) for each in observed.before),
        "seconds": None,
        "parameters": {},
    }
    more = {
        "sparse": observed.sparse or None,
        "returned_norm": observed.returned_norm,
        "stored_norm": norm_of_rows(call, observed),
    }
    line |= {key: value for key, value in more.items() if value is not None}
    before, after = _multiplied(observed)
    if call.rule == "global":
        line["norm"] = exact_norm(observed.before, p)
        used = next((line[key] for key in USED_NORMS if key in line), line["norm"])
        line["coef"] = coefficient(before, after, coefficient_by_formula(call, used))
    elif call.rule == "each":
        line["norm"] = norms
        pairs = zip(before, after, line.get("stored_norm", norms), strict=True)
        line["coef"] = [coefficient([a], [b], coefficient_by_formula(call, n)) for a, b, n in pairs]
    for index, (name, each) in enumerate(_named(observed, observed.before).items()):
        parameter = line["parameters"][name] = {"shape": list(each.shape), "norm": norms[index]}
        parameter |= _sample("sample", each)
        if observed.weights and (weight := observed.weights[index]) is not None:
            parameter |= {"weight": exact_norm([weight], p), **_sample("weight_sample", weight)}
    return line


def _sample(key: str, tensor: Dense) -> dict[str, list[float]]:
    if tensor.dtype in PARTS:
        return {}
    places = positions(tuple(tensor.shape))
    return {key: Dense(tensor.dtype, tensor.array.reshape(-1)[places]).values().tolist()}


def norm_of_rows(call: NativeCall, observed: ObservedTensors) -> float | list[float] | None:
    if not observed.rows or call.rule not in ("global", "each"):
        return None
    stored = [observed.rows[index][0] if index in observed.rows else each for index, each in enumerate(observed.before)]
    p = call.norm_type or 2.0
    if call.rule == "global":
        norm = exact_norm(stored, p)
        return None if norm == exact_norm(observed.before, p) else norm
    norms, exact = ([exact_norm([each], p) for each in tensors] for tensors in (stored, observed.before))
    return None if norms == exact else norms


def _multiplied(observed: ObservedTensors) -> tuple[list[Dense], list[Dense]]:
    """Return the tensors that the clip multiplies. For a sparse gradient, these are the stored rows."""
    before, after = list(observed.before), list(observed.after)
    for index, (rows, clipped_rows) in observed.rows.items():
        if clipped_rows is not None:
            before[index], after[index] = rows, clipped_rows
    return before, after


def _named(observed: ObservedTensors, tensors: Sequence[Dense]) -> dict[str, Dense]:
    names = unique_names(map(canonical, observed.names or map(str, range(len(tensors)))))
    return dict(zip(names, tensors, strict=True))


def stored(observed: ObservedTensors, tensors: Sequence[Dense]) -> dict[str, tuple[str, npt.NDArray[Any]]]:
    """Return {name: (dtype, array)}. For a complex array, the dtype is the dtype of its real part."""
    return {name: (PARTS.get(each.dtype, each.dtype), each.array) for name, each in _named(observed, tensors).items()}


def exact_norm(tensors: Sequence[Dense], p: float) -> float:
    # NumPy lacks bfloat16, whose numbers float32 represents
    arrays = [each.values().astype(np.float32) if each.dtype == "bfloat16" else each.array for each in tensors]
    return float(get_total_norm(arrays, p))


def coefficient_by_formula(call: NativeCall, n: float) -> float | None:
    return by_formula(n, call.threshold, call.eps or 0.0) if isinstance(call.threshold, float) else None


def coefficient(before: Sequence[Dense], after: Sequence[Dense], formula: float | None) -> float | None:
    """Return the coefficient that turned `before` into `after`, or None if no coefficient explains all elements.

    If rounding makes several coefficients possible, return the one nearest to `formula`.
    """
    pairs = list(zip(before, after, strict=True))
    if all((a.bits() == b.bits()).all() for a, b in pairs):
        return 1.0
    if all(np.isnan(b.values()).all() for _, b in pairs):
        return math.nan
    for off in ROUNDINGS:
        lows, highs = zip(*(scaling.coefficient_bounds(a, b, off) for a, b in pairs), strict=True)
        low, high = max(0.0, *lows) * (1 - SLACK), min(highs) * (1 + SLACK)
        if low <= high:
            guess = math.nan if formula is None else formula
            return _nearest_within(guess, low, high, wide=any(each.dtype == "float64" for each in before))
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


def read(tensor: Any) -> Dense:
    dense = densify(read_tensor("a gradient", tensor))
    assert dense is not None
    return Dense(dense.dtype, np.array(dense.array))
