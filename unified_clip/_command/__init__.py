"""Functions that the commands of `unified-clip` share: for errors, exit statuses and the directory to write to."""

from __future__ import annotations

import sys
from pathlib import Path

from .._coded_error import CodedError, UsageError
from .._display import print_error
from .parser import Parser, add_format, describe_exit_statuses, subcommands
from .statuses import BROKEN, DIFFERENT, INCOMPLETE, INTERRUPTED, REJECTED, SUCCESS, UNREAD

__all__ = [
    "BROKEN", "DIFFERENT", "INCOMPLETE", "INTERRUPTED", "REJECTED", "SUCCESS", "UNREAD", "CodedError", "Parser",
    "UsageError", "add_format", "check_writable", "describe_exit_statuses", "interrupted", "reject", "subcommands",
    "unwritable",
]  # fmt: skip


def reject(error: CodedError) -> int:
    """Print an error with its code, and return the exit status of the command."""
    print_error(str(error), error.code)
    return error.exit_status


def interrupted() -> int:
    """Print that the command was interrupted, and return the exit status for that."""
    print("unified-clip: interrupted. The workers were ended, and no report was written.", file=sys.stderr)
    return INTERRUPTED


def check_writable(out: Path, name: str) -> None:
    """Make a directory. Raise UsageError if the file `name` cannot be written there.

    A file that did not exist is removed again: if the work is interrupted, no empty report is left.
    """
    path = out / name
    try:
        out.mkdir(parents=True, exist_ok=True)
        existed = path.exists()
        path.touch()
        if not existed:
            path.unlink()
    except OSError as error:
        raise unwritable(out, error) from None


def unwritable(out: Path, error: OSError, option: str = "another directory to --out") -> UsageError:
    """Return the error about a directory or file that cannot be written. `option`: what to pass instead."""
    return UsageError(f"{out} cannot be written: {error.strerror}. Pass {option}.", "UC205")
