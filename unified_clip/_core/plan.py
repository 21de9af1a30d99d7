"""Several rules over the gradients of one call: all are measured, then judged, before the first is written.

What a configuration says of its gradients comes here as `Part`s. The rule itself is `rule`'s.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, cast

from . import checks, observer, rule
from .gradients import Gradients
from .ops import Path, Scalar, Tensor
from .rule import Family
from .writes import Write

Kind = Literal["value", "norm", "global_norm"]
"""Bounds for every element; a norm for each gradient; one norm for all of a part."""

Nonfinite = Literal["family", "raise", "skip", "zero"]
"""What becomes of gradients where any norm is not finite: as the rule has it; an error; None; zeros."""

IN_GRAPHS = {
    "raise": "raise from inside a graph; use 'zero' or 'family' there, and look at the norm outside",
    "skip": "leave a step out from inside a graph; use 'zero', which makes all gradients 0 there, or let the "
    "integration with the optimizer skip the step",
}
"""What a graph cannot do, and what to do instead."""

Measured = tuple[range, Path, Scalar]
"""Gradients, and their norm."""

Limit = float | Callable[[Path], Scalar]
"""A threshold, or how it is computed from a step that only a graph knows."""


@dataclass(frozen=True)
class Part:
    """Gradients that are clipped alike."""

    kind: Kind
    family: Family
    limit: Limit = math.inf
    bounds: tuple[float, float] | None = None
    """For values, in the place of the limit, which means from -limit to limit."""

    p: float = 2.0


class Norm(NamedTuple):
    """A norm that was measured, or one for each gradient of a group, and what followed from it."""

    group: range
    path: Path
    n: Scalar
    limit: Scalar
    coef: Scalar | None
    """None where the limit is inf, and nothing is scaled."""


class Outcome(NamedTuple):
    """What a call found."""

    path: Path
    """Over all gradients."""

    n: Scalar
    norm: Tensor
    """The total norm, as the caller gets it."""

    norms: list[list[Norm]]
    """Of each part."""

    greatest: list[Scalar | None]
    """The greatest magnitude in each part that is clipped by value."""

    counts: tuple[Scalar, Scalar] | None
    """How many NaN and inf there are, in the CPU's memory where a norm is not finite, elsewhere where `details` are
    wanted."""

    each: list[Norm]
    """The norm of each gradient, where `details` are wanted."""

    skipped: bool


def clip(
    gradients: Gradients,
    parts: Sequence[tuple[range, Part]],
    nonfinite: Nonfinite,
    *,
    others: Sequence[Tensor] = (),
    details: bool = False,
    chosen: object = None,
    step: int | None = None,
) -> Outcome:
    """Clip each part by its rule. The groups are all there is, in order. `others`: tensors that limits depend on.
    `chosen`: the patterns of names of each part, equal on every rank, as `step` is."""
    everything = range(len(gradients.values))
    if gradients.shards is not None:
        gradients.agree(_compared([part for _, part in parts], nonfinite, details, chosen, step))
    whole = gradients.path(everything, others)
    one = parts[0][1] if len(parts) == 1 and parts[0][1].kind == "global_norm" else None
    p = one.p if one else 2.0
    with whole.scope():
        n = rule.one_norm(gradients, whole, p)
        norm = whole.as_norm(n)
        is_wrong = whole.on_host and not whole.is_finite(n)
        counts = whole.count_nonfinite() if is_wrong or (details and not whole.on_host) else None
    measured: list[list[Measured]] = []
    greatest: list[Scalar | None] = []
    for group, part in parts:
        known = [(group, whole, n)] if one else None
        measured.append(known or _measured(gradients, group, part, others, apart=nonfinite != "family"))
        greatest.append(_measure(gradients, group, math.inf, others)[2] if part.kind == "value" else None)
    judged = [
        (everything, whole, n, p),
        *((*each, part.p) for (_, part), found in _both(parts, measured) for each in found),
    ]
    skipped = _is_refused(nonfinite, gradients, judged)
    norms = [[_judged(*each, part) for each in found] for (_, part), found in _both(parts, measured)]
    if details:
        gradients.shared_norms(p)
    each = [Norm(*_measure_one(gradients, i, p, others), math.inf, None) for i in everything if details]
    outcome = Outcome(whole, n, norm, norms, greatest, counts, each, skipped)
    keep = _keep(outcome) if nonfinite == "zero" else None
    for (group, part), found in _both(parts, norms):
        _apply(gradients, group, part, found, keep, others, skipped)
    return outcome


def _compared(
    parts: Sequence[Part], nonfinite: Nonfinite, details: bool, chosen: object, step: int | None
) -> dict[str, Any]:
    """What has to be equal on every rank. A limit that only a graph has is not compared."""
    limits = [part.limit for part in parts if isinstance(part.limit, float)]
    threshold = {"threshold": limits[0]} if len(limits) == 1 else {"thresholds": limits}
    rules = [
        f"{part.kind} with norm_type {part.p}, bounds {part.bounds}"
        + "".join(f", {name} {value}" for name, value in part.family.arguments.items())
        for part in parts
    ]
    others = {"nonfinite": nonfinite, "details": details, "names": chosen, "step": step}
    return {**threshold, "rules": " and ".join(rules), **others}


Found = TypeVar("Found")


def _both(parts: Sequence[tuple[range, Part]], found: Sequence[Found]) -> Iterator[tuple[tuple[range, Part], Found]]:
    return zip(parts, found, strict=True)


def smallest_coefficient(outcome: Outcome) -> Tensor:
    """The smallest coefficient, NaN where any is, and 1 where there is none; as the caller gets the norm."""
    path = outcome.path
    with path.scope():
        one, nan = path.constant(1.0), path.constant(math.nan)
        smallest = one
        for found in (norm for norms in outcome.norms for norm in norms):
            coef = one if found.coef is None else path.constant(_least(found.coef))
            smallest = path.where(coef <= smallest, coef, path.where(coef >= smallest, smallest, nan))
        return path.as_norm(smallest)


def all_finite(outcome: Outcome) -> Tensor:
    """1 where the total norm and those of all parts are finite, else 0; as the caller gets the norm."""
    path = outcome.path
    with path.scope():
        return path.as_norm(path.where(_is_all_finite(outcome), path.constant(1.0), path.constant(0.0)))


def _is_all_finite(outcome: Outcome) -> Any:
    found = []
    for path, n in _measured_by(outcome):
        with path.scope():
            is_finite: Any = n <= path.constant(sys.float_info.max)
            found.append(is_finite.all() if getattr(n, "ndim", 0) else is_finite)
    return functools.reduce(operator.and_, found)


def _measured_by(outcome: Outcome) -> Iterator[tuple[Path, Scalar]]:
    """All norms, the total one first: of single gradients, or arrays of those."""
    yield outcome.path, outcome.n
    yield from ((norm.path, norm.n) for norms in outcome.norms for norm in norms)


def _least(coef: Scalar) -> Scalar:
    """Of a scalar, or of an array of them, one for each gradient."""
    return coef.min() if getattr(coef, "ndim", 0) else coef


def _is_refused(
    nonfinite: Nonfinite, gradients: Gradients, judged: Sequence[tuple[range, Path, Scalar, float]]
) -> bool:
    """Whether the step is to be skipped. An error where that is asked for, and where a graph cannot tell."""
    if nonfinite not in IN_GRAPHS:
        return False
    for group, path, n, p in judged:
        with path.scope():
            is_finite = path.is_finite(n)
            if is_finite is None:
                raise TypeError(f"nonfinite = {nonfinite!r} cannot {IN_GRAPHS[nonfinite]}")
            if nonfinite == "raise":
                leaves = gradients.leaves[group.start : group.stop]
                checks.finite(path, n, leaves, p, "the configuration has nonfinite = 'raise'")
            elif not is_finite:
                return True
    return False


def _measured(gradients: Gradients, group: range, part: Part, others: Sequence[Tensor], apart: bool) -> list[Measured]:
    """The norms that a part goes by. Those that a framework may refuse to write come first."""
    if part.kind == "global_norm":
        return [_measure(gradients, group, part.p, others)]
    if part.kind == "value":
        return []
    each = gradients.each(group) if part.p == 2 and not others and not apart else None
    if each is not None:
        with each.scope():
            return [(group, each, each.norm(2))]
    gradients.shared_norms(part.p)  # with processes that have no gradient here
    found = [_measure_one(gradients, index, part.p, others) for index in group]
    return sorted(found, key=lambda each: each[1].on_host)


def _measure(gradients: Gradients, group: range, p: float, others: Sequence[Tensor]) -> Measured:
    path = gradients.path(group, others)
    with path.scope():
        return group, path, path.norm(p)


def _measure_one(gradients: Gradients, index: int, p: float, others: Sequence[Tensor]) -> Measured:
    """The norm of one gradient, all parts of it together."""
    group = range(index, index + 1)
    shared = gradients.shared_norms(p)
    if shared is None:
        return _measure(gradients, group, p, others)
    path = gradients.path(group, others)
    with path.scope():
        return group, path, path.constant(shared[index])


def _judged(group: range, path: Path, n: Scalar, part: Part) -> Norm:
    with path.scope():
        limit = part.limit(path) if callable(part.limit) else part.limit
        return Norm(group, path, n, limit, rule.known_coefficient(path, n, limit, part.family))


def _keep(outcome: Outcome) -> Scalar | None:
    """Whether results are kept, and not zeros; None where that is known to be so."""
    keep = _is_all_finite(outcome)
    return None if all(path.on_host for path, _ in _measured_by(outcome)) and bool(keep) else keep


def _apply(
    gradients: Gradients,
    group: range,
    part: Part,
    norms: Sequence[Norm],
    keep: Scalar | None,
    others: Sequence[Tensor],
    skipped: bool,
) -> None:
    kind: observer.Rule = "global" if part.kind == "global_norm" else "each"
    for norm in norms:
        with norm.path.scope():
            if observer.active is not None:
                observer.emit(
                    kind, gradients, norm.group, norm.path, norm.limit, norm.n, norm.coef, part.p, part.family.eps
                )
            if not skipped:
                rule.apply(gradients, norm.group, *_or_zero(norm.path, norm.coef, keep))
    if norms or not group:
        return
    path = gradients.path(group, others)
    with path.scope():
        bounds = part.bounds or _around_zero(part, path)
        if observer.active is not None:
            observer.emit("value", gradients, group, path, bounds)
        if skipped:
            return
        path, coef = _or_zero(path, None, keep)
        if part.bounds == (-math.inf, math.inf):
            rule.apply(gradients, group, path, coef)
        else:
            gradients.clamp(group, path, *bounds)


def _around_zero(part: Part, path: Path) -> tuple[Scalar, Scalar]:
    limit = part.limit(path) if callable(part.limit) else part.limit
    return -limit, limit


def _or_zero(path: Path, coef: Scalar | None, keep: Scalar | None) -> tuple[Path, Scalar | None]:
    if keep is None:
        return path, coef
    return cast(Path, _OrZero(path, keep)), path.constant(1.0) if coef is None else coef


class _OrZero:
    """What writes results has of a path: they are zeros where the condition does not hold."""

    def __init__(self, path: Path, keep: Scalar) -> None:
        self._path, self._keep = path, keep
        self.on_host = path.on_host

    def is_one(self, coef: Scalar) -> bool:
        return False

    def scale(self, coef: Scalar) -> list[Tensor]:
        return self._path.zeroed(self._path.scale(coef), self._keep)

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        zeros = self._path.prepare_zero(self._keep)
        if zeros is None:
            return self._path.prepare_write(self.scale(coef))
        return [*self._path.prepare_scale(coef), *zeros]

    def scope(self) -> AbstractContextManager[Any]:
        return self._path.scope()

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        return self._path.zeroed(self._path.clamp(low, high), self._keep)

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        zeros = self._path.prepare_zero(self._keep)
        if zeros is None:
            return self._path.prepare_write(self.clamp(low, high))
        return [*self._path.prepare_clamp(low, high), *zeros]
