"""Find the names of recorded gradients by their norms, because many recordings only number the gradients."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..recording.recorded_run import RecordedCall
from ..tensors.arithmetic import nearest_float
from ..tensors.files import safetensors
from ..tensors.types import Dense, encode
from .cause_limits import RECORDED_NORM_TOLERANCE
from .launch.outputs import ScriptRun
from .layouts import sorted_shape

Parameters = Mapping[str, Dense]

RecordedWeights = tuple[Parameters, RecordedCall]
"""(weights before a recorded call, recorded call)"""


class NameMatch(NamedTuple):
    names: Mapping[str, str]
    """{recorded name of a gradient: name of its parameter}"""

    yields_unclipped: bool


class NameMatcher:
    def __init__(self, run: ScriptRun, weights: Parameters, step: int, steps: int) -> None:
        now, before = run.output_at(step, steps), run.output_at(step - 1, steps)
        self.gradients = (now.gradients if now else None) or {}
        self.weights = before.parameters if before else weights if step == 1 else {}
        parameters = self.weights or run.outputs[-1].parameters
        self._shapes = {name: sorted_shape(tensor.shape) for name, tensor in parameters.items()}
        self._columns = {name: _columns(tensor.shape) for name, tensor in parameters.items()}

    def match(self, line: RecordedCall, directory: Path, others: Sequence[RecordedWeights] = ()) -> NameMatch | None:
        """Return None if the call clips a single tensor that is not a gradient.

        others: The same clip call at other steps. These calls break ties between parameters of equal norm.
        """
        parameters, misfit = line.parameters, partial(_misfit, [(self.weights, line), *others])
        if not parameters:
            return NameMatch({}, False)
        names = _matches(line, self.gradients, _norms_after(line, directory), {}, misfit)
        yields_unclipped = False
        if not names and line.clipped:
            norms = {name: entry.norm for name, entry in parameters.items()}
            names = _matches(line, self.gradients, norms, {}, misfit)
            yields_unclipped = bool(names)
        weights = {name: entry.weight for name, entry in parameters.items() if entry.weight is not None}
        names |= _matches(line, self.weights, weights, names, misfit)
        if line.after and len(parameters) == 1 and not names and not self._may_be_gradient(line):
            return None
        names |= self._of_one_shape(line, names)
        names |= self._of_some_rows(line, names)
        matched = set(names.values())
        names |= {own: f"{own} of the call" for own in parameters if own not in names and own in matched}
        return NameMatch(names, yields_unclipped)

    def _may_be_gradient(self, line: RecordedCall) -> bool:
        if line.is_gradient is not None:
            return line.is_gradient
        (parameter,) = line.parameters.values()
        return sorted_shape(parameter.shape) in self._shapes.values() and (line.rule != "value" or not self.gradients)

    def _of_one_shape(self, line: RecordedCall, names: Mapping[str, str]) -> dict[str, str]:
        rest = [(own, sorted_shape(entry.shape)) for own, entry in line.parameters.items() if own not in names]
        pairs = [(own, name) for own, shape in rest for name, each in self._shapes.items() if shape == each]
        return {own: name for own, name in unambiguous(pairs).items() if name not in names.values()}

    def _of_some_rows(self, line: RecordedCall, names: Mapping[str, str]) -> dict[str, str]:
        free = [(name, columns) for name, columns in self._columns.items() if name not in names.values()]
        rest = [(own, _columns(entry.shape)) for own, entry in line.parameters.items() if own not in names]
        return unambiguous([(own, name) for own, columns in rest for name, each in free if columns and columns == each])


def _columns(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    return tuple(shape[1:])


def unambiguous(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    left, right = (Counter(pair[side] for pair in pairs) for side in (0, 1))
    return {name: other for name, other in pairs if left[name] == right[other] == 1}


def _norms_after(line: RecordedCall, directory: Path) -> dict[str, float]:
    if stored := clipped_gradients(line, directory):
        return {name: _norm(line, tensor) for name, tensor in stored.items()}
    pairs = zip(line.parameters.items(), _coefficients(line), strict=False)
    return {name: parameter.norm * coef for (name, parameter), coef in pairs}


def _matches(
    line: RecordedCall,
    source: Parameters,
    norms: Mapping[str, float],
    known: Mapping[str, str],
    misfit: Callable[[str, str], tuple[float, bool]],
) -> dict[str, str]:
    """Return {recorded name: name in `source`} for tensors of the same norm, except for the gradients in `known`."""
    names: dict[str, str] = {}
    candidates = list(_near(line, source, norms))
    ties = Counter((side, key, each) for key, *both in candidates for side, each in enumerate(both))

    def rank(candidate: tuple[tuple[bool, float], str, str]) -> tuple[object, ...]:
        key, own, name = candidate
        is_tied = max(ties[0, key, own], ties[1, key, name]) > 1
        return *key, *(misfit(own, name) if is_tied else (0.0, False))

    for _, own, name in sorted(candidates, key=rank):
        if own not in {**known, **names} and name not in {*known.values(), *names.values()}:
            names[own] = name
    return names


def _misfit(calls: Sequence[RecordedWeights], own: str, name: str) -> tuple[float, bool]:
    """Return (difference between the recorded weights and the parameter, whether the names differ).

    A recorded name can have additional parts in front: "net/bn/beta" fits "bn.beta".
    """
    differences = [0.0]
    for weights, line in calls:
        recorded = line.parameters[own].weight
        if recorded is not None and name in weights and not math.isnan(recorded):
            norm = _norm(line, weights[name])
            differences.append(abs(norm - recorded) / max(norm, recorded) if norm != recorded else 0.0)
    last, parts = (re.split(r"[./:]", each) for each in (own, name))
    return max(differences), last[-len(parts) :] != parts


def _near(
    line: RecordedCall, source: Parameters, norms: Mapping[str, float]
) -> Iterator[tuple[tuple[bool, float], str, str]]:
    for name, tensor in source.items():
        norm = _norm(line, tensor)
        for own, expected in norms.items():
            shape = line.parameters[own].shape
            whole = sorted_shape(shape) == sorted_shape(tensor.shape)
            some_rows = len(shape) > 1 and _columns(shape) == _columns(tensor.shape)
            # some_rows: a sparse gradient has only some rows of its parameter
            if _same(norm, expected) and (whole or some_rows):
                yield (not whole, 0.0 if norm == expected else abs(norm - expected)), own, name


def _same(norm: float, expected: float) -> bool:
    return math.isclose(norm, expected, rel_tol=RECORDED_NORM_TOLERANCE) or (math.isnan(norm) and math.isnan(expected))


def _norm(line: RecordedCall, tensor: Dense) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(tensor.values().reshape(-1), line.norm_type or 2.0))


def clipped_gradients(line: RecordedCall, directory: Path) -> dict[str, Dense]:
    """Return {recorded name: gradient after the call}, or {} if the recording has no gradients."""
    if line.after:
        return safetensors.load(directory / line.after)
    if not (stored := stored_gradients(line, directory)):
        return {}
    if line.rule == "value" and isinstance(line.threshold, tuple):
        return {name: _bounded(tensor, *line.threshold) for name, tensor in stored.items()}
    coefs = zip(line.parameters, _coefficients(line), strict=False)
    return {name: _product(stored[name], coef) for name, coef in coefs if name in stored}


def stored_gradients(line: RecordedCall, directory: Path) -> dict[str, Dense]:
    """Sparse gradients are never stored."""
    return safetensors.load(directory / line.gradients) if line.gradients else {}


def _coefficients(line: RecordedCall) -> list[float]:
    count = len(line.parameters)
    coefs = line.known_coefs() * count if line.rule == "global" else line.known_coefs()
    return coefs if len(coefs) == count and line.rule in ("global", "each") else []


def _product(tensor: Dense, coef: float) -> Dense:
    if tensor.dtype == "float64":
        return encode(tensor.values() * coef, tensor.dtype)
    product = (tensor.values() * float(np.float32(coef))).astype(np.float32)
    return encode(product.astype(np.float64), tensor.dtype)


def _bounded(tensor: Dense, low: float, high: float) -> Dense:
    bounds = [nearest_float(bound, tensor.dtype) for bound in (low, high)]
    return encode(np.clip(tensor.values(), bounds[0], bounds[1]), tensor.dtype)
