"""Adaptive thresholds: rules that compute the threshold for the total norm from the norms of earlier steps.

`ClipConfig(adaptive={"rule": "zclip"})` keeps the state for you. The functions here take and return it, so that
compiled graphs can have them, and accept your own rules.
"""

from .functions import clip_by_global_norm, clip_grad_norm_, initial_state, read_state
from .number import floor, minimum, sqrt, where
from .protocol import EmaRatio, Percentile, Rule, ZClip

__all__ = [
    "EmaRatio", "Percentile", "Rule", "ZClip", "clip_by_global_norm", "clip_grad_norm_", "floor", "initial_state",
    "minimum", "read_state", "sqrt", "where",
]  # fmt: skip
