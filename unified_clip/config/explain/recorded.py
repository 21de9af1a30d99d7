"""The effect that a configuration would have on a recorded run."""

from __future__ import annotations

import math
from pathlib import Path

from ..._command import UsageError
from ...suggest import Replay, suggest_threshold
from ...tensors.types import UnreadableError
from ..clip_config import ClipConfig
from ..schedules import threshold_at


def describe(config: ClipConfig, source: Path, path: Path) -> str:
    """Return a sentence about the share of recorded gradients that a configuration would clip."""
    if unfit := _unfit(config):
        raise UsageError(
            f"{source} has {unfit}, which --recorded does not support. Remove --recorded, or pass another "
            "configuration."
        )
    try:
        suggestion = suggest_threshold(path)
    except (OSError, ValueError) as error:
        raise UnreadableError(str(error)) from None
    norms = suggestion.norms
    limit = math.inf if config.threshold is None else threshold_at(config.threshold, 0)
    thresholds = [math.inf] * len(norms)
    if config.adaptive is not None:
        thresholds = list(suggestion.replay(config.adaptive.make()).thresholds)
    thresholds = [min(threshold, limit) for threshold in thresholds]
    clipped = sum(norm > threshold for norm, threshold in zip(norms, thresholds, strict=True)) / len(norms)
    return f"With the norms recorded in {path.name}, this configuration {Replay(thresholds, clipped)}."


def _unfit(config: ClipConfig) -> str:
    if config.rule != "global_norm":
        return f"rule = {config.rule!r}"
    if config.uses_names:
        return "groups" if config.groups else "exclude" if config.exclude else "include"
    if config.norm_type not in (None, 2.0):
        return f"norm_type = {config.norm_type:g}"
    return "a threshold with a schedule" if config.has_schedule else ""
