"""Parse TOML, and find the lines of keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import tomlkit
import tomlkit.exceptions
import tomlkit.items

from ..._kit.parse import tomllib
from .keys import NOT_VALID, Key, Parsed, ParseError, too_long


def parse(text: str) -> Parsed:
    """TOML forbids duplicate keys, so the tuple of duplicates is empty."""
    try:
        return Parsed(tomllib.loads(text), (), partial(_line_of, text))
    except tomllib.TOMLDecodeError as error:
        raise _toml_error(error, text) from None
    except ValueError:  # Python converts at most 4300 digits to an int
        raise too_long(text, max(re.findall(r"[0-9_]+", text), key=len)) from None


def _toml_error(error: tomllib.TOMLDecodeError, text: str) -> ParseError:
    problem, _, place = str(error).rpartition(" (at ")
    message = NOT_VALID.format("TOML", problem)
    at = re.match(r"line (\d+)", place)  # without a line, the error is at the end of the document
    try:
        tomlkit.parse(text)
    except (tomlkit.exceptions.TOMLKitError, ValueError, RecursionError) as same:
        if repeated := re.match(r"Key .* already exists", str(same)):
            message = f"{repeated[0]}. Remove one."
    return ParseError(int(at[1]) if at else text.rstrip().count("\n") + 1, message)


def _line_of(text: str, keys: Sequence[Key]) -> int | None:
    """Return the line of a key. To find it, put a mark at the key, and count the lines above the mark."""
    mark = "unified_clip_was_here"
    try:
        document = tomlkit.parse(text)
        table: Any = document
        for key in keys[:-1]:
            table = table[key]
        item = table[keys[-1]]
        is_table = isinstance(item, dict | tomlkit.items.AoT)
        first: Key | None = 0 if isinstance(item, tomlkit.items.AoT) else next(iter(item), None) if is_table else None
        if isinstance(item, tomlkit.items.Table):
            item.comment(mark)
        elif not is_table or isinstance(item, tomlkit.items.InlineTable):
            table[keys[-1]] = mark
        before, match, _ = tomlkit.dumps(document).partition(mark)
    except (LookupError, TypeError, AttributeError, tomlkit.exceptions.TOMLKitError):
        return None
    if not match and first is not None:  # a table without a header has the line of its first key
        return _line_of(text, [*keys, first])
    return before.count("\n") + 1 if match else None
