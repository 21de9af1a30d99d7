"""The error of a text that cannot be parsed, and limits on its numbers."""

from __future__ import annotations


class UnreadableError(Exception):
    """The error for a text that cannot be parsed. It has the line, if the parser reports one."""

    def __init__(self, line: int | None, message: str) -> None:
        super().__init__(message)
        self.line = line


NOT_VALID = "this is not {}: {}. Correct it."

MAX_DIGITS = 400
"""Whole numbers with more digits are rejected: no float is that large."""


def too_long(text: str, digits: str) -> UnreadableError:
    line = text[: text.index(digits)].count("\n") + 1
    return UnreadableError(line, f"a number has {len(digits)} digits. Give a shorter one.")
