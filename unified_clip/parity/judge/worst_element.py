"""Find the element of a result that is furthest from the exact one, at the first stage that differs.

This happens while the tensors are in memory, for results that differ, one tensor at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...tensors import ulp
from ...tensors.arithmetic import FORMATS, rounded
from ...tensors.types import PARTS, Dense, Lazily, Stage, encode
from ..modes import HOST, NATIVE
from ..outcome import CallOutcome
from ..results import Number, Side, WorstElement
from ..suite.cases import Case
from .oracle import Expected
from .verdict import STAGES, coefficients

Tensors = Sequence[Dense | None]


def find(
    case: Case, right: Expected, outcomes: Mapping[str, CallOutcome], modes: Iterable[str]
) -> dict[str, WorstElement]:
    """By mode, where the results of these modes differ; nothing where there are no numbers to compare.

    Ours is shown beside the native, and the native beside ours in every mode; beside the native that of the host path.
    """
    native = outcomes.get(NATIVE)
    ours = outcomes.get(HOST) or next((each for mode, each in outcomes.items() if mode != NATIVE), None)
    found = {
        mode: _find(case, right, "native", ours, outcomes[mode])
        if mode == NATIVE
        else _find(case, right, "ours", outcomes[mode], native)
        for mode in modes
    }
    return {mode: each for mode, each in found.items() if each}


class _Place(NamedTuple):
    tensor: int
    element: int
    ulps: float
    apart: int
    """How many numbers of the tensor differ."""


def _find(
    case: Case, right: Expected, by: Side, ours: CallOutcome | None, native: CallOutcome | None
) -> WorstElement | None:
    for stage in STAGES:
        exact = _numbers(stage, case, right, right)
        if exact is None:
            continue
        sides = {"ours": _numbers(stage, case, right, ours), "native": _numbers(stage, case, right, native)}
        places = _places(exact, sides[by] or [])
        if places:
            return _details(stage, case, exact, sides["ours"], sides["native"], places)
    return None


def _details(
    stage: Stage, case: Case, exact: Tensors, ours: Tensors | None, native: Tensors | None, places: Sequence[_Place]
) -> WorstElement:
    index, element, *_ = max(places, key=lambda place: place.ulps)
    tensor = exact[index]
    assert tensor is not None
    dtype = _dtype(case, index) if stage == "coefficient" else tensor.dtype
    return WorstElement(
        stage=stage,
        gradient=None if stage == "norm" else index,
        name=case.names[index] if case.names and stage != "norm" else "",
        element=list(map(int, np.unravel_index(element, tensor.array.shape))),
        dtype=dtype,
        exact=Number(value=_value(tensor, element), ulps=0.0),
        ours=_number(tensor, None if ours is None else ours[index], element, dtype),
        native=_number(tensor, None if native is None else native[index], element, dtype),
        apart=sum(place.apart for place in places),
        compared=sum(each.array.size for each in exact if each is not None),
    )


def _numbers(stage: str, case: Case, right: Expected, found: Expected | CallOutcome | None) -> Tensors | None:
    """Return the tensors of a result at a stage, in the exact result's form. None if there is nothing to compare."""
    exact, held = _held(stage, right), _held(stage, found)
    if exact is None or held is None or (stage == "coefficient" and case.call.by_value):
        return None
    if [_size(each) for each in exact] != [_size(each) for each in held]:
        return None
    if stage == "coefficient":
        return [Dense("float64", np.array(coefficient)) for coefficient in coefficients(case, held)]
    return Lazily(lambda index: _like(exact[index], held[index]), len(exact))


def _size(tensor: Dense | None) -> int | None:
    return None if tensor is None else tensor.array.size


def _held(stage: str, result: Expected | CallOutcome | None) -> Tensors | None:
    if result is None:
        return None
    if stage == "norm":
        return None if result.norm is None else [result.norm]
    return result.update if stage == "update" else result.gradients


def _like(exact: Dense | None, found: Dense | None) -> Dense | None:
    """Return a tensor in another's dtype and shape: some functions return the norm in the gradients' dtype."""
    if exact is None or found is None:
        return None
    if found.dtype != exact.dtype:
        found = encode(rounded(found.values(), exact.dtype), exact.dtype)
    return Dense(exact.dtype, found.array.reshape(exact.array.shape))


def _places(exact: Tensors, found: Tensors) -> list[_Place]:
    """Return, for each tensor that differs, the element that is furthest off."""
    pairs = enumerate(zip(exact, found, strict=False))
    places = (_place(index, a, b) for index, (a, b) in pairs if a is not None and b is not None)
    return [place for place in places if place]


def _place(index: int, exact: Dense, found: Dense) -> _Place | None:
    differ, distances = ulp.differences(exact, found)
    if not differ.size:
        return None
    furthest = int(np.argmax(distances))
    return _Place(index, int(differ[furthest]), float(distances[furthest]), int(differ.size))


def _number(exact: Dense, found: Dense | None, element: int, dtype: str) -> Number | None:
    if found is None:
        return None
    value, right = _value(found, element), _value(exact, element)
    one, other = (Dense(each.dtype, each.array.reshape(-1)[element : element + 1]) for each in (exact, found))
    ulps = ulp.ulps([one], [other])
    if dtype != exact.dtype and math.isfinite(ulps):  # a coefficient, which tensors of this dtype show
        spacing = 2.0 ** (math.frexp(right)[1] - FORMATS[dtype].precision)
        ulps = abs(value - right) / spacing if math.isfinite(value) else math.inf
    return Number(value=value, ulps=ulps)


def _value(tensor: Dense, element: int) -> float:
    return float(Dense(tensor.dtype, tensor.array.reshape(-1)[element : element + 1]).values()[0])


def _dtype(case: Case, index: int) -> str:
    gradient = case.gradients[index]
    assert gradient is not None
    return PARTS.get(gradient.dtype, gradient.dtype)
