"""Describe a call of a framework's clip function, and write its line."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .guard import describe_error
from .hooks import OUTPUT, ran
from .lines import caller, canonical, unique_names
from .samples import sample

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from .guard import Call, Observer

PYTORCH_EPS = 1e-6

WIDE = {"float64", "complex128"}


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

    @property
    def computes_norm(self) -> bool:
        """Functions of `nn.utils` also return this norm."""
        return self.rule != "value" and self.passed_norm is None

    def coefficient(self, n: float) -> float | None:
        return coefficient(n, self.threshold, self.eps or 0.0) if isinstance(self.threshold, float) else None

    def norm_of_norms(self, norms: Sequence[float]) -> Any:
        """Return the norm by which the call clips, or those of each gradient."""
        return combined_norm(norms, self.order) if self.rule == "global" else list(norms)

    def fields(self, dtypes: Collection[str]) -> dict[str, Any]:
        passed_norm = {} if self.passed_norm is None else {"passed_norm": self.passed_norm}
        return {
            "framework": self.framework,
            "rule": self.rule,
            "threshold": list(self.threshold) if isinstance(self.threshold, tuple) else self.threshold,
            "norm_type": self.norm_type,
            "eps": self.eps,
            "dtype": "float64" if WIDE.intersection(dtypes) else "float32",
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


def describe_paddle(rule: Any, name: str) -> NativeCall:
    if hasattr(rule, "max"):
        return NativeCall(name, "paddle", "value", (float(rule.min), float(rule.max)), None, None)
    is_global = any("GlobalNorm" in kind.__name__ for kind in type(rule).__mro__)
    return NativeCall(name, "paddle", "global" if is_global else "each", float(rule.clip_norm))


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
    greatest = float(flat.max()) if flat.size else 0.0
    if not 0 < greatest < math.inf:
        return greatest
    if not p > 0:  # a framework's own function may accept such a p
        return math.nan
    exponent = math.frexp(greatest)[1]  # the powers of large numbers would overflow
    with np.errstate(over="ignore", under="ignore"):
        return float(np.ldexp(np.linalg.norm(np.ldexp(flat, -exponent), p), exponent))


def rounded(norm: Any, dtype: str) -> Any:
    """Round norms to `dtype`, the dtype in which a call computes its norm."""
    if isinstance(norm, list):
        return [rounded(each, dtype) for each in norm]
    with np.errstate(over="ignore"):
        return norm if norm is None or dtype == "float64" else float(np.float32(norm))


class Row(NamedTuple):
    """A gradient before a clip."""

    name: str
    """The position if the gradient has no name."""

    dtype: str
    fields: Mapping[str, Any] = {}
    """Those of a parameter, or nothing if the gradient is not measured. `sums` are recorded only in the first row of
    the parameter."""

    extremes: Sequence[float] | None = None
    """The smallest and the largest element."""

    nonfinite: tuple[int, int] = (0, 0)
    """The numbers of NaN and infinities."""

    is_named: bool = True
    parameter: Any = None
    stored: Any = None
    """A copy of the gradient, if a recording stores gradients."""

    sparse_rows: tuple[Any, Any] | None = None
    """The rows of a sparse gradient before and after the clip."""

    def at_step(self) -> tuple[Sequence[int], Sequence[float], Sequence[float] | None]:
        """Return the arguments of `tensor_at_step`."""
        return self.fields["shape"], [*self.fields["sample"], self.fields["norm"]], self.fields.get("weight_sample")


def needs_sums(name: str) -> bool:
    """Each matrix is summed once. The name is empty for a row of a step, which has no sums."""
    return bool(name) and canonical(name) not in OUTPUT.summed


def needs_gradients(call: NativeCall, *, returns_norm: bool, norms: bool | None = None) -> bool:
    """Return whether the line of a call needs the norms of its gradients, if a recording has norms."""
    return (OUTPUT.norms if norms is None else norms) or (call.computes_norm and not returns_norm)


def row(name: str, gradient: Any, weight: Any, p: float) -> Row:
    """gradient: An array. weight: An array, or None."""
    is_complex = np.iscomplexobj(gradient)
    norm = norm_of(gradient, p)
    fields: dict[str, Any] = {"shape": list(gradient.shape), "norm": norm}
    if weight is not None:
        fields["weight"] = norm_of(weight, p)
    if not is_complex:
        fields["sample"] = sample(gradient)
        fields.update({} if weight is None else {"weight_sample": sample(weight)})
    if weight is not None and weight.ndim == 2 and not is_complex and needs_sums(name):
        exact = weight.astype(np.float64)
        fields["sums"] = [float(exact.sum()), float((exact**3).sum())]
    has_extremes = gradient.size and not is_complex
    extremes = [float(gradient.min()), float(gradient.max())] if has_extremes else [0.0, 0.0]
    nonfinite = (0, 0) if math.isfinite(norm) else (int(np.isnan(gradient).sum()), int(np.isinf(gradient).sum()))
    return Row(name, gradient.dtype.name, fields, extremes, nonfinite)


def rows_of(call: NativeCall, before: Sequence[Any], weights: Sequence[Any] = (), names: Sequence[str] = ()) -> Any:
    """Return the rows of arrays. Without names, use positions."""
    named = zip(names or map(str, range(len(before))), before, weights or [None] * len(before))
    rows = [(row(name, gradient, weight, call.order), OUTPUT.copy(gradient)) for name, gradient, weight in named]
    return [each._replace(is_named=bool(names), stored=copy) for each, copy in rows]


def without_none(before: Sequence[Any], *others: Sequence[Any]) -> list[list[Any]]:
    places = [index for index, each in enumerate(before) if each is not None]
    return [[each[index] for index in places] if each else [] for each in (before, *others)]


def record_call(
    call: NativeCall,
    rows: Sequence[Row],
    place: str | None,
    returned_norm: float | None = None,
    more: Mapping[str, Any] | None = None,
    results: Sequence[Any] = (),
) -> None:
    """returned_norm: The norm that the function returned.

    results: Copies of the clipped gradients, if a recording stores gradients."""
    if not rows:
        return
    whole = line_of(call, rows, returned_norm)
    names = unique_names(canonical(each.name) for each in rows)
    parameters = {name: _parameter(name, each, whole["dtype"]) for name, each in zip(names, rows) if each.fields}
    for recording in OUTPUT.recordings:
        own = dict(whole)
        if recording.norms and len(parameters) == len(rows):
            own["parameters"] = dict(parameters)
        elif not needs_gradients(call, returns_norm=returned_norm is not None, norms=recording.norms):
            own = line_of(call, [Row(each.name, each.dtype) for each in rows], returned_norm)
        recording.add_call({**own, "is_gradient": True, **(more or {}), "place": place}, call, rows, results)


def line_of(call: NativeCall, rows: Sequence[Row], returned_norm: float | None = None) -> dict[str, Any]:
    line: dict[str, Any] = {"call": call.name, **call.fields([each.dtype for each in rows])}
    norms = [each.fields["norm"] for each in rows if each.fields and call.order > 0]
    is_known = len(norms) == len(rows)
    own = rounded(call.norm_of_norms(norms), line["dtype"]) if norms else None
    if any(each.sparse_rows for each in rows) and is_known:
        of_rows = [norm_of(each.sparse_rows[0], call.order) if each.sparse_rows else n for each, n in zip(rows, norms)]
        stored_norm = rounded(call.norm_of_norms(of_rows), line["dtype"])
        line.update({} if stored_norm == own or call.rule == "value" else {"stored_norm": stored_norm})
    if returned_norm is not None:
        line["returned_norm"] = returned_norm
    if is_known:
        line["nan"], line["inf"] = (sum(each.nonfinite[place] for each in rows) for place in range(2))
    elif returned_norm is not None and math.isfinite(returned_norm):
        line.update({"nan": 0, "inf": 0})
    if call.rule == "value":
        line["clipped"] = _is_outside(rows, *call.threshold) if isinstance(call.threshold, tuple) else None
        return line
    known = (call.passed_norm, returned_norm, line.get("stored_norm"), own)
    used: Any = next((each for each in known if each is not None), None)
    coefs = [None if norm is None else call.coefficient(norm) for norm in (used if isinstance(used, list) else [used])]
    line.update({"norm": used if own is None else own, "coef": coefs if isinstance(used, list) else coefs[0]})
    is_unknown = any(coef is None or math.isnan(coef) for coef in coefs)
    line["clipped"] = None if is_unknown else any(coef != 1 for coef in coefs)
    return line


def rounded_fields(row: Row, dtype: str) -> dict[str, Any]:
    norms = {key: rounded(row.fields[key], dtype) for key in ("norm", "weight") if key in row.fields}
    return {**row.fields, **norms}


def _parameter(name: str, row: Row, dtype: str) -> dict[str, Any]:
    fields = rounded_fields(row, dtype)
    if name in OUTPUT.summed:
        fields.pop("sums", None)
    OUTPUT.summed.add(name)
    return fields


def _is_outside(rows: Sequence[Row], low: float, high: float) -> bool | None:
    known = [each for each in rows if each.extremes is not None and not any(map(math.isnan, each.extremes))]
    for each in known:
        a, b = (rounded_bound(bound, each.dtype) for bound in (low, high))
        if min(each.extremes or ()) < a or max(each.extremes or ()) > b:
            return True
    return False if len(known) == len(rows) else None


def rounded_bound(number: float, dtype: str) -> float:
    """A framework compares the elements with the bound in their dtype."""
    with np.errstate(over="ignore"):  # a bound above the largest number clips nothing
        if dtype == "bfloat16":
            bits = int(np.float32(number).view(np.uint32))
            nearest = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000  # ties to even
            return float(np.uint32(nearest).view(np.float32))
        return float(np.dtype(dtype).type(number)) if dtype in ("float16", "float32") else number


def record_around(
    called: Call,
    call: NativeCall,
    rows: Sequence[Row],
    results: Callable[[], Sequence[Any]],
    returned_norm: Callable[[], Any] = lambda: None,
    inner: Observer = ran,
) -> Iterator[None]:
    """Record a call that runs while this observer waits.

    results: Returns the clipped gradients.
    """
    place = caller()
    try:
        yield from inner(called)
    except GeneratorExit:
        for recording in OUTPUT.recordings:
            recording.add_call({"call": call.name, "place": place, "error": describe_error(called.error)})
        raise
    parameters = [each.parameter for each in rows]
    repeated = len(parameters) - len(set(map(id, parameters)))
    more = {"repeated": repeated} if repeated and None not in parameters else {}
    after = [OUTPUT.copy(each) for each in results()] if OUTPUT.stores_results else []
    record_call(call, rows, place, returned_norm(), more, after)
    OUTPUT.report_clipped(call.name, parameters if call.threshold != math.inf else ())


def clip_parameters(
    called: Call,
    framework: str,
    row_of: Callable[[Any, int, NativeCall], Row],
    on_empty: Callable[[Any], object],
    value_of: Callable[[Any], Any] = float,
    inner: Observer = ran,
) -> Iterator[None]:
    """Record a call whose first argument is the parameters.

    row_of: Takes a parameter and its position.
    value_of: Takes the norm that the function returned.
    """
    arguments = called.arguments
    passed = next(iter(arguments.values()))
    parameters = [passed] if hasattr(passed, "grad") else list(passed)
    clipped = [each for each in parameters if getattr(each, "grad", None) is not None]
    if not clipped:
        on_empty(parameters)
        yield
        return
    call = describe_call(framework, called.function.__name__, arguments)
    rows = [row_of(each, position, call) for position, each in enumerate(clipped)]
    yield from record_around(
        called,
        call,
        rows,
        lambda: [each.grad for each in clipped],
        lambda: value_of(called.result) if call.computes_norm else None,
        inner,
    )


# -- static programs of Paddle


def not_recorded(called: Call) -> Iterator[None]:
    yield
    raise TypeError("Use Executor.run in the recorded run")


def fetch_also(called: Call, arguments: Mapping[str, Any], more: Sequence[Any]) -> Any:
    """Run `Executor.run`, and return the arrays of the variables in `more`."""
    if arguments.get("use_prune"):
        raise TypeError("a pruned program cannot be recorded")
    own = arguments.get("fetch_list")
    own = [] if own is None else list(own) if isinstance(own, (list, tuple)) else [own]
    called.args, called.kwargs = (), {**arguments, "fetch_list": [*own, *more]}
    yield
    found = called.result
    count = len(found) - len(more)
    called.result = found[:count]
    return list(map(np.array, found[count:]))


def weight_in(scope: Any, name: str) -> Any:
    variable = scope.find_var(name)
    return None if variable is None else np.array(variable.get_tensor())
