"""Identify a clip by the script's own code, from the gradients after the backward pass and at the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..recording.recorded_run import Parameter, RecordedCall
from ..tensors.arithmetic import Float64s
from .precision import UNITS, dtype_of

CLOSE = 1e-4
"""Coefficients and thresholds that differ by less are equal: samples and norms are in float32."""

OWN_CODE = "its own code"


class Change(NamedTuple):
    """What happened to one gradient between the backward pass and the step."""

    raw: Float64s
    norm: float
    gradient: Float64s
    shape: tuple[int, ...]

    def coef(self, close: float) -> float | None:
        """The number that multiplies all elements, or None if there is none."""
        size = float(self.raw @ self.raw)
        factor = float(self.raw @ self.gradient) / size if size else 1.0
        limit = close * float(np.abs(self.gradient).max(initial=0.0))
        return factor if bool((np.abs(self.gradient - factor * self.raw) <= limit).all()) else None


Changes = Mapping[str, Change]
"""{parameter: what happened to its gradient}."""


def identify(steps: Sequence[Changes]) -> list[RecordedCall] | None:
    """Return a clip call for each step that explains all changes, or None if no known clip does."""
    every = [each for changes in steps for each in changes.values()]
    if all(np.array_equal(each.raw, each.gradient) for each in every):
        return None
    dtype = dtype_of(array for each in every for array in (each.raw, each.gradient))
    close = closeness(dtype)
    calls = _by_norm("global", steps, close) or _by_norm("each", steps, close) or _by_value(steps, close)
    return [call.model_copy(update={"dtype": dtype}) for call in calls] if calls else None


def closeness(dtype: str) -> float:
    return max(CLOSE, 4 * UNITS[dtype])


def _by_norm(rule: str, steps: Sequence[Changes], close: float) -> list[RecordedCall] | None:
    """Return clips by the total norm ("global"), which have one coefficient in each step, or by each norm."""
    pairs: list[tuple[float, float]] = []
    columns: list[tuple[Any, Any]] = []
    for changes in steps:
        norms = [each.norm for each in changes.values()]
        coefs = [coef for each in changes.values() if (coef := each.coef(close)) is not None]
        if len(coefs) < len(norms):
            return None
        of_step = [pair for pair in zip(norms, coefs, strict=True) if pair[0]]
        if rule == "global":
            if not of_step or not all(_is_close(coef, of_step[0][1], close) for _, coef in of_step):
                return None
            of_step = [(math.hypot(*norms), of_step[0][1])]
        pairs += of_step
        columns.append(of_step[0] if rule == "global" else (norms, coefs))
    if (threshold := _threshold(pairs, close)) is None:
        return None
    return [_call(changes, rule, threshold, *column) for changes, column in zip(steps, columns, strict=True)]


def _by_value(steps: Sequence[Changes], close: float) -> list[RecordedCall] | None:
    every = [each for changes in steps for each in changes.values()]
    bound = max((float(np.abs(each.gradient).max(initial=0.0)) for each in every), default=0.0)
    if not bound or not all(np.allclose(np.clip(each.raw, -bound, bound), each.gradient, rtol=close) for each in every):
        return None
    bounds = (-float(f"{bound:.6g}"), float(f"{bound:.6g}"))
    return [_call(changes, "value", bounds, None, None) for changes in steps]


def _threshold(pairs: Sequence[tuple[float, float]], close: float) -> float | None:
    """Return the norm to which all changed gradients are scaled, or None if they are scaled to several."""
    results = [norm * coef for norm, coef in pairs if not _is_close(coef, 1.0, close)]
    if not results or not all(_is_close(each, results[0], close) for each in results):
        return None
    is_exceeded = any(_is_close(coef, 1.0, close) and norm > results[0] * (1 + close) for norm, coef in pairs)
    return None if is_exceeded else float(f"{results[0]:.4g}")


def _is_close(a: float, b: float, close: float) -> bool:
    return math.isclose(a, b, rel_tol=close)


def _call(changes: Changes, rule: str, threshold: Any, norm: Any, coef: Any) -> RecordedCall:
    parameters = {
        name: Parameter(shape=each.shape, norm=each.norm, sample=tuple(each.raw.tolist()))
        for name, each in changes.items()
    }
    known = {} if rule == "value" else {"norm": norm, "coef": coef, "norm_type": 2.0}
    return RecordedCall(
        step=1,
        call=OWN_CODE,
        rule=rule,
        threshold=threshold,
        count=len(changes),
        parameters=parameters,
        watched=True,
        **known,
    )
