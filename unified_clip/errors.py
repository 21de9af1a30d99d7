"""The exceptions and warnings of unified_clip."""

from __future__ import annotations

from ._kit.coded_error import CodedError

__all__ = [
    "ClipWarning", "ConfigError", "NonFiniteNormError", "NotRepresentableError", "NothingClippedError",
    "PartlyClippedError",
]  # fmt: skip


class ClipWarning(UserWarning):
    """A warning about a call that is allowed but probably a mistake, such as a clip without gradients.

    The message explains what to change.
    """


class NonFiniteNormError(RuntimeError):
    """A norm is NaN or infinite, and the caller requested an error. No gradient was changed.

    The message lists the gradients that contain NaN or infinities. To continue the training, catch this error and skip
    the optimizer's step.
    """


class PartlyClippedError(RuntimeError):
    """An operation of the framework failed after some gradients had been clipped.

    Discard the gradients and repeat the backward pass.
    """


class ConfigError(CodedError, ValueError, code="UC104"):
    """A clip configuration is wrong.

    The message names the file, the line, the key and the remedy. The attribute `code` is an error code, such as
    "UC104", which `unified-clip help CODE` explains.
    """


class NotRepresentableError(ConfigError, code="UC107"):
    """A trainer's format does not support a setting of the configuration.

    The message names the setting and the remedy.
    """


class NothingClippedError(RuntimeError):
    """The attribute `last` was read before the first clip."""
