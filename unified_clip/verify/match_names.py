"""What the gradients of a clip call are called.

A recording names them by what the call knew, often by nothing but their position. The functions that are verified give
parameters and gradients by name: a clipped gradient is known by its norm among those, or its weight among the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..tensors.types import Dense
from .clipped import Line, clipped, each_coefficient
from .run import Ran, at_step

CLOSE = 1e-4
"""How far, relatively, the norm of a clipped gradient may be from what the coefficient says: it was rounded."""

Parameters = Mapping[str, Dense]


class Named(NamedTuple):
    """From names in a line to those that are known."""

    names: Mapping[str, str]
    given_unclipped: bool
    """Whether the function gave these gradients as they were before this call has clipped them."""


class Known:
    """What is known of the parameters at a step: the gradients that the function gave, and the weights before it."""

    def __init__(self, ran: Ran, weights: Parameters, step: int, steps: int) -> None:
        now, before = at_step(ran, step, steps), at_step(ran, step - 1, steps)
        self.gradients = (now.gradients if now else None) or {}
        self.weights = before.parameters if before else weights if step == 1 else {}
        self._forms = {name: form(each.shape) for name, each in (self.weights or ran.given[-1].parameters).items()}

    def named(self, line: Line, directory: Path) -> Named | None:
        """None for a function that has clipped what is no gradient."""
        parameters = line.get("parameters") or {}
        if not parameters:
            return Named({}, False)
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
        return Named(found, given_unclipped)

    def _may_be_gradient(self, line: Line) -> bool:
        """Whether one tensor is a gradient: the watcher knows where it came from, else its shape decides."""
        if line.get("is_gradient") is not None:
            return bool(line["is_gradient"])
        (parameter,) = line["parameters"].values()
        return form(parameter["shape"]) in self._forms.values() and (line["rule"] != "value" or not self.gradients)

    def _of_one_shape(self, line: Line, found: Mapping[str, str]) -> dict[str, str]:
        """What is not known yet, and has the shape of one parameter only."""
        forms = list(self._forms.values())
        alone = {shape: name for name, shape in self._forms.items() if forms.count(shape) == 1}
        shapes = {own: form(each["shape"]) for own, each in line["parameters"].items() if own not in found}
        taken, wanted = set(found.values()), list(shapes.values())
        return {
            own: alone[shape]
            for own, shape in shapes.items()
            if wanted.count(shape) == 1 and shape in alone and alone[shape] not in taken
        }


def form(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape, whatever the order of its axes."""
    return tuple(sorted(shape))


def _norms_after(line: Line, directory: Path) -> dict[str, float]:
    """The norm of each gradient after clipping, by its name in the recording; none where that is not known."""
    if stored := clipped(line, directory):
        return {name: _norm(each, _order(line)) for name, each in stored.items()}
    pairs = zip(line["parameters"].items(), each_coefficient(line), strict=False)
    return {name: parameter["norm"] * coef for (name, parameter), coef in pairs}


def _matches(line: Line, source: Parameters, expected: Mapping[str, float], found: Mapping[str, str]) -> dict[str, str]:
    """The names in `source` of tensors that have the expected norms, each once: of a fitting shape, the nearest."""
    matched: dict[str, str] = {}
    for _, own, name in sorted(_near(line, source, expected), key=lambda pair: pair[0]):
        if own not in {**found, **matched} and name not in {*found.values(), *matched.values()}:
            matched[own] = name
    return matched


def _near(
    line: Line, source: Parameters, expected: Mapping[str, float]
) -> Iterator[tuple[tuple[bool, float], str, str]]:
    for name, tensor in source.items():
        norm = _norm(tensor, _order(line))
        for own, wanted in expected.items():
            shape = line["parameters"][own]["shape"]
            whole = form(shape) == form(tensor.shape)
            if _same(norm, wanted) and (whole or _is_rows(shape, tensor.shape)):
                yield (not whole, 0.0 if norm == wanted else abs(norm - wanted)), own, name


def _is_rows(shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether a shape may be that of a sparse gradient's values, of which there are as many as it has rows."""
    return len(shape) == len(whole) > 1 and tuple(shape[1:]) == tuple(whole[1:])


def _same(norm: float, wanted: float) -> bool:
    return math.isclose(norm, wanted, rel_tol=CLOSE) or (math.isnan(norm) and math.isnan(wanted))


def _order(line: Line) -> float:
    return line["norm_type"] or 2.0


def _norm(tensor: Dense, order: float) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(tensor.values().reshape(-1), order))
