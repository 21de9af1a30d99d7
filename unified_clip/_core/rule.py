"""The rule: norm -> coefficient -> gradient. The only place where the formula stands.

n    = (sum of |g|**p)**(1/p)         rounded once
coef = min(1, c / (n + eps))          float64
g'   = g * coef, and g itself where coef is 1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import checks, observer
from .gradients import Gradients
from .ops import Path, Scalar, Tensor


@dataclass(frozen=True)
class Family:
    """What distinguishes the families of names: eps, and what becomes of the gradients when n is infinite."""

    eps: float
    infinite_norm_gives_nan: bool

    @property
    def arguments(self) -> dict[str, Any]:
        """For the comparison across ranks."""
        return {"eps": self.eps, "NaN where the norm is infinite": self.infinite_norm_gives_nan}


PYTORCH = Family(eps=1e-6, infinite_norm_gives_nan=False)
PADDLE = Family(eps=0.0, infinite_norm_gives_nan=False)
TENSORFLOW = PADDLE
TENSORFLOW_GLOBAL = Family(eps=0.0, infinite_norm_gives_nan=True)


def coefficient(path: Path, n: Scalar, limit: Scalar, family: Family) -> Scalar:
    """min(1, limit / (n + eps)) in float64; NaN for a NaN norm. Never divides by zero, nor does its derivative."""
    one, is_known = path.constant(1.0), not _tensors(limit)
    limit, reach = path.constant(limit), n + path.constant(family.eps)
    within = reach <= limit
    coef = path.where(within, one, limit / path.where(within, one, reach))
    if family.infinite_norm_gives_nan:
        coef = path.where(n >= path.constant(math.inf), path.constant(math.nan), coef)
    # inf measures only, whatever the norm is; where it is known, nothing is scaled to begin with
    return coef if is_known else path.where(limit >= path.constant(math.inf), one, coef)


def clip_together(
    gradients: Gradients,
    limit: Scalar,
    family: Family,
    *,
    p: float = 2.0,
    given_norm: Scalar | None = None,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Clip all gradients by one norm, which is returned."""
    group = range(len(gradients.values))
    if gradients.shards is not None:
        gradients.agree({**_compared(limit, family), "error_if_nonfinite": error_if_nonfinite})
    path = gradients.path(group, _tensors(limit, given_norm))
    with path.scope():
        n = one_norm(gradients, path, p) if given_norm is None else path.constant(given_norm)
        if error_if_nonfinite:
            checks.finite(path, n, gradients.leaves, p)
        norm = path.as_norm(n)
        if not _tensors(limit, given_norm) and limit == 0 and given_norm == 0:
            coef = path.constant(0.0)  # the gradients need not be 0, but a limit of 0 makes them
        else:
            coef = known_coefficient(path, n, limit, family)
        if observer.active is not None:
            measured = given_norm is None
            observer.emit("global", gradients, group, path, limit, n, coef, p, family.eps, measured)
        apply(gradients, group, path, coef)
        return norm


def _compared(limit: Scalar, family: Family) -> dict[str, Any]:
    """What has to be equal on every rank. A limit that only a device has is not compared."""
    return {"threshold": None if _tensors(limit) else float(limit), **family.arguments}


def one_norm(gradients: Gradients, path: Path, p: float) -> Scalar:
    """Over all gradients."""
    gradients.check_one_norm()
    return path.norm(p)


def clip_each(gradients: Gradients, limit: Scalar, family: Family, axes: Sequence[int] | None = None) -> None:
    """Clip each gradient, or each of its slices, by its own norm.

    All are measured before the first is written, and those that a framework may refuse to write come first.
    """
    if gradients.shards is not None:
        gradients.agree(_compared(limit, family))
    several = axes is None and len(gradients.values) > 1
    each = gradients.each(range(len(gradients.values))) if several else None
    if each is not None:
        with each.scope():
            _apply_each("each", gradients, range(len(gradients.values)), each, each.norm(2), limit, family)
        return
    rule: observer.Rule = "each" if axes is None else "slices"
    shared = gradients.shared_norms(2) if axes is None else None
    measured = []
    for index in range(len(gradients.values)):
        group = range(index, index + 1)
        path = gradients.path(group, _tensors(limit))
        with path.scope():
            if shared is not None:
                n = path.constant(shared[index])
            else:
                n = path.norm(2) if axes is None else path.slice_norms(*gradients.slices(index, axes))
            measured.append((group, path, n))
    for group, path, n in sorted(measured, key=lambda each: each[1].on_host):
        with path.scope():
            _apply_each(rule, gradients, group, path, n, limit, family)


def _apply_each(
    rule: observer.Rule, gradients: Gradients, group: range, path: Path, n: Scalar, limit: Scalar, family: Family
) -> None:
    coef = known_coefficient(path, n, limit, family)
    if observer.active is not None:
        observer.emit(rule, gradients, group, path, limit, n, coef, 2.0, family.eps)
    apply(gradients, group, path, coef)


def known_coefficient(path: Path, n: Scalar, limit: Scalar, family: Family) -> Scalar | None:
    """None where the limit is known to be inf: nothing is scaled, whatever the gradients hold."""
    if isinstance(limit, float) and limit == math.inf:
        return None
    return coefficient(path, n, limit, family)


def apply(gradients: Gradients, group: range, path: Path, coef: Scalar | None) -> None:
    if coef is None:
        gradients.leave(group, path)
    else:
        gradients.scale(group, path, coef)


def _tensors(*scalars: Scalar | None) -> list[Tensor]:
    """Those that are known to a device or a graph only, and so decide the path too."""
    return [scalar for scalar in scalars if scalar is not None and not isinstance(scalar, int | float)]


def measure(gradients: Gradients, p: float, error_if_nonfinite: bool = False) -> Tensor:
    """The p-norm over all gradients."""
    if gradients.shards is not None:
        gradients.agree({"error_if_nonfinite": error_if_nonfinite})
    path = gradients.path(range(len(gradients.values)))
    with path.scope():
        n = one_norm(gradients, path, p)
        if error_if_nonfinite:
            checks.finite(path, n, gradients.leaves, p)
        return path.as_norm(n)


def clip_by_value(gradients: Gradients, low: Any, high: Any) -> None:
    """Move every element beyond a bound onto that bound. Bounds: numbers, or tensors that broadcast."""
    group = range(len(gradients.values))
    if gradients.shards is not None:
        gradients.shards.check_by_value()
        checks.bounds_of_shards(gradients.ops, _tensors(low, high))
    for index in filter(gradients.is_sparse, group):
        checks.sparse_bounds(low, high, gradients.leaves[index])
    path = gradients.path(group, _tensors(low, high))
    with path.scope():
        if _tensors(low, high) and gradients.values:
            checks.ordered(path.crossed(low, high), low, high)
        if observer.active is not None:
            observer.emit("value", gradients, group, path, (low, high))
        if not _tensors(low, high) and (low, high) == (-math.inf, math.inf):
            gradients.leave(group, path)
            return
        gradients.clamp(group, path, low, high)
