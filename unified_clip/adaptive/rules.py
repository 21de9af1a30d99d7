"""Rules that compute a threshold from earlier norms. Each rule is a pure function.

In a rule, write `number - setting > 0` in place of `number > setting`. Otherwise, `torch.compile` fails for a graph
that contains two rules with different settings.
"""

from __future__ import annotations

import math
from typing import Literal

from .number import Real, floor, insert, is_less, minimum, put, simplified, sort_first, sqrt, take, where

State = dict[str, Real]


def ema_ratio(
    state: State, norm: Real, step: Real, *, ratio: float, alpha: float, warmup_steps: int
) -> tuple[Real, State]:
    """The threshold is `ratio` times the moving average of the clipped norms."""
    mean = state["mean"]
    is_warm = (step - warmup_steps >= 0.0) & (mean > 0.0)
    threshold = where(is_warm, mean * ratio, math.inf)
    clipped = minimum(norm, threshold)
    ema = mean * alpha + clipped * (1 - alpha)
    return threshold, {"mean": where(step - warmup_steps >= 0.0, ema, mean + (norm - mean) / (step + 1.0))}


def zclip(
    state: State,
    norm: Real,
    step: Real,
    *,
    alpha: float,
    z_thresh: float,
    warmup_steps: int,
    mode: Literal["zscore", "percentile"],
    clip_option: Literal["adaptive_scaling", "mean"],
    clip_factor: float,
    skip_update_on_spike: bool,
    eps: float,
) -> tuple[Real, State]:
    """Return (the threshold, the new state). The threshold is inf for a norm that is not a spike.

    Source: Kumar et al., "ZClip: Adaptive spike mitigation for LLM pre-training", 2025, arXiv 2504.02507.
    """
    mean, var = state["mean"], state["var"]
    std = sqrt(var)
    spread = std * z_thresh
    if mode == "percentile":
        limit = mean + spread
        is_spike = norm > limit
    else:
        z = (norm - mean) / (std + eps)
        is_spike = z - z_thresh > 0.0
        limit = mean
        if clip_option == "adaptive_scaling":
            limit = (mean + spread / where(is_spike, z / z_thresh, 1.0)) * clip_factor
    is_warm = step - warmup_steps >= 0.0
    is_spike = is_spike & is_warm & (mean > 0.0)
    clipped = where(is_spike, limit, norm)
    ema = mean * alpha + clipped * (1 - alpha)
    distance = clipped - ema
    ema_var = var * alpha + distance * distance * (1 - alpha)
    if skip_update_on_spike:
        ema, ema_var = where(is_spike, mean, ema), where(is_spike, var, ema_var)
    # Welford, "Note on a method for calculating corrected sums of squares and products", 1962
    first = mean + (norm - mean) / (step + 1.0)
    first_var = var + ((norm - mean) * (norm - first) - var) / (step + 1.0)
    new = {"mean": where(is_warm, ema, first), "var": where(is_warm, ema_var, first_var)}
    return where(is_spike, limit, math.inf), new


def adagc(
    state: State,
    norms: Real,
    scale: Real,
    step: Real,
    *,
    eps: float,
    ratio: float,
    alpha: float,
    warmup_steps: int,
    warmup_threshold: float,
    warmup_norms: Literal["clipped", "unclipped"],
) -> tuple[Real, State]:
    """Return (a vector with a threshold for each tensor, the new state).

    If all thresholds are inf, the first item can be the number inf.

    Source: Wang et al., "AdaGC: Improving training stability for large language model pretraining", 2025, arXiv
    2502.11034.
    """
    mean = state["norms"]
    is_warm = step - warmup_steps >= 0.0
    if is_warm is not True:
        first = norms * scale if warmup_norms == "clipped" else norms
        smallest = where(mean > 0.0, where(first > 0.0, minimum(mean, first), mean), first)
        if is_warm is False:
            return math.inf, {"norms": smallest}
    limits = mean * ratio
    is_unclipped = is_less(norms, eps, limits)  # then each average is above 0
    has_begun = is_unclipped or simplified(mean > 0.0)
    limits = math.inf if is_unclipped else where(has_begun, limits, math.inf)
    clipped = norms if is_unclipped else minimum(norms, limits)
    average = where(has_begun, mean * alpha + clipped * (1 - alpha), norms)
    if is_warm is True:
        return limits, {"norms": average}
    return where(is_warm, limits, math.inf), {"norms": where(is_warm, average, smallest)}


def percentile(
    state: State,
    norm: Real,
    step: Real,
    *,
    percent: float,
    window: int | None,
    include_current: bool,
    warmup_steps: int,
) -> tuple[Real, State]:
    """The threshold is a percentile of the last norms, interpolated as in `numpy.percentile`.

    Without a window, the state has all norms in ascending order.

    Source: Seetharaman et al., "AutoClip: Adaptive gradient clipping for source separation networks", 2020.
    """
    old = state["norms"]
    if window is None:
        new = insert(old, norm)
        ordered, count = (new, step + 1.0) if include_current else (old, step)
    else:
        new = put(old, step - floor(step / window) * window, norm, step)
        count = minimum(step + 1.0 if include_current else step, float(window))
        ordered = sort_first(new if include_current else old, count, window)
    first = max(warmup_steps, 0 if include_current else 1)
    last, is_warm = count - 1.0, not first or step - first >= 0.0
    if is_warm is False:
        return math.inf, {"norms": new}
    if is_warm is not True:
        last = where(is_warm, last, 0.0)
    rank = last * (percent / 100)
    low = floor(rank)
    share = rank - low
    below, above = take(ordered, low), take(ordered, minimum(low + 1.0, last))
    gap = above - below
    between = where(share >= 0.5, above - gap * (1.0 - share), below + gap * share)
    return between if is_warm is True else where(is_warm, between, math.inf), {"norms": new}
