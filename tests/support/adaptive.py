"""The adaptive rules, implemented without unified_clip's code, and the norms of 200 steps that all frameworks clip.

If the settings are Fractions, the rules for the total norm return exact results.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from support import reference

from unified_clip.parity.judge import oracle

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


# -- steps


def norms(seed: int) -> list[float]:
    """Return 200 norms that float32 represents: with spikes, NaN, infinities and zeros, within and after warm-up."""
    chance, norms = random.Random(seed), []
    for step in range(200):
        norm = chance.uniform(0.5, 2.0) * (1 + 2.0 ** -(step / 40))
        if step in (7, 40, 41, 90, 150, 151, 152):
            norm *= chance.choice([5, 40, 1e4, 1e30])
        if step in (3, 60, 120):
            norm = math.nan
        if step in (11, 61, 160):
            norm = math.inf
        if step in (0, 5, 6, 70, 71, 199):
            norm = 0.0
        norms.append(float(np.float32(norm)))
    return norms


NORMS = norms(0)

SETTINGS: list[dict[str, Any]] = [
    {"rule": "ema_ratio"},
    {"rule": "ema_ratio", "ratio": 1.1, "alpha": 0.5, "warmup_steps": 1},
    {"rule": "zclip"},
    {"rule": "zclip", "mode": "percentile", "z_thresh": 1.5, "alpha": 0.9},
    {"rule": "zclip", "clip_option": "mean", "skip_update_on_spike": True, "warmup_steps": 3},
    {"rule": "zclip", "clip_factor": 0.7, "eps": 1e-3, "warmup_steps": 10},
    {"rule": "percentile", "window": 7, "percent": 90.0},
    {"rule": "percentile", "window": 300, "percent": 33.3, "include_current": False},
    {"rule": "percentile"},
    {"rule": "percentile", "percent": 90, "include_current": False},
    {"rule": "percentile", "window": 30, "percent": 95, "include_current": False, "warmup_steps": 30},
    {"rule": "percentile", "percent": 50, "warmup_steps": 3},
]
GROWING = [settings for settings in SETTINGS if settings["rule"] == "percentile" and "window" not in settings]
"""The rules whose state grows, so that no compiled graph can have it."""


def steps(settings: dict[str, Any], values: Sequence[float] = tuple(NORMS)) -> list[Step]:
    options = {key: value for key, value in settings.items() if key != "rule"}
    return list(RULES[settings["rule"]](values, **options))


def title(settings: dict[str, Any]) -> str:
    return " ".join(f"{value}" if key == "rule" else f"{key}={value}" for key, value in settings.items())


def exact_root(number: Fraction) -> Fraction:
    scale = 10**120
    return Fraction(math.isqrt(number.numerator * scale * scale // number.denominator), scale)
