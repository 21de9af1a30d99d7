"""Adaptive thresholds: rules that compute the threshold for the total norm from the norms of earlier steps."""

from .number import floor, minimum, sqrt, where
from .protocol import EmaRatio, Percentile, Rule, ZClip

__all__ = ["EmaRatio", "Percentile", "Rule", "ZClip", "floor", "minimum", "sqrt", "where"]
