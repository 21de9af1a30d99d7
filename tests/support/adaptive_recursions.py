"""The adaptive rules, implemented without unified_clip's code.

If the settings are Fractions, the rules for the total norm return exact results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

LARGEST_NORM = 1e150
"""A larger norm is treated as infinite."""

Step = tuple[float, dict[str, Any]]


def ema_ratio(values: Sequence[float], ratio: Any = 2.0, alpha: Any = 0.97, warmup_steps: int = 25) -> Iterator[Step]:
    mean: Any = 0 * ratio
    seen = 0
    for value in values:
        if not value <= LARGEST_NORM:
            yield 0.0, {"steps": seen, "mean": mean}
            continue
        norm, limit = type(ratio)(value), math.inf
        if seen < warmup_steps:
            mean += (norm - mean) / (seen + 1)
        else:
            if mean > 0:
                limit = mean * ratio
            mean = mean * alpha + min(norm, limit) * (1 - alpha)
        seen += 1
        yield limit, {"steps": seen, "mean": mean}


def zclip(
    values: Sequence[float],
    alpha: Any = 0.97,
    z_thresh: Any = 2.5,
    warmup_steps: int = 25,
    mode: str = "zscore",
    clip_option: str = "adaptive_scaling",
    clip_factor: Any = 1.0,
    skip_update_on_spike: bool = False,
    eps: Any = 1e-6,
    root: Callable[[Any], Any] = math.sqrt,
) -> Iterator[Step]:
    """values: The total norm of each step."""
    mean: Any = 0 * alpha
    var: Any = 0 * alpha
    seen = 0
    for value in values:
        if not value <= LARGEST_NORM:
            yield 0.0, {"steps": seen, "mean": mean, "var": var}
            continue
        norm, limit = type(alpha)(value), math.inf
        seen += 1
        if seen <= warmup_steps:
            before = norm - mean
            mean += before / seen
            var += (before * (norm - mean) - var) / seen
            yield limit, {"steps": seen, "mean": mean, "var": var}
            continue
        std = root(var)
        if mean > 0 and mode == "percentile" and norm > mean + std * z_thresh:
            limit = mean + std * z_thresh
        z = (norm - mean) / (std + eps)
        if mean > 0 and mode == "zscore" and z > z_thresh:
            limit = mean
            if clip_option == "adaptive_scaling":
                limit = (mean + std * z_thresh / (z / z_thresh)) * clip_factor
        if limit == math.inf or not skip_update_on_spike:
            kept = norm if limit == math.inf else limit
            mean = mean * alpha + kept * (1 - alpha)
            var = var * alpha + (kept - mean) * (kept - mean) * (1 - alpha)
        yield limit, {"steps": seen, "mean": mean, "var": var}


def percentile(
    values: Sequence[float],
    percent: float = 10.0,
    window: int | None = None,
    include_current: bool = True,
    warmup_steps: int = 0,
) -> Iterator[Step]:
    history: list[float] = []
    for value in values:
        limit = 0.0
        if value <= LARGEST_NORM:
            before = list(history)
            history.append(value)
            kept = (history if include_current else before)[-(window or 10**9) :]
            limit = float(np.percentile(kept, percent)) if kept and len(before) >= warmup_steps else math.inf
        if window is None:
            stored = sorted(history)
        else:
            stored = [0.0] * window
            for index, norm in enumerate(history):
                stored[index % window] = norm
        yield limit, {"steps": len(history), "norms": stored}


RULES: dict[str, Callable[..., Iterator[Step]]] = {"ema_ratio": ema_ratio, "zclip": zclip, "percentile": percentile}

TensorStep = tuple[list[float | None], dict[str, Any]]
"""(coefficient of each tensor, state after the step). The coefficient of a tensor without a gradient is None."""


def adagc(
    norms_of_steps: Sequence[Sequence[float | None]],
    totals: Sequence[float],
    coefficient: Callable[[float, float], float],
    ratio: float = 1.04,
    alpha: float = 0.99,
    warmup_steps: int = 100,
    warmup_threshold: float = 1.0,
    warmup_norms: str = "clipped",
    limit: float = math.inf,
) -> Iterator[TensorStep]:
    means, seen = [0.0] * len(norms_of_steps[0]), 0
    for norms, total in zip(norms_of_steps, totals, strict=True):
        scale = coefficient(total, warmup_threshold)
        coefs: list[float | None] = []
        for index, norm in enumerate(norms):
            if norm is None:
                coefs.append(None)
                continue
            threshold = means[index] * ratio or math.inf if norm <= LARGEST_NORM else 0.0
            coef = scale if seen < warmup_steps else coefficient(norm, threshold)
            coefs.append(min(coef, coefficient(norm, limit)) if coef == coef else coef)
            if not total <= LARGEST_NORM:
                continue
            entry = norm
            if seen < warmup_steps:
                entry = norm * scale if warmup_norms == "clipped" else norm
                means[index] = min(means[index] or entry, entry) or means[index]
            elif means[index]:
                means[index] = means[index] * alpha + min(norm, threshold) * (1 - alpha)
            else:
                means[index] = norm
        seen += total <= LARGEST_NORM
        yield coefs, {"steps": seen, "norms": list(means)}
