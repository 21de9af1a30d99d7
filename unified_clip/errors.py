"""Every exception and warning that unified_clip defines."""

from __future__ import annotations

__all__ = [
    "ClipWarning", "ConfigError", "NonFiniteNormError", "NotRepresentableError", "NothingClippedError",
    "PartlyClippedError",
]  # fmt: skip


class ClipWarning(UserWarning):
    """A call that is allowed, but clips nothing and probably was not meant that way."""


class NonFiniteNormError(RuntimeError):
    """A norm is NaN or infinite, and an error was asked for in that case; no gradient was changed."""


class PartlyClippedError(RuntimeError):
    """A framework's operation failed after the first gradient was written. Discard the gradients."""


class ConfigError(ValueError):
    """A clip configuration is wrong: in which file and line, which key, and what to do."""


class NotRepresentableError(ConfigError):
    """A configuration that a trainer's own format cannot say; the reason is in the message."""


class NothingClippedError(RuntimeError):
    """What happened at the last clip was asked for before there was one."""
