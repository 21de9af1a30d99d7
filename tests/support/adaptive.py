"""The norms that all frameworks clip, 200 steps, and the results of the oracle's recursions for them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from support.adaptive_recursions import RULES, Step


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
