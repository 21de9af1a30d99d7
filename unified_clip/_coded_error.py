"""The base class of errors that a command prints. Each has a code, which `unified-clip help CODE` explains."""

from __future__ import annotations


class CodedError(Exception):
    """An error with a code, which stands for a kind of problem. `_command/errors.toml` explains each code.

    A subclass declares the code of its errors: `class PortError(CodedError, code="UC401")`. An error of another kind
    gets its code when it is raised: `PortError(message, "UC402")`.
    """

    code: str
    exit_status: int = 2
    """The exit status of a command that ends with this error."""

    def __init_subclass__(cls, code: str = "", exit_status: int = 0) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code
        cls.exit_status = exit_status or cls.exit_status

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code


class UsageError(CodedError, code="UC202"):
    """Options of a command do not go together, or the command line has another error."""
