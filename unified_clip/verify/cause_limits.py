"""Limits for finding causes and rounding errors in `verify`. The verdict depends on `--max-ulp` instead."""

from __future__ import annotations

RELATIVE_TOLERANCE = 1e-3
"""Two factors count as equal if their relative difference is at most this number. Two tensors count as equal if they
differ by at most this part of the largest element."""

STORAGE_ULPS = 4
"""Each training step rounds the parameter. So equal updates can differ by this number of ULP of the parameter."""

RECORDED_NORM_TOLERANCE = 1e-4
"""A recorded norm and a norm computed by `verify` count as equal if their relative difference is at most this
number."""

MISFIT_FACTOR = 10
"""A parameter had other initial weights if its misfit is at least this number of times the misfit of any other
parameter. A misfit is the distance of an update from `Bounds`."""
