"""The base class of errors that a command prints. Each error has a code, which `unified-clip help CODE` explains."""

from __future__ import annotations


class CodedError(Exception):
    """An error with a code. `_command/errors.toml` has the explanation of each code.

    A subclass declares the code of its errors: `class PortError(CodedError, code="UC401")`. `PortError(message,
    "UC402")` makes an error with another code.
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
    """A command line is wrong: for example, an option is unknown, or two options exclude each other."""
