"""Limits for causes and rounding errors. The verdict depends only on `--max-ulp`."""

from __future__ import annotations

RELATIVE_TOLERANCE = 1e-3
"""Equal factors differ by at most this fraction, and equal tensors by this fraction of the largest element."""

STORAGE_ULPS = 4
"""Rounding of a parameter can change its update by up to this number of ULP of the parameter."""

RECORDED_NORM_TOLERANCE = 1e-4
"""The largest relative difference between a recorded norm and the norm of the same tensor."""

MISFIT_FACTOR = 10
"""Initial weights differed if their update is this many times farther from `Bounds` than all other updates."""
