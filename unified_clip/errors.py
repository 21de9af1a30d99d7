"""The exceptions and warnings of unified_clip."""

from __future__ import annotations

from ._coded_error import CodedError

__all__ = [
    "ClipWarning", "ConfigError", "NonFiniteNormError", "NotRepresentableError", "NothingClippedError",
    "PartlyClippedError",
]  # fmt: skip


class ClipWarning(UserWarning):
    """A warning about a call that is allowed but probably a mistake, such as a clip without gradients.

    The message has the remedy.
    """


class NonFiniteNormError(RuntimeError):
    """A norm is NaN or infinite, and the caller asked for an error in this case. No gradient was changed.

    The message names the gradients that are not finite. Catch the error and skip the optimizer's step, or find the
    cause.
    """


class PartlyClippedError(RuntimeError):
    """A framework's operation failed after the first gradient was written.

    Discard the gradients and repeat the backward pass.
    """


class ConfigError(CodedError, ValueError, code="UC104"):
    """A clip configuration is wrong. The message has the file, the line, the key and the remedy.

    `unified-clip help CODE` explains the attribute `code`, such as "UC104".
    """


class NotRepresentableError(ConfigError, code="UC107"):
    """A trainer's own format does not support a setting of the configuration. The message has the setting and the
    remedy.
    """


class NothingClippedError(RuntimeError):
    """The attribute `last` was read before the first clip. Clip first, and read `last` of the object that clipped."""
