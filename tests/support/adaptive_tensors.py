"""Adaptive thresholds of tensors and units, written with plain numbers. Nothing here uses unified_clip."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from support import adaptive, reference

TENSORS = 3
SEQUENCES = [adaptive.norms(seed) for seed in range(TENSORS)]

NORMS: list[list[float | None]] = [
    [None if (tensor, step % 16) == (1, 9) else norms[step] for tensor, norms in enumerate(SEQUENCES)]
    for step in range(200)
]
"""The norm of each tensor in 200 steps, with spikes, NaN, infinities and zeros; of the second one not in all steps."""

Step = tuple[list[float | None], dict[str, Any]]
"""The coefficient of each tensor in a step, and the state after it."""


def adagc(
    steps: Sequence[Sequence[float | None]],
    ratio: float = 1.04,
    alpha: float = 0.99,
    warmup_steps: int = 100,
    warmup_threshold: float = 1.0,
    warmup_norms: str = "clipped",
    eps: float = 1e-6,
    limit: float = math.inf,
) -> Iterator[Step]:
    means, seen = [0.0] * len(steps[0]), 0
    for norms in steps:
        total = reference.norm([np.array([norm for norm in norms if norm is not None], np.float32)])
        scale = reference.coefficient(total, warmup_threshold, eps)
        coefs: list[float | None] = []
        for index, norm in enumerate(norms):
            if norm is None:
                coefs.append(None)
                continue
            threshold = 0.0 if not math.isfinite(norm) else means[index] * ratio or math.inf
            coef = scale if seen < warmup_steps else coefficient(norm, threshold, eps)
            coefs.append(min(coef, coefficient(norm, limit, eps)) if coef == coef else coef)
            if not math.isfinite(total):
                continue
            entry = norm
            if seen < warmup_steps:
                entry = norm * scale if warmup_norms == "clipped" else norm
                means[index] = min(means[index] or entry, entry) or means[index]
            elif means[index]:
                means[index] = means[index] * alpha + min(norm, threshold) * (1 - alpha)
            else:
                means[index] = norm
        seen += math.isfinite(total)
        yield coefs, {"steps": seen, "norms": list(means)}


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


def units(shape: tuple[int, ...], convention: str) -> Iterator[tuple[Any, ...]]:
    """The index of each unit of an array."""
    if convention == "optax":
        whole = sum(length > 1 for length in shape) <= 1
        kept = [] if whole else [1, 2][: len(shape) - 1] if len(shape) < 4 else [len(shape) - 1]
    else:
        kept = [0] if len(shape) > 1 else []
    for position in np.ndindex(*(shape[axis] for axis in kept)):
        index: list[Any] = [slice(None)] * len(shape)
        for axis, place in zip(kept, position, strict=True):
            index[axis] = place
        yield tuple(index)


def agc(
    gradient: np.ndarray,
    parameter: np.ndarray,
    convention: str = "timm",
    clip_factor: float = 0.01,
    eps: float | None = None,
    smallest_norm: float | None = None,
    limit: float = math.inf,
) -> np.ndarray:
    eps = (0.0 if convention == "composer" else 1e-3) if eps is None else eps
    smallest_norm = (0.0 if convention == "composer" else 1e-6) if smallest_norm is None else smallest_norm
    result = gradient.copy()
    for unit in units(gradient.shape, convention):
        norm, weight = (reference.norm([np.atleast_1d(array[unit])]) for array in (gradient, parameter))
        threshold = min(clip_factor * (weight if math.isnan(weight) else max(weight, eps)), limit)
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
