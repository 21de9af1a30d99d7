"""Limits that `verify` uses to find causes and rounding errors. The verdict does not depend on these limits, but on
`--max-ulp`.
"""

from __future__ import annotations

RELATIVE_TOLERANCE = 1e-3
"""Two factors are treated as equal if their relative difference is at most this limit. Two tensors are treated as
equal if they differ by at most this fraction of the largest element."""

STORAGE_ULPS = 4
"""Rounding of a parameter can change its update by up to this number of ULP of the parameter."""

RECORDED_NORM_TOLERANCE = 1e-4
"""A recorded norm and a norm that `verify` computes are treated as equal if their relative difference is at most
this limit."""

MISFIT_FACTOR = 10
"""A misfit is the distance of an update from `Bounds`. If the misfit of one parameter is more than MISFIT_FACTOR
times the misfits of all other parameters, the initial weights of this parameter differed."""
