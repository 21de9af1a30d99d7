"""Match the gradients of a clip call to the names that a training step yields.

A recording often has positions only. A training step yields parameters and gradients by name. A clipped gradient is
matched by its norm among the gradients, or by the norm of its weight among the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..tensors.arithmetic import nearest_float
from ..tensors.files import safetensors
from ..tensors.types import Dense, encode
from .run import ScriptRun, output_at

CLOSE = 1e-4
"""Relative tolerance of the norm of a clipped gradient, computed from the coefficient."""

Parameters = Mapping[str, Dense]

Line = dict[str, Any]
"""A line of a recording. `parameters` has its gradients by name."""


class NameMatch(NamedTuple):
    """Names of the gradients of a line."""

    names: Mapping[str, str]
    """From names in the line to names that the training step yields."""

    given_unclipped: bool
    """Whether the training step yields these gradients as they were before this call."""


class StepTensors:
    """The gradients that a training step yields after a step, and the weights before it."""

    def __init__(self, ran: ScriptRun, weights: Parameters, step: int, steps: int) -> None:
        now, before = output_at(ran, step, steps), output_at(ran, step - 1, steps)
        self.gradients = (now.gradients if now else None) or {}
        self.weights = before.parameters if before else weights if step == 1 else {}
        self._forms = {
            name: sorted_shape(each.shape) for name, each in (self.weights or ran.given[-1].parameters).items()
        }

    def match(self, line: Line, directory: Path) -> NameMatch | None:
        """Match the gradients of a line. Return None if it clipped a tensor that is no gradient."""
        parameters = line.get("parameters") or {}
        if not parameters:
            return NameMatch({}, False)
        before = {name: each["norm"] for name, each in parameters.items()}
        found = _matches(line, self.gradients, _norms_after(line, directory), {})
        given_unclipped = False
        if not found and line["clipped"]:
            found = _matches(line, self.gradients, before, {})
            given_unclipped = bool(found)
        known = {name: each["weight"] for name, each in parameters.items() if each.get("weight") is not None}
        found |= _matches(line, self.weights, known, found)
        if "after" in line and len(parameters) == 1 and not found and not self._may_be_gradient(line):
            return None
        found |= self._of_one_shape(line, found)
        taken = set(found.values())
        found |= {own: f"{own} of the call" for own in parameters if own not in found and own in taken}
        return NameMatch(found, given_unclipped)

    def _may_be_gradient(self, line: Line) -> bool:
        """Return whether a single tensor may be a gradient: by its origin if the line has it, else by its shape."""
        if line.get("is_gradient") is not None:
            return bool(line["is_gradient"])
        (parameter,) = line["parameters"].values()
        return sorted_shape(parameter["shape"]) in self._forms.values() and (
            line["rule"] != "value" or not self.gradients
        )

    def _of_one_shape(self, line: Line, found: Mapping[str, str]) -> dict[str, str]:
        """Match gradients whose shape only one parameter has."""
        forms = list(self._forms.values())
        alone = {shape: name for name, shape in self._forms.items() if forms.count(shape) == 1}
        shapes = {own: sorted_shape(each["shape"]) for own, each in line["parameters"].items() if own not in found}
        taken, wanted = set(found.values()), list(shapes.values())
        return {
            own: alone[shape]
            for own, shape in shapes.items()
            if wanted.count(shape) == 1 and shape in alone and alone[shape] not in taken
        }


def sorted_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without the order of its axes."""
    return tuple(sorted(shape))


def _norms_after(line: Line, directory: Path) -> dict[str, float]:
    """Return the norm of each gradient after clipping, by its name in the recording; none if that is unknown."""
    if stored := clipped_gradients(line, directory):
        return {name: _norm(line, each) for name, each in stored.items()}
    pairs = zip(line["parameters"].items(), coefficients(line), strict=False)
    return {name: parameter["norm"] * coef for (name, parameter), coef in pairs}


def _matches(line: Line, source: Parameters, expected: Mapping[str, float], found: Mapping[str, str]) -> dict[str, str]:
    """Match names to tensors of `source` with the expected norms, each once: equal shapes first, then the nearest."""
    matched: dict[str, str] = {}
    for _, own, name in sorted(_near(line, source, expected), key=lambda pair: pair[0]):
        if own not in {**found, **matched} and name not in {*found.values(), *matched.values()}:
            matched[own] = name
    return matched


def _near(
    line: Line, source: Parameters, expected: Mapping[str, float]
) -> Iterator[tuple[tuple[bool, float], str, str]]:
    for name, tensor in source.items():
        norm = _norm(line, tensor)
        for own, wanted in expected.items():
            shape = line["parameters"][own]["shape"]
            whole = sorted_shape(shape) == sorted_shape(tensor.shape)
            some_rows = len(shape) == len(tensor.shape) > 1 and tuple(shape[1:]) == tuple(tensor.shape[1:])
            if _same(norm, wanted) and (whole or some_rows):  # or the rows of a sparse gradient
                yield (not whole, 0.0 if norm == wanted else abs(norm - wanted)), own, name


def _same(norm: float, wanted: float) -> bool:
    return math.isclose(norm, wanted, rel_tol=CLOSE) or (math.isnan(norm) and math.isnan(wanted))


def _norm(line: Line, tensor: Dense) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(tensor.values().reshape(-1), line["norm_type"] or 2.0))


# -- gradients after a call


def clipped_gradients(line: Line, directory: Path) -> dict[str, Dense]:
    """Return the gradients after a call, by their names in the recording; none if they were not stored."""
    if "after" in line:
        return safetensors.load(directory / line["after"])
    if not (stored := stored_gradients(line, directory)):
        return {}
    if line["rule"] == "value" and line["threshold"]:
        return {name: _bounded(each, *line["threshold"]) for name, each in stored.items()}
    coefs = zip(line["parameters"], coefficients(line), strict=False)
    return {name: _product(stored[name], coef) for name, coef in coefs if name in stored}


def stored_gradients(line: Line, directory: Path) -> dict[str, Dense]:
    """Return the gradients before a call, by their names in the recording; none if they were not stored."""
    return safetensors.load(directory / line["gradients"]) if line.get("gradients") else {}


def coefficients(line: Line) -> list[float]:
    """Return the coefficient of each gradient of a line; none if the gradients have none."""
    count = len(line["parameters"])
    coefs = line["coef"] if isinstance(line["coef"], list) else [line["coef"]] * count
    return coefs if len(coefs) == count and line["rule"] in ("global", "each") else []


def _product(tensor: Dense, coef: float) -> Dense:
    """Multiply as unified_clip does: in float32, except for float64."""
    if tensor.dtype == "float64":
        return encode(tensor.values() * coef, tensor.dtype)
    product = (tensor.values() * float(np.float32(coef))).astype(np.float32)
    return encode(product.astype(np.float64), tensor.dtype)


def _bounded(tensor: Dense, low: float, high: float) -> Dense:
    bounds = [nearest_float(each, tensor.dtype) for each in (low, high)]
    return encode(np.clip(tensor.values(), bounds[0], bounds[1]), tensor.dtype)
