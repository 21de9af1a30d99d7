"""Tolerances for comparing numbers, and for finding causes of differences."""

from __future__ import annotations

RELATIVE_TOLERANCE = 1e-3

STORAGE_ULPS = 4
"""Rounding of a stored parameter can change its update by up to this number of ULP of the parameter."""

RECORDED_NORM_TOLERANCE = 1e-4
