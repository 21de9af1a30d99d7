"""Limits by which `verify` finds causes and rounding errors. The tolerance of the verdict is `--max-ulp` instead."""

from __future__ import annotations

RELATIVE_TOLERANCE = 1e-3
"""Two factors count as equal if their relative difference is at most this number. Two tensors count as equal if they
differ by at most this part of the largest element."""

STORAGE_ULPS = 4
"""Each training step rounds the parameter. So equal updates can differ by this number of ULP of the parameter."""

RECORDED_NORM_TOLERANCE = 1e-4
"""Two norms count as equal if their relative difference is at most this number. The tolerance is needed because one
norm is recorded, and `verify` computes the other norm."""

MISFIT_FACTOR = 10
"""A misfit is the distance of an update from `Bounds`. A parameter had other initial weights if its misfit is at least
MISFIT_FACTOR times the largest misfit of the other parameters."""
