"""The error of a text that cannot be parsed, and limits on its numbers."""

from __future__ import annotations


class UnreadableError(Exception):
    """The error for a text that cannot be parsed. It has the line, if the parser reports one."""

    def __init__(self, line: int | None, message: str) -> None:
        super().__init__(message)
        self.line = line


NOT_VALID = "this is not {}: {}. Correct it."

MAX_DIGITS = 400
"""Whole numbers with more characters are rejected: no float is that large."""

TOO_LONG = f"a number has {{}} characters. Give one with at most {MAX_DIGITS}, or quote it if it is text."


def too_long(text: str, digits: str) -> UnreadableError:
    """Return the error for a whole number with too many digits. `text`: the file that contains the digits."""
    return UnreadableError(text[: text.index(digits)].count("\n") + 1, TOO_LONG.format(len(digits)))
