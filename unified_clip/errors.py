"""The exceptions and warnings of unified_clip."""

from __future__ import annotations

from ._coded_error import CodedError

__all__ = [
    "ClipWarning", "ConfigError", "NonFiniteNormError", "NotRepresentableError", "NothingClippedError",
    "PartlyClippedError",
]  # fmt: skip


class ClipWarning(UserWarning):
    """A warning about a call that is allowed but probably a mistake, such as a clip without gradients.

    The message explains what to change.
    """


class NonFiniteNormError(RuntimeError):
    """A norm is NaN or infinite, and the caller asked for an error in this case. No gradient was changed.

    The message lists the gradients that contain NaN or infinities. To continue the training, catch this error and skip
    the optimizer's step.
    """


class PartlyClippedError(RuntimeError):
    """An operation of the framework failed after some gradients had been clipped.

    Discard the gradients and repeat the backward pass.
    """


class ConfigError(CodedError, ValueError, code="UC104"):
    """A clip configuration is wrong.

    The message contains the file, the line, the key and the remedy. For an explanation of the attribute `code`, such as
    "UC104", run `unified-clip help CODE`.
    """


class NotRepresentableError(ConfigError, code="UC107"):
    """A trainer's own format does not support a setting of the configuration.

    The message contains the setting and the remedy.
    """


class NothingClippedError(RuntimeError):
    """The attribute `last` was read before the first clip. Clip first, and then read `last`."""
