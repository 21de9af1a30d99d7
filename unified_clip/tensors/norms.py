"""Compute the exact norm of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from . import types
from .arithmetic import nearest, power_sum, root
from .types import Dense


def norm_dtype(gradients: Sequence[Dense]) -> str:
    return "float64" if any(gradient.dtype in ("float64", "complex128") for gradient in gradients) else "float32"


def exact_norm(gradients: Sequence[Dense], p: float, dtype: str) -> float:
    """Return the exact p-norm over all elements, rounded once to `dtype`."""
    parts = [_part(gradient, p) for gradient in gradients]
    beyond = [part for part in parts if isinstance(part, float)]
    if beyond:
        return math.nan if any(map(math.isnan, beyond)) else math.inf
    finite = [part for part in parts if isinstance(part, Fraction)]
    if p == math.inf:
        return nearest(max(finite, default=Fraction(0)), dtype)
    return root(sum(finite, Fraction(0)), p, dtype)


def clear_caches() -> None:
    _part.cache_clear()
    types.clear_cache()


@lru_cache(maxsize=1024)  # a suite makes many calls on the same tensors
def _part(gradient: Dense, p: float) -> Fraction | float:
    values = gradient.values()
    if not np.isfinite(values).all():
        return math.nan if np.isnan(values).any() else math.inf
    if p == math.inf:
        return Fraction(float(np.abs(values).max(initial=0.0)))
    return power_sum(values, p)
