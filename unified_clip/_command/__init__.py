"""Errors, exit statuses and checks that several commands of `unified-clip` share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .._kit import atomic_files
from .._kit.coded_error import CodedError, UsageError
from .._kit.display import print_error
from .parser import Parser, add_format, describe_exit_statuses, subcommands
from .statuses import BROKEN, DIFFERENT, INCOMPLETE, INTERRUPTED, REJECTED, SUCCESS, UNREAD

__all__ = [
    "BROKEN", "DIFFERENT", "INCOMPLETE", "INTERRUPTED", "REJECTED", "SUCCESS", "UNREAD", "CodedError", "Parser",
    "UsageError", "add_format", "describe_exit_statuses", "interrupted", "reject", "subcommands",
    "write_new",
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


def write_new(out: Path, text: str) -> None:
    if os.path.lexists(out):  # also a link to a missing file
        raise UsageError(f"{out} exists. Pass another file to --out.", "UC206")
    atomic_files.write(out, text)
