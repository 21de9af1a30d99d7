"""What the commands of `unified-clip` share: exit statuses, errors, and the directory that they write to."""

from __future__ import annotations

import sys
from pathlib import Path

from .._display import complain
from .parser import Parser, add_format, describe_exit_statuses, subcommands
from .statuses import BROKEN, DIFFERENT, INCOMPLETE, INTERRUPTED, REFUSED, SUCCESS, UNREAD

__all__ = [
    "BROKEN", "DIFFERENT", "INCOMPLETE", "INTERRUPTED", "REFUSED", "SUCCESS", "UNREAD", "Parser", "add_format",
    "describe_exit_statuses", "interrupted", "refuse", "subcommands", "unwritable", "write_error",
]  # fmt: skip


def refuse(message: str) -> int:
    """Print an error, and return the exit status for an invalid command or file."""
    complain(message)
    return REFUSED


def interrupted() -> int:
    """Print that the command was interrupted, and return the exit status for that."""
    print("unified-clip: interrupted; the workers were ended and no report was written", file=sys.stderr)
    return INTERRUPTED


def unwritable(out: Path, name: str) -> str:
    """Make a directory. Return an error if the file `name` cannot be written there, else ''.

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
        return write_error(out, error)
    return ""


def write_error(out: Path, error: OSError) -> str:
    """Return the message about a directory that cannot be written."""
    return f"{out} cannot be written: {error.strerror}. Pass another directory to --out."
