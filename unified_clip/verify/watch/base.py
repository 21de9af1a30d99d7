"""Watch the frameworks' own clipping functions, which `unified_clip.record` does not see, and record what they do.

They are only looked at: what went in, and what came out. A line says the exact norm of what went in, and by what it was
really multiplied, which is not always what the function's formula says.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import unified_clip

from ..._core.watch import Rule
from ...recording.dispatcher import DISPATCHER
from ...recording.recorder import Recording
from ...tensors.arithmetic import FORMATS, Float64s
from ...tensors.types import PARTS, Dense

SLACK = 2.0**-50
"""How far, relatively, a bound on a coefficient may be from its exact place: it is computed in float64."""

ROUNDINGS = (0.5, 1.5, 2.5)
"""Units in the last place that a product may be off by: functions that multiply and divide round more than once."""


@dataclass(frozen=True)
class Native:
    """A call of a framework's own function, and what its documentation says that it does."""

    name: str
    framework: str
    rule: Rule
    threshold: float | tuple[float, float] | None
    norm_type: float | None = 2.0
    eps: float | None = 0.0
    """What the formula adds to the norm."""

    given_norm: float | None = None
    """That the caller has handed over, to be taken for the norm of the gradients."""


@dataclass(frozen=True)
class Seen:
    """Tensors that a call has clipped; those that it was given as None are left out."""

    before: Sequence[Dense]
    after: Sequence[Dense]
    weights: Sequence[Dense | None] = ()
    """The parameter of each, where the call knows it."""

    names: Sequence[str] = ()
    """The framework's own; none: positions."""

    is_gradient: bool | None = True
    """False for a function that clips any tensor, and was given another one than a gradient; None: not known."""


class Observer:
    """Writes into a recording what a framework's function did."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._thread = threading.local()
        self._waits: list[Callable[[], object]] = []

    @contextmanager
    def outermost(self) -> Iterator[bool]:
        """Around a call: whether it is in no other that is counted, of a framework or of ours."""
        if getattr(self._thread, "inside", False) or DISPATCHER.is_running:
            yield False
            return
        self._thread.inside = True
        try:
            yield True
        finally:
            self._thread.inside = False

    def wait_with(self, wait: Callable[[], object]) -> None:
        """How to wait for graphs that have been started to tell what they did."""
        if wait not in self._waits:
            self._waits.append(wait)

    def wait(self) -> None:
        for wait in self._waits:
            wait()

    def see(self, native: Native, seen: Seen) -> None:
        """Record a call. One that clipped nothing is not recorded."""
        if seen.before:
            self._recording.add(fields(native, seen), *(_stored(seen, each) for each in (seen.before, seen.after)))


def fields(native: Native, seen: Seen) -> dict[str, Any]:
    """What a line of a recording says of a call."""
    p = native.norm_type or 2.0
    norms = [norm([each], p) for each in seen.before]
    found: dict[str, Any] = {
        "call": native.name,
        "framework": native.framework,
        "watched": True,
        "is_gradient": seen.is_gradient,
        "rule": native.rule,
        "threshold": list(native.threshold) if isinstance(native.threshold, tuple) else native.threshold,
        "norm_type": native.norm_type,
        "eps": native.eps,
        "dtype": "float64" if any(each.dtype in ("float64", "complex128") for each in seen.before) else "float32",
        "norm": None,
        "coef": None,
        "clipped": any((a.bits() != b.bits()).any() for a, b in zip(seen.before, seen.after, strict=True)),
        "nan": sum(int(np.isnan(each.values()).sum()) for each in seen.before),
        "inf": sum(int(np.isinf(each.values()).sum()) for each in seen.before),
        "seconds": None,
        "parameters": {},
    }
    if native.rule == "global":
        found["norm"] = norm(seen.before, p) if native.given_norm is None else native.given_norm
        found["coef"] = coefficient(seen.before, seen.after, documented(native, found["norm"]))
    elif native.rule == "each":
        found["norm"] = norms
        pairs = zip(seen.before, seen.after, norms, strict=True)
        found["coef"] = [coefficient([a], [b], documented(native, n)) for a, b, n in pairs]
    for index, (name, each) in enumerate(_named(seen, seen.before).items()):
        parameter = found["parameters"][name] = {"shape": list(each.shape), "norm": norms[index]}
        if seen.weights and (weight := seen.weights[index]) is not None:
            parameter["weight"] = norm([weight], p)
    return found


def _named(seen: Seen, tensors: Sequence[Dense]) -> dict[str, Dense]:
    names = seen.names or [str(index) for index in range(len(tensors))]
    return dict(zip(names, tensors, strict=True))


def _stored(seen: Seen, tensors: Sequence[Dense]) -> dict[str, tuple[str, npt.NDArray[Any]]]:
    """As `_safetensors.write` takes them."""
    return {name: (PARTS.get(each.dtype, each.dtype), each.array) for name, each in _named(seen, tensors).items()}


def norm(tensors: Sequence[Dense], p: float) -> float:
    """Correctly rounded, as ours are."""
    return float(unified_clip.get_total_norm([array_of(each) for each in tensors], p))


def array_of(tensor: Dense) -> npt.NDArray[Any]:
    """As NumPy has it; bfloat16, which NumPy has not, as the same numbers in float32."""
    return tensor.values().astype(np.float32) if tensor.dtype == "bfloat16" else tensor.array


def documented(native: Native, n: float) -> float:
    """The coefficient that a function's formula gives for the exact norm."""
    if not isinstance(native.threshold, float) or math.isnan(n):
        return math.nan
    total = n + (native.eps or 0.0)
    return 1.0 if total <= native.threshold else native.threshold / total


def coefficient(before: Sequence[Dense], after: Sequence[Dense], formula: float) -> float:
    """By what numbers were multiplied, in float32 unless they are float64.

    Every number tells an interval, of the coefficients with which its product rounds to what came out. Of those in all
    intervals it is the formula's, if that is among them, else the one that is nearest to it. NaN: no one number.
    """
    pairs = list(zip(before, after, strict=True))
    if all((a.bits() == b.bits()).all() for a, b in pairs):
        return 1.0
    for off in ROUNDINGS:
        low, high = 0.0, math.inf
        for a, b in pairs:
            below, above = _bounds(a, b, off)
            low, high = max(low, below), min(high, above)
        if low <= high:
            return _nearest_within(formula, low, high, wide=any(each.dtype == "float64" for each in before))
    return math.nan


def _bounds(before: Dense, after: Dense, off: float) -> tuple[float, float]:
    """The least and the greatest coefficient that each number of a tensor allows."""
    given, got = np.abs(before.values()).reshape(-1), np.abs(after.values()).reshape(-1)
    usable = np.isfinite(given) & np.isfinite(got) & (given > 0)
    given, got = given[usable], got[usable]
    if not given.size:
        return 0.0, math.inf
    reach = off * _spacing(got, before.dtype)
    with np.errstate(over="ignore"):
        low, high = (got - reach) / given, (got + reach) / given
    return float(low.max()) * (1 - SLACK), float(high.min()) * (1 + SLACK)


def _spacing(values: Float64s, dtype: str) -> Float64s:
    """A unit in the last place of each number."""
    target = FORMATS[dtype]
    exponents = np.frexp(values)[1] - 1
    spacing: Float64s = np.ldexp(1.0, np.maximum(exponents, target.min_exponent) - target.precision + 1)
    return spacing


def _nearest_within(formula: float, low: float, high: float, *, wide: bool) -> float:
    if wide:
        return min(max(formula, low), high) if math.isfinite(formula) else (low + high) / 2
    if low <= np.float32(formula) <= high:  # so the formula is what it did; as ours have it, in float64
        return formula
    middle = np.float32(min(max(formula, low), high) if math.isfinite(formula) else (low + high) / 2)
    candidates = [middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(math.inf))]
    return float(next((each for each in candidates if low <= each <= high), middle))


# -- what frameworks have in common


def wrap(holders: Sequence[tuple[Any, str]], wrapper: Callable[[Any], Any]) -> None:
    """Put a wrapper in the place of a function, under every name that it has."""
    holder, name = holders[0]
    wrapped = functools.wraps(getattr(holder, name))(wrapper(getattr(holder, name)))
    for holder, name in holders:
        if hasattr(holder, name):
            setattr(holder, name, wrapped)
