"""The errors of `unified-clip verify`."""

from __future__ import annotations

from .._kit.coded_error import CodedError


class VerifyError(CodedError, code="UC601"):
    """A file, function or option is invalid."""


class WorkerError(CodedError, code="UC605", exit_status=3):
    """The process of a training step crashed, or did not end in time."""


class InvalidStepError(Exception):
    """A training step cannot be compared."""
