"""The step number of a clip."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

from .._core import entry
from .._core.backend import Backend
from .._core.rule import StepThreshold
from .._core.types import Scalar
from . import schedules
from .schema import Clipping


class Step(NamedTuple):
    value: Any
    """An int, or a tensor of a compiled graph."""

    is_counted: bool
    """False if the caller passed the step."""

    def is_known(self) -> bool:  # PyTorch 2.9 traces methods of named tuples, but not their properties
        return isinstance(self.value, int)


def checked_step(step: Any, remedy: str = "Pass a whole number.") -> int:
    """Return the step as an int. NumPy integers and integer tensors are also accepted."""
    try:
        # some releases of NumPy and Paddle also accept a bool or a float tensor as an index
        is_whole = not isinstance(step, bool) and "int" in str(getattr(step, "dtype", "int"))
        number = operator.index(step) if is_whole else None
    except (TypeError, ValueError, RuntimeError, AssertionError):  # the type depends on the framework
        number = None
    if number is None:
        raise TypeError(f"step is {step!r}. {remedy}")
    if number < 0:
        raise ValueError(f"step is {number}. Pass 0 or more.")
    return number


STATE_VERSION = 1


def loaded_step(state: Any) -> int:
    if not isinstance(state, Mapping) or not {"version", "step", "adaptive"} <= state.keys():
        raise ValueError("this is not the state of a clip configuration. Pass the dict that state_dict() returned.")
    if state["version"] != STATE_VERSION:
        raise ValueError(
            f"the state has version {state['version']!r}, but this release of unified_clip supports {STATE_VERSION}. "
            "Install the release that saved the state."
        )
    try:
        return checked_step(state["step"])
    except (TypeError, ValueError):
        raise ValueError(
            f"in this state, `step` is {state['step']!r:.60}. Pass the dict that state_dict() returned."
        ) from None


def threshold_at(part: Clipping, step: Any) -> Scalar | StepThreshold:
    """Return the threshold at a step. If the step is a tensor of a graph, the graph computes the threshold."""
    threshold = part.threshold
    if threshold is None:
        return float("inf")
    if isinstance(step, int):
        return schedules.threshold_at(threshold, step)
    if isinstance(threshold, float):
        return threshold

    return StepThreshold(lambda xp: schedules.evaluate(threshold, step, xp))


def resolve_step(backend: Backend, step: Any, counted: int) -> Step:
    """Return the argument `step` of a clip call, or `counted` if it is None."""
    entry.break_graph(
        "a clip configuration cannot count its calls inside a compiled graph. Clip outside the graph, or call a "
        "function of unified_clip.torch"
    )
    if step is None:
        return Step(counted, True)
    if not backend.is_tensor(step):
        return Step(checked_step(step, "Pass a whole number, or a tensor with one element."), False)
    shape = backend.shape(backend.as_tensor(step))
    if shape is None or any(size != 1 for size in shape):
        which = "an unknown shape" if shape is None else f"the shape {shape}"
        raise ValueError(f"step is a tensor with {which}. Pass a whole number, or a tensor with one element.")
    value = backend.read(backend.as_tensor(step))
    number = int(value) if value is not None and math.isfinite(value) and value == int(value) else value
    return Step(step if value is None else checked_step(number), False)
