"""Limits for finding causes and rounding errors in `verify`. The verdict depends on `--max-ulp` instead."""

from __future__ import annotations

RELATIVE_TOLERANCE = 1e-3
"""Two factors are equal up to this relative difference. Two tensors are equal up to this fraction of the largest
element."""

STORAGE_ULPS = 4
"""Rounding of a parameter can change its update by this number of ULP of the parameter."""

RECORDED_NORM_TOLERANCE = 1e-4
"""A recorded norm and a norm computed by `verify` are equal up to this relative difference."""

MISFIT_FACTOR = 10
"""A parameter had other initial weights if its misfit is more than MISFIT_FACTOR times the misfit of any other
parameter. A misfit is the distance of an update from `Bounds`."""
