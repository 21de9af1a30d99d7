"""Every exception and warning that unified_clip defines."""

from __future__ import annotations

__all__ = ["ClipWarning", "NonFiniteNormError"]


class ClipWarning(UserWarning):
    """A call that is allowed, but clips nothing and probably was not meant that way."""


class NonFiniteNormError(RuntimeError):
    """The total norm is NaN or infinite and ``error_if_nonfinite`` was set; no gradient was changed."""
