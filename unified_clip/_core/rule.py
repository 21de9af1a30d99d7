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

from . import checks
from .gradients import Gradients
from .ops import Path, Scalar, Tensor


@dataclass(frozen=True)
class Family:
    """What distinguishes the families of names: eps, and what becomes of the gradients when n is infinite."""

    eps: float
    infinite_norm_gives_nan: bool


PYTORCH = Family(eps=1e-6, infinite_norm_gives_nan=False)
PADDLE = Family(eps=0.0, infinite_norm_gives_nan=False)
TENSORFLOW = PADDLE
TENSORFLOW_GLOBAL = Family(eps=0.0, infinite_norm_gives_nan=True)


def coefficient(path: Path, n: Scalar, limit: Scalar, family: Family) -> Scalar:
    """min(1, limit / (n + eps)) in float64; NaN for a NaN norm. Never divides by zero, nor does its derivative."""
    one = path.constant(1.0)
    limit, reach = path.constant(limit), n + path.constant(family.eps)
    within = reach <= limit
    coef = path.where(within, one, limit / path.where(within, one, reach))
    if family.infinite_norm_gives_nan:
        coef = path.where(n >= path.constant(math.inf), path.constant(math.nan), coef)
    return coef


def clip(
    gradients: Gradients,
    groups: Sequence[Sequence[int]],
    limit: Scalar,
    family: Family,
    *,
    p: float = 2.0,
    given_norm: Scalar | None = None,
    error_if_nonfinite: bool = False,
    axes: Sequence[int] | None = None,
) -> list[Tensor | None]:
    """Clip each group by its own norm, which is returned; everything is measured and checked before the first write."""
    scalars = [scalar for scalar in (limit, given_norm) if scalar is not None and not isinstance(scalar, float)]
    measure_only = isinstance(limit, float) and limit == math.inf
    measured = []
    for group in groups:
        path = gradients.path(group, scalars)
        with path.scope():
            if given_norm is not None:
                n = path.constant(given_norm)
            else:
                n = path.norm(p) if axes is None else path.slice_norms(axes)
            if error_if_nonfinite:
                checks.finite(path, n, [gradients.leaves[index] for index in group], p)
            coef = None if measure_only else coefficient(path, n, limit, family)
            measured.append((group, path, coef, path.as_norm(n) if axes is None else None))
    for group, path, coef, _ in measured:
        with path.scope():
            if coef is None:
                gradients.leave(group, path)
            else:
                gradients.scale(group, path, coef)
    return [n for *_, n in measured]


def each(gradients: Gradients) -> list[range]:
    """Groups of one gradient each."""
    return [range(index, index + 1) for index in range(len(gradients.values))]


def together(gradients: Gradients) -> list[range]:
    """One group of all gradients."""
    return [range(len(gradients.values))]


def measure(gradients: Gradients, p: float, error_if_nonfinite: bool = False) -> Tensor:
    """The p-norm over all gradients."""
    path = gradients.path(range(len(gradients.values)))
    with path.scope():
        n = path.norm(p)
        if error_if_nonfinite:
            checks.finite(path, n, gradients.leaves, p)
        return path.as_norm(n)


def clip_by_value(gradients: Gradients, low: Any, high: Any) -> None:
    """Move every element beyond a bound onto that bound. Bounds: numbers, or tensors that broadcast."""
    tensors = [bound for bound in (low, high) if not isinstance(bound, int | float)]
    group = range(len(gradients.values))
    path = gradients.path(group, tensors)
    with path.scope():
        if tensors:
            checks.ordered(path.crossed(low, high), low, high)
        elif (low, high) == (-math.inf, math.inf):
            gradients.leave(group, path)
            return
        gradients.clamp(group, path, low, high)
