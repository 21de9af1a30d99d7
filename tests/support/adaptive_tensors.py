"""Adaptive thresholds of tensors and units: the norms of 200 steps, and the results of the oracle's recursions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from support import adaptive, adaptive_recursions, reference

from unified_clip.parity.judge import oracle

TENSORS = 3
SEQUENCES = [adaptive.norms(seed) for seed in range(TENSORS)]

NORMS: list[list[float | None]] = [
    [None if (tensor, step % 16) == (1, 9) else norms[step] for tensor, norms in enumerate(SEQUENCES)]
    for step in range(200)
]
"""The norms of three tensors in 200 steps, with spikes, NaN, infinities and zeros. In some steps, the second tensor has
no gradient."""


def adagc(
    steps: Sequence[Sequence[float | None]], *, eps: float = 1e-6, **settings: Any
) -> Iterator[adaptive_recursions.TensorStep]:
    totals = [reference.norm([np.array([n for n in norms if n is not None], np.float32)]) for norms in steps]
    return adaptive_recursions.adagc(
        steps, totals, lambda norm, threshold: coefficient(norm, threshold, eps), **settings
    )


def coefficient(norm: float, threshold: float, eps: float) -> float:
    return 1.0 if threshold == math.inf else reference.coefficient(norm, threshold, eps)


SETTINGS: list[dict[str, Any]] = [
    {"warmup_steps": 25},
    {"warmup_steps": 4, "ratio": 1.5, "alpha": 0.5, "warmup_norms": "unclipped", "warmup_threshold": 2.0},
]


def gradients(norms: Sequence[float | None]) -> list[np.ndarray | None]:
    """Gradients of which any path computes exactly these norms."""
    return [None if norm is None else np.array([0.0, -norm, 0.0], np.float32) for norm in norms]


def scaled(norms: Sequence[float | None], coefs: Sequence[float | None]) -> list[np.ndarray | None]:
    pairs = zip(gradients(norms), coefs, strict=True)
    with np.errstate(invalid="ignore"):
        return [grad if grad is None or coef == 1 else reference.scaled(grad, coef) for grad, coef in pairs]


# -- units


def agc(
    gradient: np.ndarray, parameter: np.ndarray, convention: str = "timm", limit: float = math.inf, **settings: Any
) -> np.ndarray:
    result = gradient.copy()
    for unit in oracle.units(gradient.shape, convention):
        norm, weight = (reference.norm([np.atleast_1d(array[unit])]) for array in (gradient, parameter))
        threshold, smallest_norm = oracle.unit_threshold(weight, convention, **settings)
        threshold = min(threshold, limit)
        if norm < threshold:
            continue
        divisor = norm if math.isnan(norm) else max(norm, smallest_norm)
        coef = reference.coefficient(divisor, threshold)
        with np.errstate(invalid="ignore"):
            result[unit] = (
                gradient[unit]
                if coef == 1
                else reference.scaled(np.atleast_1d(gradient[unit]), coef).reshape(gradient[unit].shape)
            )
    return result
