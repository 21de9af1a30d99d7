"""Errors for texts that cannot be parsed."""

from __future__ import annotations


class ParseError(Exception):
    def __init__(self, line: int | None, message: str) -> None:
        super().__init__(message)
        self.line = line


NOT_VALID = "this is not {}: {}. Correct it."

MAX_DIGITS = 400
"""Longer whole numbers are rejected, because they exceed every float."""

TOO_LONG = f"a number has {{}} characters. Give at most {MAX_DIGITS} characters. If this is a text, quote the text."


def too_long(text: str, digits: str) -> ParseError:
    return ParseError(text[: text.index(digits)].count("\n") + 1, TOO_LONG.format(len(digits)))
