"""Limits by which `verify` finds causes and rounding of tensors. `--max-ulp` is the tolerance of the verdict."""

from __future__ import annotations

RELATIVE_TOLERANCE = 1e-3
"""Two tensors are treated as equal if their difference is at most this part of the largest element. Two factors are
treated as equal if their relative difference is at most this number."""

STORAGE_ULPS = 4
"""Each training step rounds the parameter. So equal updates can differ by this number of ULP of the parameter."""

RECORDED_NORM_TOLERANCE = 1e-4
"""Two norms count as equal if their relative difference is at most this number. The tolerance is needed because one
norm is recorded, and `verify` computes the other norm."""

MISFIT_FACTOR = 10
"""A misfit is the distance of an update from `Bounds`. A parameter had other initial weights if its misfit is at least
MISFIT_FACTOR times the largest misfit of the other parameters."""
