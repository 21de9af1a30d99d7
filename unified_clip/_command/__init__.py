"""Errors, exit statuses and checks that several commands of `unified-clip` share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .._atomic_write import atomic_write
from .._coded_error import CodedError, UsageError
from .._display import print_error
from .parser import Parser, add_format, describe_exit_statuses, subcommands
from .statuses import BROKEN, DIFFERENT, INCOMPLETE, INTERRUPTED, REJECTED, SUCCESS, UNREAD

__all__ = [
    "BROKEN", "DIFFERENT", "INCOMPLETE", "INTERRUPTED", "REJECTED", "SUCCESS", "UNREAD", "CodedError", "Parser",
    "UsageError", "add_format", "check_writable", "describe_exit_statuses", "interrupted", "reject", "subcommands",
    "unwritable", "write_new",
]  # fmt: skip


def reject(error: CodedError) -> int:
    print_error(str(error), error.code)
    return error.exit_status


def interrupted() -> int:
    print(
        "unified-clip: interrupted. All processes of the command were ended, and no report was written.",
        file=sys.stderr,
    )
    return INTERRUPTED


def check_writable(out: Path, name: str) -> None:
    """Make the directory `out`, and check that the file `name` can be written there."""
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
    return UsageError(f"{out} cannot be written: {error.strerror}. Pass {option}.", "UC205")


def write_new(out: Path, text: str) -> None:
    if os.path.lexists(out):  # also a link to a missing file
        raise UsageError(f"{out} exists. Pass another file to --out.", "UC206")
    try:
        with atomic_write(out) as new:
            new.write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(out, error, "another file to --out") from None
