"""Compute what a configuration would have done to the total norms of a recorded run."""

from __future__ import annotations

import math
from pathlib import Path

from ..._command import UsageError
from ...suggest import Replay, suggest_threshold
from ...tensors.types import UnreadableError
from ..clip_config import ClipConfig
from ..schedules import threshold_at


def describe(config: ClipConfig, path: Path) -> str:
    """Return a sentence with the share of recorded norms that a configuration clips, and its thresholds.

    path: A file of `unified_clip.record`.

    UsageError: the configuration does not clip by one threshold for the total norm. UnreadableError: the file is no
    recording, or has too few norms.
    """
    unfit = config.rule != "global_norm" or config.uses_names or config.norm_type not in (None, 2.0)
    if unfit or config.has_schedule:
        raise UsageError(
            "--recorded needs a configuration with rule = 'global_norm', and without groups, patterns, norm_type and a "
            "schedule: a recording has total norms only. Remove --recorded."
        )
    try:
        suggestion = suggest_threshold(path)
    except (OSError, ValueError) as error:
        reason = f"{path}: cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise UnreadableError(reason) from None
    norms = suggestion.norms
    limit = math.inf if config.threshold is None else threshold_at(config.threshold, 0)
    thresholds = [math.inf] * len(norms)
    if config.adaptive is not None:
        thresholds = list(suggestion.replay(config.adaptive.make()).thresholds)
    thresholds = [min(threshold, limit) for threshold in thresholds]
    clipped = sum(norm > threshold for norm, threshold in zip(norms, thresholds, strict=True)) / len(norms)
    return f"On the run {path.name}, it {Replay(thresholds, clipped)}."
