"""Describe a call of a framework's clip function, and write its line in an old environment."""

from __future__ import annotations

import math
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .hooks import OUTPUT
from .lines import caller, canonical, unique_names
from .samples import sample
from .steps import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from .guard import Call, Observer

PYTORCH_EPS = 1e-6


@dataclass(frozen=True)
class NativeCall:
    name: str
    framework: str
    rule: Any  # "global", "each" or "value"
    threshold: float | tuple[float, float] | None
    """None if the threshold is an array."""

    norm_type: float | None = 2.0
    eps: float | None = 0.0
    passed_norm: float | None = None
    """The norm that the caller passed, for example by `use_norm=`."""

    @property
    def order(self) -> float:
        return 2.0 if self.norm_type is None else self.norm_type

    def fields(self, dtypes: Collection[str]) -> dict[str, Any]:
        passed_norm = {} if self.passed_norm is None else {"passed_norm": self.passed_norm}
        return {
            "framework": self.framework,
            "rule": self.rule,
            "threshold": list(self.threshold) if isinstance(self.threshold, tuple) else self.threshold,
            "norm_type": self.norm_type,
            "eps": self.eps,
            "dtype": "float64" if {"float64", "complex128"}.intersection(dtypes) else "float32",
            "count": len(dtypes),
            **dict.fromkeys(("norm", "coef", "clipped", "nan", "inf")),
            "watched": True,
            **passed_norm,
        }


class ProgramClip(NamedTuple):
    """A clip in a static program of Paddle. `before` and `after` are its variables, or in Paddle 1 their names."""

    call: NativeCall
    names: Sequence[str]
    before: Sequence[Any]
    after: Sequence[Any]
    place: str | None


def describe_call(framework: str, name: str, arguments: dict[str, Any]) -> NativeCall:
    """arguments: Those of a function in PyTorch's or Paddle's `nn.utils`."""
    name = f"{framework}.nn.utils.{name.lstrip('_')}"
    if "clip_value" in arguments:
        threshold = float(arguments["clip_value"])
        return NativeCall(name, framework, "value", (-threshold, threshold), None, None)
    order, threshold = float(arguments.get("norm_type", 2.0)), float(arguments["max_norm"])
    passed = float(arguments["total_norm"]) if "total_norm" in arguments else None
    return NativeCall(name, framework, "global", threshold, order, PYTORCH_EPS, passed)


def coefficient(n: float, threshold: float, eps: float, *, infinite_norm_gives_nan: bool = False) -> float:
    """Return min(1, threshold / (n + eps))."""
    if threshold == math.inf:
        return 1.0
    if n == threshold == 0:
        return 0.0
    if math.isnan(threshold) or math.isnan(n) or (n == math.inf and infinite_norm_gives_nan):
        return math.nan
    total = n + eps
    return 1.0 if total <= threshold else threshold / total if total else math.nan


def combined_norm(norms: Sequence[float], p: float) -> float:
    greatest = max(norms, default=0.0)
    if any(map(math.isnan, norms)):
        return math.nan
    if not p > 0:  # a framework's own function may accept such a p
        return math.nan
    if p == 2 and sys.version_info >= (3, 8):  # hypot of several numbers
        return math.hypot(*norms)
    if p == math.inf or not 0 < greatest < math.inf:
        return greatest
    try:
        return float(greatest * math.fsum((n / greatest) ** p for n in norms) ** (1 / p))
    except OverflowError:
        return math.inf


def norm_of(array: Any, p: float) -> float:
    """Return the norm of an array, computed in float64."""
    flat = np.abs(array.reshape(-1)).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(flat, p)) if flat.size else 0.0


class Row(NamedTuple):
    """A gradient before a clip."""

    name: str
    dtype: str
    fields: dict[str, Any]
    """Those of a parameter. `sums` are recorded only in the first row of the parameter."""

    extremes: Sequence[float] | None = None
    """The smallest and the largest element."""

    def at_step(self) -> tuple[Sequence[int], Sequence[float], Sequence[float] | None]:
        """Return the arguments of `tensor_at_step`."""
        return self.fields["shape"], [*self.fields["sample"], self.fields["norm"]], self.fields.get("weight_sample")


_summed: set[str] = set()


def needs_sums(name: str) -> bool:
    """Each matrix is summed once. The name is empty for a row of a step, which has no sums."""
    return bool(name) and canonical(name) not in _summed


def row(name: str, gradient: Any, weight: Any, p: float) -> Row:
    """gradient: An array. weight: An array, or None."""
    fields = {"shape": list(gradient.shape), "norm": norm_of(gradient, p), "sample": sample(gradient)}
    if weight is not None:
        fields.update({"weight": norm_of(weight, p), "weight_sample": sample(weight)})
        if weight.ndim == 2 and needs_sums(name):
            exact = weight.astype(np.float64)
            fields["sums"] = [float(exact.sum()), float((exact**3).sum())]
    extremes = [float(gradient.min()), float(gradient.max())] if gradient.size else [0.0, 0.0]
    return Row(name, gradient.dtype.name, fields, extremes)


def record_call(
    call: NativeCall,
    rows: Sequence[Row],
    place: str | None,
    returned_norm: float | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """returned_norm: The norm that the function returned. Without fields, a row is not measured."""
    norms = [each.fields["norm"] for each in rows if each.fields]
    line: dict[str, Any] = {"call": call.name, **call.fields([each.dtype for each in rows])}
    line.update({"is_gradient": True, **(more or {})})
    if returned_norm is not None:
        line["returned_norm"] = returned_norm
    if call.rule != "value":
        own: Any = norms if call.rule != "global" else combined_norm(norms, call.order) if norms else None
        used: Any = next((each for each in (call.passed_norm, returned_norm, own) if each is not None), None)
        threshold = call.threshold if isinstance(call.threshold, float) else None
        each_norm = used if isinstance(used, list) else [used]
        coefs = [None if threshold is None else coefficient(norm, threshold, call.eps or 0.0) for norm in each_norm]
        line.update({"norm": used if own is None else own, "coef": coefs if isinstance(used, list) else coefs[0]})
        line["clipped"] = None if None in coefs else any(coef != 1 for coef in coefs)
    elif isinstance(call.threshold, tuple):
        line["clipped"] = _is_outside(rows, *call.threshold)
    if len(norms) == len(rows) and all(map(math.isfinite, norms)):
        line.update({"nan": 0, "inf": 0})
    if OUTPUT.norms:
        names = unique_names(canonical(each.name) for each in rows)
        line["parameters"] = {name: _without_known_sums(name, each.fields) for name, each in zip(names, rows)}
    line["place"] = place
    for recording in OUTPUT.recordings:
        recording.add_call(line)


def _without_known_sums(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    if name in _summed:
        fields.pop("sums", None)
    _summed.add(name)
    return fields


def _is_outside(rows: Sequence[Row], low: float, high: float) -> bool | None:
    known = [(each.dtype, each.extremes) for each in rows if each.extremes is not None]
    bounds = [[_rounded(bound, dtype) for bound in (low, high)] for dtype, _ in known]
    found = [least < a or greatest > b for (_, (least, greatest)), (a, b) in zip(known, bounds)]
    return any(found) if len(known) == len(rows) else None


def _rounded(number: float, dtype: str) -> float:
    """A framework compares the elements with the bound in their dtype."""
    return float(np.dtype(dtype).type(number)) if dtype in ("float16", "float32") else number


class Outermost:
    """Record no call inside of a recorded call."""

    def __init__(self) -> None:
        self._thread = threading.local()

    def observer(self, observe: Observer) -> Observer:
        def observe_outermost(call: Call) -> Iterator[None]:
            if getattr(self._thread, "is_inside", False):
                return
            self._thread.is_inside = True
            try:
                yield from observe(call)
            finally:
                self._thread.is_inside = False

        return observe_outermost


CLIPS = Outermost()


def clip_parameters(
    called: Call, framework: str, row_of: Callable[[Any, int, float], Row], on_empty: Callable[[Any], object]
) -> Iterator[None]:
    """Record a call whose first argument is the parameters.

    row_of: Takes a parameter, its position and p.
    """
    arguments = called.arguments
    passed = next(iter(arguments.values()))
    parameters = [passed] if hasattr(passed, "grad") else list(passed)
    clipped = [each for each in parameters if getattr(each, "grad", None) is not None]
    if not clipped:
        on_empty(parameters)
        yield
        return
    call, place = describe_call(framework, called.function.__name__, arguments), caller()
    rows = [row_of(each, position, call.order) for position, each in enumerate(clipped)]
    yield
    is_returned = call.rule == "global" and call.passed_norm is None
    record_call(call, rows, place, plain(called.result) if is_returned else None)
    OUTPUT.report_clipped(call.name, clipped)
