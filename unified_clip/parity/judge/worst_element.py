"""Find the first stage at which a result differs from the exact result, and the largest error at this stage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...tensors import ulp
from ...tensors.arithmetic import FORMATS, rounded
from ...tensors.types import PARTS, Dense, Gradient, LazySequence, Stage, encode
from ..call_outcome import CallOutcome, ClipTensors
from ..known import measure
from ..modes import HOST, NATIVE
from ..results import Number, Side, WorstElement
from ..suite.case import Case
from ..suite.schema import TOLERANCE
from .oracle import Expected
from .verdict import STAGES, coefficients

Tensors = Sequence[Dense | None]


def find_worst_element(
    case: Case, right: Expected, outcomes: Mapping[str, CallOutcome], modes: Iterable[str], tolerance: float = TOLERANCE
) -> dict[str, WorstElement]:
    native = outcomes.get(NATIVE)
    own = outcomes.get(HOST) or next((each for mode, each in outcomes.items() if mode != NATIVE), None)
    elements = {}
    for mode in modes:
        side: Side = "native" if mode == NATIVE else "ours"
        if element := _find(case, right, side, own if mode == NATIVE else outcomes[mode], native, tolerance):
            elements[mode] = element
    return elements


class _Place(NamedTuple):
    tensor: int
    element: int
    distance: tuple[float, float]
    """(relative distance, distance in ULP). For results of unified_clip, the relative distance is 0."""

    apart: int


def _find(
    case: Case, right: Expected, by: Side, own: CallOutcome | None, native: CallOutcome | None, tolerance: float
) -> WorstElement | None:
    first = None
    for stage in STAGES:
        exact = _tensors_at(stage, case, right, right)
        if exact is None:
            continue
        sides = {"ours": _tensors_at(stage, case, right, own), "native": _tensors_at(stage, case, right, native)}
        places = _places(exact, sides[by] or [], by, case.clipped_inputs if stage == "tensors" else [None] * len(exact))
        if not places:
            continue
        index, element, distance, _ = max(places, key=lambda place: place.distance)
        is_rounding = by == "native" and distance[0] <= tolerance
        if is_rounding and first:
            continue
        tensor, gradient = exact[index], case.gradients[index] if stage == "coefficient" else None
        assert tensor is not None
        dtype = PARTS.get(gradient.dtype, gradient.dtype) if gradient else tensor.dtype
        numbers = {
            side: _number(tensor, None if tensors is None else tensors[index], element, dtype)
            for side, tensors in sides.items()
        }
        worst = WorstElement(
            stage=stage,
            gradient=None if stage == "norm" else index,
            name=case.names[index] if case.names and stage != "norm" else "",
            element=list(map(int, np.unravel_index(element, tensor.array.shape))),
            dtype=dtype,
            exact=Number(value=_value(tensor, element), ulps=0.0),
            **numbers,
            apart=sum(place.apart for place in places),
            compared=sum(each.array.size for each in exact if each is not None),
        )
        if not is_rounding:
            return worst
        first = worst
    return first


def _tensors_at(stage: Stage, case: Case, right: Expected, result: ClipTensors | None) -> Tensors | None:
    """Return the tensors of a stage in the dtypes of the exact result, or None if the tensors cannot be compared."""
    exact, tensors = right.at(stage), None if result is None else result.at(stage)
    if exact is None or tensors is None or (stage == "coefficient" and case.call.by_value):
        return None
    if [each and each.array.size for each in exact] != [each and each.array.size for each in tensors]:
        return None
    if stage == "coefficient":
        return [Dense("float64", np.array(coefficient)) for coefficient in coefficients(case, tensors)]
    return LazySequence(lambda index: _like(exact[index], tensors[index]), len(exact))


def _like(exact: Dense | None, tensor: Dense | None) -> Dense | None:
    if exact is None or tensor is None:
        return None
    if tensor.dtype != exact.dtype:
        tensor = encode(rounded(tensor.values(), exact.dtype), exact.dtype)
    return Dense(exact.dtype, tensor.array.reshape(exact.array.shape))


def _places(exact: Tensors, results: Tensors, by: Side, inputs: Sequence[Gradient]) -> list[_Place]:
    places = []
    for index, (right, tensor) in enumerate(zip(exact, results, strict=False)):
        if right is not None and tensor is not None:
            differ, distances = ulp.differences(right, tensor)
            if differ.size:
                size, order = 0.0, distances
                if by == "native":
                    result, exact_values = tensor.values().reshape(-1), right.values().reshape(-1)
                    off = measure.measured_difference([result], [exact_values], measure.values([inputs[index]]))
                    size = off.size if off.is_finite else math.inf
                    with np.errstate(invalid="ignore"):
                        order = np.nan_to_num(np.abs(result - exact_values)[differ], nan=math.inf, posinf=math.inf)
                furthest = int(np.argmax(order))
                distance = (size, float(distances[furthest]))
                places.append(_Place(index, int(differ[furthest]), distance, int(differ.size)))
    return places


def _number(exact: Dense, result: Dense | None, element: int, dtype: str) -> Number | None:
    if result is None:
        return None
    value, right = _value(result, element), _value(exact, element)
    one, other = (Dense(each.dtype, each.array.reshape(-1)[element : element + 1]) for each in (exact, result))
    ulps = ulp.ulps([one], [other])
    if dtype != exact.dtype and 0 < ulps < math.inf:  # `exact` is float64, but measured on gradients of `dtype`
        spacing = 2.0 ** (math.frexp(right)[1] - FORMATS[dtype].precision)
        ulps = abs(value - right) / spacing if math.isfinite(value) else math.inf
    return Number(value=value, ulps=ulps)


def _value(tensor: Dense, element: int) -> float:
    return float(Dense(tensor.dtype, tensor.array.reshape(-1)[element : element + 1]).values()[0])
