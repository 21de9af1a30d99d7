"""Adaptive rules: their settings, and the formulas of the rules for the total norm.

In a formula, write `number - setting > 0` in place of `number > setting`. Otherwise, `torch.compile` fails for a graph
that contains two rules with different settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

import numpy as np

from .number import Real, floor, insert, minimum, put, ranked, sqrt, where

Data = dict[str, Any]
"""The state of a rule as a dict of numbers and lists of numbers."""


class Rule(Protocol):
    """A rule that computes a threshold for the total norm from earlier norms.

    A rule of your own needs the methods `init` and `threshold`. Both methods are pure: they change nothing, and depend
    only on their arguments. Use only `+`, `-`, `*`, `/`, comparisons, and the functions `where`, `minimum`, `sqrt` and
    `floor` of `unified_clip.adaptive`. The rule then gives the same bits on every framework. Do not use `if`, because a
    number in a compiled graph has no value yet.
    """

    def init(self) -> Data:
        """Return the state before the first norm, as a dict of numbers."""

    def threshold(self, state: Mapping[str, Real], norm: Real, step: Real) -> tuple[Real, Mapping[str, Real]]:
        """Return (the threshold for this norm, the new state). Raise no error.

        Args:
            state: The state of the rule, with the keys that `init` returns.
            norm: The total norm, which is finite.
            step: The number of earlier finite norms.
        """


@dataclass(frozen=True)
class EmaRatio:
    """Limit the norm to `ratio` times a moving average of the clipped norms.

    Args:
        ratio: The threshold divided by the average, at least 1.
        alpha: The weight of the old average, from 0 to 1.
        warmup_steps: The number of norms in the warm-up, at least 1. The rule does not limit these norms. Their mean is
            the first average.

    Raises:
        TypeError: A setting is not a number. `warmup_steps` is not a whole number.
        ValueError: A setting is out of its range.

    Example:
        >>> from unified_clip import ClipConfig, adaptive
        >>> adaptive.EmaRatio(ratio=1.5).init()
        {'mean': 0.0}
        >>> ClipConfig(rule="global_norm", adaptive={"rule": "ema_ratio", "ratio": 1.5}).is_adaptive
        True
    """

    ratio: float = 2.0
    alpha: float = 0.97
    warmup_steps: int = 25

    def __post_init__(self) -> None:
        _check(self, ratio=(1, math.inf), alpha=(0, 1), warmup_steps=(1, math.inf))

    def init(self) -> Data:
        return {"mean": 0.0}

    def threshold(self, state: Any, norm: Real, step: Real) -> tuple[Real, Any]:
        mean = state["mean"]
        has_begun = step - self.warmup_steps >= 0.0
        threshold = where(has_begun & (mean > 0.0), mean * self.ratio, math.inf)
        ema = mean * self.alpha + minimum(norm, threshold) * (1 - self.alpha)
        return threshold, {"mean": where(has_begun, ema, mean + (norm - mean) / (step + 1.0))}


@dataclass(frozen=True)
class ZClip:
    """Clip norms whose z-score, `(norm - mean) / (standard deviation + eps)`, is above `z_thresh`.

    Args:
        alpha: The weight of the old mean and variance in the moving averages, from 0 to 1.
        z_thresh: The threshold for the z-score, above 0.
        warmup_steps: The number of norms in the warm-up, at least 1. The rule does not limit these norms. They give the
            first mean and variance.
        mode: "percentile" clips to `mean + z_thresh * standard deviation`. "zscore" clips to the threshold that
            `clip_option` selects.
        clip_option: The threshold in the mode "zscore". "mean" is the moving average of the norms. "adaptive_scaling"
            is `mean + z_thresh**2 * standard deviation / z`, where z is the z-score of the norm.
        clip_factor: A number above 0 by which the threshold of "adaptive_scaling" is multiplied.
        skip_update_on_spike: If True, a clipped norm does not update the mean and the variance.
        eps: A number above 0 to add to the standard deviation.

    Raises:
        TypeError: A setting is not a number. `warmup_steps` is not a whole number.
        ValueError: A setting is out of its range. A setting does not apply to the selected `mode` or `clip_option`.

    Source: Kumar et al., "ZClip: Adaptive spike mitigation for LLM pre-training", 2025, arXiv 2504.02507.

    Example:
        >>> from unified_clip import ClipConfig, adaptive
        >>> adaptive.ZClip(z_thresh=3.0).init()
        {'mean': 0.0, 'var': 0.0}
        >>> ClipConfig(rule="global_norm", adaptive={"rule": "zclip", "z_thresh": 3.0}).is_adaptive
        True
    """

    alpha: float = 0.97
    z_thresh: float = 2.5
    warmup_steps: int = 25
    mode: Literal["zscore", "percentile"] = "zscore"
    clip_option: Literal["adaptive_scaling", "mean"] = "adaptive_scaling"
    clip_factor: float = 1.0
    skip_update_on_spike: bool = False
    eps: float = 1e-6

    def __post_init__(self) -> None:
        _check(self, alpha=(0, 1), warmup_steps=(1, math.inf), z_thresh=TINY, clip_factor=TINY, eps=TINY)
        _check_choice(self, mode=("zscore", "percentile"), clip_option=("adaptive_scaling", "mean"))
        if self.mode == "percentile" and (self.clip_option, self.clip_factor) != ("adaptive_scaling", 1.0):
            name = "clip_factor" if self.clip_option == "adaptive_scaling" else "clip_option"
            raise ValueError(f"{name} does not apply to mode = 'percentile'. Remove {name}.")
        if self.clip_option == "mean" and self.clip_factor != 1.0:
            raise ValueError("clip_factor does not apply to clip_option = 'mean'. Remove clip_factor.")

    def init(self) -> Data:
        return {"mean": 0.0, "var": 0.0}

    def threshold(self, state: Any, norm: Real, step: Real) -> tuple[Real, Any]:
        # the threshold of a norm that is not a spike is inf
        mean, var, alpha = state["mean"], state["var"], self.alpha
        std = sqrt(var)
        spread = std * self.z_thresh
        if self.mode == "percentile":
            limit = mean + spread
            is_spike = norm > limit
        else:
            z = (norm - mean) / (std + self.eps)
            is_spike = z - self.z_thresh > 0.0
            limit = mean
            if self.clip_option == "adaptive_scaling":
                limit = (mean + spread / where(is_spike, z / self.z_thresh, 1.0)) * self.clip_factor
        is_warm = step - self.warmup_steps >= 0.0
        is_spike = is_spike & is_warm & (mean > 0.0)
        clipped = where(is_spike, limit, norm)
        ema = mean * alpha + clipped * (1 - alpha)
        distance = clipped - ema
        ema_var = var * alpha + distance * distance * (1 - alpha)
        if self.skip_update_on_spike:
            ema, ema_var = where(is_spike, mean, ema), where(is_spike, var, ema_var)
        # Welford, "Note on a method for calculating corrected sums of squares and products", 1962
        first = mean + (norm - mean) / (step + 1.0)
        first_var = var + ((norm - mean) * (norm - first) - var) / (step + 1.0)
        new = {"mean": where(is_warm, ema, first), "var": where(is_warm, ema_var, first_var)}
        return where(is_spike, limit, math.inf), new


@dataclass(frozen=True)
class Percentile:
    """Limit the norm to a percentile of the norms so far, as AutoClip does.

    Args:
        percent: The percentile, from 0 to 100. AutoClip's authors use 10.
        window: The number of last norms from which the percentile is computed. None means all norms of the run, so the
            state grows in each step. None works only with `ClipConfig`, in eager calls on a CPU.
        include_current: Whether these norms include the current norm, as in the authors' code. If False, the first
            step is not clipped.
        warmup_steps: The number of norms at the start that the rule does not limit, at least 0.

    Raises:
        TypeError: A setting is not a number. `window` or `warmup_steps` is not a whole number.
        ValueError: A setting is out of its range.

    Source: Seetharaman et al., "AutoClip: Adaptive gradient clipping for source separation networks", 2020.

    Example:
        >>> from unified_clip import ClipConfig, adaptive
        >>> adaptive.Percentile(window=3).init()
        {'norms': [0.0, 0.0, 0.0]}
        >>> ClipConfig(rule="global_norm", adaptive={"rule": "percentile", "window": 3}).is_adaptive
        True
    """

    percent: float = 10.0
    window: int | None = None
    include_current: bool = True
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        window = {} if self.window is None else {"window": (1, math.inf)}
        _check(self, percent=(0, 100), warmup_steps=(0, math.inf), **window)

    def init(self) -> Data:
        return {"norms": [0.0] * (self.window or 0)}

    def threshold(self, state: Any, norm: Real, step: Real) -> tuple[Real, Any]:
        # interpolate as `numpy.percentile` does. Without a window, the state has all norms in ascending order
        old, window = state["norms"], self.window
        count = step + 1.0 if self.include_current else step
        if window is None:
            new = insert(old, norm)
        else:
            new = put(old, step - floor(step / window) * window, norm)
            count = minimum(count, float(window))
        first = max(self.warmup_steps, 0 if self.include_current else 1)
        last, is_warm = count - 1.0, not first or step - first >= 0.0
        if is_warm is False:
            return math.inf, {"norms": new}
        if is_warm is not True:
            last = where(is_warm, last, 0.0)
        rank = last * (self.percent / 100)
        low = floor(rank)
        share = rank - low
        below, above = ranked(new if self.include_current else old, count, low, minimum(low + 1.0, last))
        gap = above - below
        between = where(share >= 0.5, above - gap * (1.0 - share), below + gap * share)
        return where(is_warm, between, math.inf), {"norms": new}


@dataclass(frozen=True)
class AGC:
    """Limit the norm of each unit (row or channel) to `clip_factor` times the norm of the same unit in the parameter.

    Args:
        clip_factor: A number of at least 0.
        convention: The library that defines the units. A vector is one unit. In "timm" and "composer", a unit is all
            elements with the same index on the first axis. In "optax", it is all elements with the same index on the
            last axis, or with three axes, on the last two axes.
        eps: A lower limit for the norm of a unit in the parameter. None means 0 for "composer", and 1e-3 for "timm" and
            "optax".
        smallest_norm: A clipped unit is multiplied by threshold / max(norm, smallest_norm). None means 0 for
            "composer", and 1e-6 for "timm" and "optax".

    Raises:
        TypeError: A setting is not a number.
        ValueError: A setting is out of its range.

    Example:
        >>> from unified_clip import ClipConfig, adaptive
        >>> adaptive.AGC(clip_factor=0.02).axes((8, 3, 3))
        range(1, 3)
        >>> ClipConfig(rule="norm", adaptive={"rule": "agc", "clip_factor": 0.02}).needs_parameters
        True
    """

    clip_factor: float = 0.01
    convention: Literal["timm", "optax", "composer"] = "timm"
    eps: float | None = None
    smallest_norm: float | None = None

    def __post_init__(self) -> None:
        optional = {name: (0, math.inf) for name in ("eps", "smallest_norm") if getattr(self, name) is not None}
        _check(self, clip_factor=(0, math.inf), **optional)
        _check_choice(self, convention=("timm", "optax", "composer"))

    def axes(self, shape: Sequence[int | None]) -> Sequence[int] | None:
        """Return the axes over which the norm of each unit is computed, or None for all axes.

        Args:
            shape: The shape of a parameter.

        Raises:
            ValueError: The convention is "optax", and the shape has more than 5 axes.
        """
        axes = range(len(shape))
        if self.convention != "optax":
            return axes[1:] if len(shape) > 1 else None
        if sum(length != 1 for length in shape) <= 1:
            return None
        if len(shape) > 5:
            raise ValueError(
                f"the convention 'optax' does not support parameters with {len(shape)} axes. In a configuration, add "
                "the parameter's name to `exclude`. Without a configuration, do not pass the parameter. Or set "
                "convention = 'timm', which has different units"
            )
        return axes[:1] if len(shape) < 4 else axes[:-1]

    @property
    def floors(self) -> tuple[float, float]:
        """(`eps`, `smallest_norm`), with the default of the convention in place of None."""
        eps, smallest = (0.0, 0.0) if self.convention == "composer" else (1e-3, 1e-6)
        return eps if self.eps is None else self.eps, smallest if self.smallest_norm is None else self.smallest_norm


TINY = (5e-324, math.inf)
"""The range of finite numbers above 0."""

RULES: dict[str, type[EmaRatio | ZClip | Percentile | AGC]] = {
    "ema_ratio": EmaRatio,
    "zclip": ZClip,
    "percentile": Percentile,
    "agc": AGC,
}


def _check(rule: Any, **ranges: tuple[float, float]) -> None:
    kinds = {field.name: str(field.type) for field in fields(rule)}
    for name, (low, high) in ranges.items():
        value = getattr(rule, name)
        is_integer = kinds[name].startswith("int")
        numbers = (int, np.integer) if is_integer else (int, float, np.number)
        if isinstance(value, bool) or not isinstance(value, numbers):
            raise TypeError(f"{name} is {value!r}. Pass {'a whole number' if is_integer else 'a number'}.")
        if not isinstance(value, (int, float)):  # a NumPy number
            object.__setattr__(rule, name, int(value) if is_integer else float(value))
        if not low <= value <= high or not math.isfinite(value):
            least = "above 0" if (low, high) == TINY else f"of {low} or more"
            kind = "whole" if is_integer else "finite"
            expected = f"a number from {low} to {high}" if high < math.inf else f"a {kind} number {least}"
            raise ValueError(f"{name} is {value!r}. Give {expected}.")


def _check_choice(rule: Any, **choices: tuple[str, ...]) -> None:
    for name, allowed in choices.items():
        if getattr(rule, name) not in allowed:
            raise ValueError(f"{name} is {getattr(rule, name)!r}. Give {' or '.join(map(repr, allowed))}.")
