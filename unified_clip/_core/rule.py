"""Clip by a norm: compute the norm n, the coefficient and the clipped gradients g'.

n    = (sum of |g|**p)**(1/p)         rounded once
coef = min(1, c / (n + eps))          float64
g'   = g * coef, and g itself where coef is 1

All norms are computed before any gradient changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from . import observer, validation
from .gradients import GradientList
from .path import Path, Scalars
from .types import Scalar, Tensor, Write


class ClipConvention(NamedTuple):
    """The settings in which the frameworks' formulas differ."""

    eps: float
    infinite_norm_gives_nan: bool

    @property
    def arguments(self) -> dict[str, Any]:
        return {"eps": self.eps, "infinite_norm_gives_nan": self.infinite_norm_gives_nan}


PYTORCH = ClipConvention(eps=1e-6, infinite_norm_gives_nan=False)
PADDLE = ClipConvention(eps=0.0, infinite_norm_gives_nan=False)
TENSORFLOW = PADDLE
TENSORFLOW_GLOBAL = ClipConvention(eps=0.0, infinite_norm_gives_nan=True)

Kind = Literal["value", "norm", "global_norm"]
""""value" clips each element, "norm" each tensor by its own norm, and "global_norm" all tensors by one norm."""


class StepThreshold(NamedTuple):
    """A compiled graph computes the threshold from the number of the training step."""

    compute: Callable[[Scalars], Scalar]


class AdaptiveThreshold(ABC):
    """A threshold that depends on the norms of this step and earlier steps."""

    __slots__ = ("limit",)

    limit: Scalar | StepThreshold

    @abstractmethod
    def advance(self, xp: Scalars, norm: Scalar) -> tuple[Scalar, Any]: ...

    @abstractmethod
    def describe(self) -> str:
        """Return a text that must be equal on all ranks."""


class OwnThresholds(ABC):
    """A separate threshold for each slice of a tensor."""

    __slots__ = ()

    @abstractmethod
    def measure(
        self, gradients: GradientList, group: range, clip_rule: ClipRule, inputs: Sequence[Tensor]
    ) -> list[Scale]: ...


class ClipRule(NamedTuple):
    kind: Kind
    convention: ClipConvention = PADDLE
    threshold: Scalar | StepThreshold | AdaptiveThreshold | OwnThresholds = math.inf
    bounds: tuple[Any, Any] | None = None
    """Used if `kind` is "value". None means -threshold and threshold."""

    p: float = 2.0
    axes: Sequence[int] | None = None
    """The axes over which each norm is computed. None means all axes."""

    given_norm: Scalar | None = None
    """The total norm that the caller passed, or None."""

    def tensors(self) -> list[Tensor]:  # PyTorch 2.9 traces methods of named tuples, but not their properties
        return _tensors(self.threshold, self.given_norm, *(self.bounds or ()))


class Scale(NamedTuple):
    """Multiply the gradients of a group by a coefficient."""

    group: range
    path: Path
    n: Scalar
    """One norm, or a vector with one norm per tensor."""

    threshold: Scalar = math.inf
    coef: Scalar | None = None
    """None if the threshold is inf."""

    total: Tensor | None = None
    """The total norm as a tensor, or None for norms per tensor."""

    state: Any = None

    def is_identity(self) -> bool:
        return self.coef is None or self.path.is_one(self.coef)

    def results(self) -> list[Tensor]:
        return self.path.unchanged() if self.coef is None else self.path.scale(self.coef)

    def writes(self) -> list[Write]:
        return [] if self.coef is None else self.path.prepare_scale(self.coef)


class Clamp(NamedTuple):
    """Limit the elements of a group to [low, high]."""

    group: range
    path: Path
    low: Any
    high: Any

    def is_identity(self) -> bool:
        return not _tensors(self.low, self.high) and (self.low, self.high) == (-math.inf, math.inf)

    def results(self) -> list[Tensor]:
        return self.path.unchanged() if self.is_identity() else self.path.clamp(self.low, self.high)

    def writes(self) -> list[Write]:
        return [] if self.is_identity() else self.path.prepare_clamp(self.low, self.high)


class OrZero(NamedTuple):
    """Make a change, or set all elements to 0 if a condition is false."""

    change: Scale | Clamp
    condition: Scalar
    group: range
    path: Path

    def is_identity(self) -> bool:
        return False

    def results(self) -> list[Tensor]:
        return self.path.zeroed(self.change.results(), self.condition)

    def writes(self) -> list[Write]:
        return self.path.prepare_zeroed(self.change, self.condition)


def clip(gradients: GradientList, rule: ClipRule, error_if_nonfinite: bool = False) -> Tensor:
    """Return the total norm, or None for a rule without a total norm. The writer's `result` or `finish` writes the
    clipped gradients later."""
    everything = range(len(gradients.values))
    if gradients.shards is not None:
        gradients.set_consensus_fields(_must_match(rule, error_if_nonfinite))
    if not error_if_nonfinite and observer.active is None:
        total = _clip_at_once(gradients, rule)
        if total is not None:
            return total
    if rule.kind == "value":
        apply(gradients, rule, [bounded(gradients, everything, rule, rule.tensors())])
        return None
    norms = measure(gradients, everything, rule, rule.tensors())
    if error_if_nonfinite:
        check_finite(gradients, norms[0], rule.p)
    apply(gradients, rule, norms)
    return norms[0].total if norms else None


def _clip_at_once(gradients: GradientList, rule: ClipRule) -> Tensor | None:
    threshold = rule.threshold
    if rule.kind != "global_norm" or rule.given_norm is not None or not isinstance(threshold, float):
        return None
    return None if threshold == math.inf else gradients.clip_at_once(rule.p, threshold, *rule.convention)


def total_norm(gradients: GradientList, p: float, error_if_nonfinite: bool = False) -> Tensor:
    if gradients.shards is not None:
        gradients.set_consensus_fields({"error_if_nonfinite": error_if_nonfinite})
    norm = measure_one(gradients, range(len(gradients.values)), ClipRule("global_norm", p=p), ())
    if error_if_nonfinite:
        check_finite(gradients, norm, p)
    return norm.total


def _must_match(rule: ClipRule, error_if_nonfinite: bool) -> dict[str, Any]:
    fields = {"threshold": None if _tensors(rule.threshold) else rule.threshold, **rule.convention.arguments}
    return {**fields, "error_if_nonfinite": error_if_nonfinite} if rule.kind == "global_norm" else fields


def check_finite(gradients: GradientList, norm: Scale, p: float, setting: str = "error_if_nonfinite is set") -> None:
    path, leaves = norm.path, gradients.leaves[norm.group.start : norm.group.stop]
    with path.scope():
        validation.finite(path, norm.n, leaves, p, setting, has_ranks=gradients.shards is not None)


# -- norm and coefficient


def measure(
    gradients: GradientList, group: range, rule: ClipRule, inputs: Sequence[Tensor] = (), *, scalars: bool = False
) -> list[Scale]:
    """Return one `Scale` for the group, or several if the rule clips per tensor.

    Writes follow this order. Writes on devices can fail, so tensors on devices come first.
    scalars: If true and the rule clips per tensor, return one `Scale` for each tensor, not one with a vector of norms.
    """
    if isinstance(rule.threshold, OwnThresholds):
        return rule.threshold.measure(gradients, group, rule, inputs)
    if rule.kind == "global_norm":
        return [measure_one(gradients, group, rule, inputs)]
    if rule.axes is None:
        if rule.p == 2 and len(group) > 1 and not inputs and not scalars:
            path = gradients.per_tensor_path(group)
            if path is not None:
                with path.scope():
                    return [_decided(group, path, path.norm(2), rule)]
        gradients.tensor_norms(rule.p)  # a collective, so ranks without a gradient take part
    norms = [measure_one(gradients, range(index, index + 1), rule, inputs) for index in group]
    return sorted(norms, key=lambda norm: norm.path.on_host)


def measure_one(gradients: GradientList, group: range, rule: ClipRule, inputs: Sequence[Tensor]) -> Scale:
    path = gradients.path(group, inputs)
    with path.scope():
        return _decided(group, path, norm_of(gradients, group, rule, path), rule)


def norm_of(gradients: GradientList, group: range, rule: ClipRule, path: Path) -> Scalar:
    if rule.axes is not None:
        gradients.check_slices()
        return path.slice_norms(rule.axes)
    if rule.given_norm is not None:
        return path.xp.asarray(rule.given_norm)
    if rule.kind == "global_norm":
        gradients.check_total_norm()
        return gradients.norm(path, group, rule.p)
    norms = gradients.tensor_norms(rule.p)
    return path.norm(rule.p) if norms is None else path.xp.asarray(norms[group.start])


def _decided(group: range, path: Path, n: Scalar, rule: ClipRule) -> Scale:
    threshold, state = _threshold(path.xp, n, rule.threshold)
    total = path.as_norm(n) if rule.kind == "global_norm" else None
    if isinstance(threshold, float) and threshold == math.inf:
        coef = None  # also for a norm of NaN
    elif rule.given_norm is not None and not _tensors(threshold, rule.given_norm) and threshold == 0 == rule.given_norm:
        coef = path.xp.asarray(0.0)  # the passed norm is 0, but gradients may differ from 0
    else:
        # A tensor with one element can have any shape and dtype.
        known = threshold if isinstance(threshold, (int, float)) else path.xp.asarray(threshold)
        coef = coefficient(path.xp, n, known, rule.convention)
    return Scale(group, path, n, threshold, coef, total, state)


def _threshold(xp: Scalars, n: Scalar, threshold: Any) -> tuple[Scalar, Any]:
    if isinstance(threshold, StepThreshold):
        return threshold.compute(xp), None
    if not isinstance(threshold, AdaptiveThreshold):
        return threshold, None
    adaptive, state = threshold.advance(xp, n)
    return at_most(xp, adaptive, threshold.limit), state


def at_most(xp: Scalars, adaptive: Scalar, limit: Scalar | StepThreshold) -> Scalar:
    if isinstance(limit, StepThreshold):
        limit = limit.compute(xp)
    if isinstance(limit, float) and limit == math.inf:
        return adaptive
    limit = limit if isinstance(adaptive, float) else xp.asarray(limit)
    return xp.where(limit < adaptive, limit, adaptive)


def coefficient(xp: Scalars, n: Scalar, threshold: Scalar, convention: ClipConvention) -> Scalar:
    """Return min(1, threshold / (n + eps)) in float64, or NaN if the norm is NaN.

    For an array of norms, return an array of coefficients. If all of them are 1, the host path returns the number 1.
    Neither the result nor its derivative divides by zero.
    """
    unchanged, is_known = xp.asarray(1.0), isinstance(threshold, (int, float))
    threshold = xp.asarray(threshold) if is_known else threshold
    denominator = n + xp.asarray(convention.eps)
    is_within = denominator <= threshold
    if xp.is_true(is_within):
        return unchanged
    coef = xp.where(is_within, unchanged, threshold / xp.where(is_within, unchanged, denominator))
    if convention.infinite_norm_gives_nan:
        coef = xp.where(n >= xp.asarray(math.inf), xp.asarray(math.nan), coef)
    # A threshold of inf clips no norm. A known inf never gets here.
    return coef if is_known else xp.where(threshold >= xp.asarray(math.inf), unchanged, coef)


def bounded(gradients: GradientList, group: range, rule: ClipRule, inputs: Sequence[Tensor]) -> Clamp:
    path = gradients.path(group, inputs)
    with path.scope():
        threshold, _ = _threshold(path.xp, math.nan, rule.threshold)
        low, high = (-threshold, threshold) if rule.bounds is None else rule.bounds
        if gradients.shards is not None:
            gradients.shards.check_by_value()
            validation.bounds_of_shards(gradients.backend, _tensors(low, high))
        if threshold is rule.threshold:  # the bounds of a StepThreshold always include 0
            for index in filter(gradients.is_sparse, group):
                validation.sparse_bounds(low, high, gradients.leaves[index])
        if _tensors(low, high) and len(group):
            validation.ordered(path.bounds_inverted(low, high), low, high)
        return Clamp(group, path, low, high)


def _tensors(*scalars: Scalar | None) -> list[Tensor]:
    return [scalar for scalar in scalars if scalar is not None and not isinstance(scalar, (int, float))]


# -- gradient


def apply(
    gradients: GradientList, rule: ClipRule, changes: Sequence[Scale | Clamp], *, keep: Scalar | None = None
) -> None:
    """Clip a group by the result of `measure`. If `keep` is false, set all elements to 0."""
    for change in changes:
        with change.path.scope():
            notify(gradients, rule, change)
            gradients.change(change if keep is None else OrZero(change, keep, change.group, change.path))


def notify(gradients: GradientList, rule: ClipRule, change: Scale | Clamp) -> None:
    if observer.active is None:
        return
    if isinstance(change, Clamp):
        observer.emit("value", gradients, change.group, change.path, (change.low, change.high))
        return
    n, coef, path = change.n, change.coef, change.path
    has_slices = rule.axes is not None or getattr(n, "ndim", 0) > 1  # a vector has a norm for each gradient
    kind: observer.Rule = "global" if rule.kind == "global_norm" else "slices" if has_slices else "each"
    if isinstance(coef, float) and getattr(n, "ndim", 0) > 0:
        coef = path.xp.where(n >= n, coef, coef)  # an array with one coefficient for each norm
    fields = (change.threshold, n, coef, rule.p, rule.convention.eps, rule.given_norm is None)
    observer.emit(kind, gradients, change.group, path, *fields)
