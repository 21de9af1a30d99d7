"""Record the frameworks' own clipping functions, which `unified_clip.record` does not record.

The functions run unchanged. A line has the exact norm of their inputs, and the coefficient between inputs and
results, which may differ from the function's formula.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import unified_clip

from ..._core.observer import Rule
from ..._dispatch import adapter_of
from ...causes import scaling
from ...recording.dispatcher import DISPATCHER
from ...recording.recorder import Recording
from ...tensors.files.convert_worker import read_tensor
from ...tensors.types import PARTS, Dense, densify, from_numpy

EPS = 1e-6
"""Of `clip_grad_norm_` of PyTorch and Paddle."""

SLACK = 2.0**-50
"""Relative tolerance of a bound on a coefficient, which is computed in float64."""

ROUNDINGS = (0.5, 1.5, 2.5)
"""ULP by which a product may be off: functions that multiply and divide round more than once."""


@dataclass(frozen=True)
class NativeCall:
    """A call of a framework's own clipping function, with its documented settings."""

    name: str
    framework: str
    rule: Rule
    threshold: float | tuple[float, float] | None
    norm_type: float | None = 2.0
    eps: float | None = 0.0
    """Added to the norm by the formula."""

    passed_norm: float | None = None
    """The norm that the caller passed in place of the norm of the gradients."""


@dataclass(frozen=True)
class ObservedTensors:
    """The gradients before and after a call, with their weights. Gradients that are None are left out."""

    before: Sequence[Dense]
    after: Sequence[Dense]
    weights: Sequence[Dense | None] = ()
    """The parameter of each gradient, if the call has it."""

    names: Sequence[str] = ()
    """The framework's names. Empty: positions are the names."""

    is_gradient: bool | None = True
    """False if the function accepts any tensor and got one that is no gradient; None if that is unknown."""

    @classmethod
    def from_arrays(cls, arrays: Sequence[Any], count: int, *more: Any) -> ObservedTensors:
        """Return the tensors of a call from a flat list: `count` gradients, their results, then any weights."""
        dense = [from_numpy(np.array(each)) for each in arrays]
        return cls(dense[:count], dense[count : 2 * count], dense[2 * count :], *more)


class Observer:
    """A recorder of calls of the frameworks' functions, which it writes to a recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._thread = threading.local()
        self._waits: list[Callable[[], object]] = []

    @contextmanager
    def outermost(self) -> Iterator[bool]:
        """Enter a call, and yield whether it is the outermost one: calls inside it are part of it."""
        if getattr(self._thread, "inside", False) or DISPATCHER.is_running:
            yield False
            return
        self._thread.inside = True
        try:
            yield True
        finally:
            self._thread.inside = False

    def around(self, watch: Callable[..., Any]) -> Callable[[Any], Any]:
        """Return a decorator that replaces outermost calls by `watch(self, function, *args, **kwargs)`."""

        def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
            def watched(*args: Any, **kwargs: Any) -> Any:
                with self.outermost() as is_outermost:
                    return watch(self, function, *args, **kwargs) if is_outermost else function(*args, **kwargs)

            return watched

        return wrapper

    def wait_with(self, wait: Callable[[], object]) -> None:
        """Register a function that waits until started graphs have reported their calls."""
        if wait not in self._waits:
            self._waits.append(wait)

    def wait(self) -> None:
        for wait in self._waits:
            wait()

    def record(self, call: NativeCall, observed: ObservedTensors) -> None:
        """Write a call to the recording, unless it got no gradients."""
        if observed.before:
            stored = (_stored(observed, tensors) for tensors in (observed.before, observed.after))
            self._recording.add(fields(call, observed), *stored)


def fields(call: NativeCall, observed: ObservedTensors) -> dict[str, Any]:
    """Return the fields of a call's line in the recording."""
    p = call.norm_type or 2.0
    norms = [exact_norm([each], p) for each in observed.before]
    line: dict[str, Any] = {
        "call": call.name,
        "framework": call.framework,
        "watched": True,
        "is_gradient": observed.is_gradient,
        "rule": call.rule,
        "threshold": list(call.threshold) if isinstance(call.threshold, tuple) else call.threshold,
        "norm_type": call.norm_type,
        "eps": call.eps,
        "dtype": "float64" if any(each.dtype in ("float64", "complex128") for each in observed.before) else "float32",
        "norm": None,
        "coef": None,
        "clipped": any((a.bits() != b.bits()).any() for a, b in zip(observed.before, observed.after, strict=True)),
        "nan": sum(int(np.isnan(each.values()).sum()) for each in observed.before),
        "inf": sum(int(np.isinf(each.values()).sum()) for each in observed.before),
        "seconds": None,
        "parameters": {},
    }
    if call.rule == "global":
        line["norm"] = exact_norm(observed.before, p) if call.passed_norm is None else call.passed_norm
        line["coef"] = coefficient(observed.before, observed.after, coefficient_by_formula(call, line["norm"]))
    elif call.rule == "each":
        line["norm"] = norms
        pairs = zip(observed.before, observed.after, norms, strict=True)
        line["coef"] = [coefficient([a], [b], coefficient_by_formula(call, n)) for a, b, n in pairs]
    for index, (name, each) in enumerate(_named(observed, observed.before).items()):
        parameter = line["parameters"][name] = {"shape": list(each.shape), "norm": norms[index]}
        if observed.weights and (weight := observed.weights[index]) is not None:
            parameter["weight"] = exact_norm([weight], p)
    return line


def _named(observed: ObservedTensors, tensors: Sequence[Dense]) -> dict[str, Dense]:
    names = observed.names or [str(index) for index in range(len(tensors))]
    return dict(zip(names, tensors, strict=True))


def _stored(observed: ObservedTensors, tensors: Sequence[Dense]) -> dict[str, tuple[str, npt.NDArray[Any]]]:
    """Return (dtype, array) of each tensor by gradient name."""
    return {name: (PARTS.get(each.dtype, each.dtype), each.array) for name, each in _named(observed, tensors).items()}


def exact_norm(tensors: Sequence[Dense], p: float) -> float:
    """Return the correctly rounded p-norm of tensors."""
    # NumPy lacks bfloat16, whose numbers float32 represents
    arrays = [each.values().astype(np.float32) if each.dtype == "bfloat16" else each.array for each in tensors]
    return float(unified_clip.get_total_norm(arrays, p))


def coefficient_by_formula(call: NativeCall, n: float) -> float:
    """Return the coefficient that the function's formula gives for a norm; NaN without a single threshold."""
    return scaling.coefficient(n, call.threshold, call.eps or 0.0) if isinstance(call.threshold, float) else math.nan


def coefficient(before: Sequence[Dense], after: Sequence[Dense], formula: float) -> float:
    """Return the coefficient that turned `before` into `after`; NaN if none explains every element.

    Each element bounds the coefficient: the interval of factors that round to the observed result. Return the nearest
    number to `formula` that is in all intervals, or NaN if there is none.
    """
    pairs = list(zip(before, after, strict=True))
    if all((a.bits() == b.bits()).all() for a, b in pairs):
        return 1.0
    for off in ROUNDINGS:
        lows, highs = zip(*(scaling.coefficient_bounds(a, b, off) for a, b in pairs), strict=True)
        low, high = max(0.0, *lows) * (1 - SLACK), min(highs) * (1 + SLACK)
        if low <= high:
            return _nearest_within(formula, low, high, wide=any(each.dtype == "float64" for each in before))
    return math.nan


def _nearest_within(formula: float, low: float, high: float, *, wide: bool) -> float:
    if wide:
        return min(max(formula, low), high) if math.isfinite(formula) else (low + high) / 2
    if low <= np.float32(formula) <= high:  # the function followed its formula; unified_clip records float64
        return formula
    middle = np.float32(min(max(formula, low), high) if math.isfinite(formula) else (low + high) / 2)
    candidates = [middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(math.inf))]
    return float(next((each for each in candidates if low <= each <= high), middle))


def wrap(homes: Sequence[tuple[Any, str]], wrapper: Callable[[Any], Any]) -> None:
    """Replace a function by a wrapper, at each (module, name) of `homes` that exists."""
    homes = [home for home in homes if hasattr(*home)]
    if homes:
        function = getattr(*homes[0])
        wrapped = functools.wraps(function)(wrapper(function))
    for home in homes:
        setattr(*home, wrapped)


def read(tensor: Any) -> Dense:
    """Return a copy of a framework's tensor as a dense tensor."""
    dense = densify(read_tensor("a gradient", tensor))
    assert dense is not None
    return Dense(dense.dtype, np.array(dense.array))


def without_none(before: Sequence[Any], *others: Sequence[Any]) -> list[list[Any]]:
    """Return the lists without the entries at which `before` has None. An empty list stays empty."""
    places = [index for index, each in enumerate(before) if each is not None]
    return [[each[index] for index in places] if each else [] for each in (before, *others)]


def clip_parameters(observer: Observer, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run and record a function of PyTorch or Paddle that clips the gradients of its first argument."""
    framework = function.__module__.partition(".")[0]
    bound = inspect.signature(function).bind(*args, **kwargs)
    (first, passed), *_ = bound.arguments.items()
    parameters = bound.arguments[first] = list(passed) if adapter_of(type(passed)) is None else [passed]
    clipped = [parameter for parameter in parameters if getattr(parameter, "grad", None) is not None]
    before, weights = [read(parameter.grad) for parameter in clipped], [read(parameter) for parameter in clipped]
    result = function(*bound.args, **bound.kwargs)
    names = [parameter.name for parameter in clipped] if framework == "paddle" else ()
    observed = ObservedTensors(before, [read(parameter.grad) for parameter in clipped], weights, names)
    observer.record(_describe_call(framework, function.__name__, bound.arguments), observed)
    return result


def _describe_call(framework: str, name: str, arguments: dict[str, Any]) -> NativeCall:
    name = f"{framework}.nn.utils.{name.lstrip('_')}"
    if "clip_value" in arguments:
        threshold = float(arguments["clip_value"])
        return NativeCall(name, framework, "value", (-threshold, threshold), None, None)
    order, threshold = float(arguments.get("norm_type", 2.0)), float(arguments["max_norm"])
    passed = float(arguments["total_norm"]) if "total_norm" in arguments else None
    return NativeCall(name, framework, "global", threshold, order, EPS, passed)
