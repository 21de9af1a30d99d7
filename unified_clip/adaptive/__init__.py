"""Adaptive thresholds: rules that compute thresholds from the norms of earlier steps, or from the parameters.

`ClipConfig(adaptive={"rule": "zclip"})` keeps the state for you. The functions of this module get the state as an
argument and return the new state, so they also work in compiled graphs. They also accept your own rules.
"""

from .functions import (
    clip_by_global_norm,
    clip_by_unit_norm,
    clip_grad_norm_,
    initial_state,
    read_state,
)
from .number import floor, minimum, sqrt, where
from .rules import AGC, EmaRatio, Percentile, Rule, ZClip

__all__ = [
    "AGC", "EmaRatio", "Percentile", "Rule", "ZClip", "clip_by_global_norm", "clip_by_unit_norm", "clip_grad_norm_",
    "floor", "initial_state", "minimum", "read_state", "sqrt", "where",
]  # fmt: skip
