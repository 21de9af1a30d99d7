"""Errors for texts that cannot be parsed."""

from __future__ import annotations


class ParseError(Exception):
    """The error for a text that cannot be parsed. `line` is None if the parser reports no line."""

    def __init__(self, line: int | None, message: str) -> None:
        super().__init__(message)
        self.line = line


NOT_VALID = "this is not {}: {}. Correct it."

MAX_DIGITS = 400
"""The maximum number of characters in a whole number. A longer number is rejected, because no float is so large."""

TOO_LONG = f"a number has {{}} characters. Give at most {MAX_DIGITS} characters. If this is a text, quote the text."


def too_long(text: str, digits: str) -> ParseError:
    return ParseError(text[: text.index(digits)].count("\n") + 1, TOO_LONG.format(len(digits)))
