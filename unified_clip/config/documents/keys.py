"""Paths of keys, values in words, and what the parsers of all kinds of files share."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..._core.types import with_article

Key = str | int

UNKNOWN = "UC106"

NOT_VALID = "this is not {}: {}. Correct it."

MAX_DIGITS = 400
"""Longer whole numbers are rejected, because they exceed every float."""

TOO_LONG = f"a number has {{}} characters. Give at most {MAX_DIGITS} characters. If this is a text, quote the text."


class ParseError(Exception):
    def __init__(self, line: int | None, message: str) -> None:
        super().__init__(message)
        self.line = line


def too_long(text: str, digits: str) -> ParseError:
    return ParseError(text[: text.index(digits)].count("\n") + 1, TOO_LONG.format(len(digits)))


@dataclass(frozen=True)
class Unknown:
    """A value that cannot be read from the file, such as the result of a function call."""

    source: str
    advice: str

    @property
    def problem(self) -> str:
        return f"the value of {self.source:.60} is only known at run time. {self.advice}"

    def __repr__(self) -> str:
        return self.source


class Duplicate(NamedTuple):
    """A table entry whose key occurs again later in the table."""

    keys: tuple[Key, ...]
    line: int
    value: Any


class Parsed(NamedTuple):
    """A parsed text."""

    data: Any
    duplicates: tuple[Duplicate, ...] = ()
    line_of: Callable[[Sequence[Key]], int | None] = lambda keys: None
    """Returns the line of a key, or None if the text has no such key."""


def dotted(keys: Sequence[Key]) -> str:
    """Return a path of keys as text, such as "threshold.start" or "groups 2, threshold". Lists count from 1."""
    text = ""
    for key in keys:
        separator = ", " if text[-1:].isdigit() else "." if text else ""
        text += f"{'' if text else 'entry'} {key + 1}" if isinstance(key, int) else f"{separator}{key}"
    return text


def format_value(value: Any) -> str:
    try:
        return f"{_SHORT.repr(value):.60}"
    except ValueError:  # Python does not print integers with thousands of digits
        return (
            "a huge integer" if isinstance(value, int) else f"{with_article(type(value).__name__)} with a huge integer"
        )


def infinity(kind: str) -> str:
    return {"yaml": ".inf", "json": "Infinity", "python": 'float("inf")'}.get(kind, "inf")


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
