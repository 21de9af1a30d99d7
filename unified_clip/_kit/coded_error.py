"""The base class of the errors that commands print. `unified-clip help CODE` explains the code of an error."""

from __future__ import annotations


class CodedError(Exception):
    """An error with a code. A subclass sets its default code: `class PortError(CodedError, code="UC401")`."""

    code: str
    exit_status: int = 2

    def __init_subclass__(cls, code: str = "", exit_status: int = 0) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code
        cls.exit_status = exit_status or cls.exit_status

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code


class UsageError(CodedError, code="UC202"):
    """The command line is wrong."""
