"""Parse JSON, and find keys that occur twice, and the lines of keys."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

from . import yaml_text
from .keys import MAX_DIGITS, NOT_VALID, Duplicate, Key, Parsed, ParseError, too_long


def parse(text: str) -> Parsed:
    repeated: list[str] = []

    def table(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) < len(items):
            repeated.extend(name for name, number in Counter(name for name, _ in items).items() if number > 1)
        return result

    def short_int(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise too_long(text, digits)
        return int(digits)

    try:
        data = json.loads(text, object_pairs_hook=table, parse_int=short_int)
    except json.JSONDecodeError as error:
        raise ParseError(error.lineno, NOT_VALID.format("JSON", error.msg)) from None
    return Parsed(data, _duplicates(text, repeated[0]) if repeated else (), partial(_line_of, text))


@lru_cache(maxsize=8)
def _as_yaml(text: str) -> Parsed:
    return yaml_text.parse(text.replace("\t", " "))


def _line_of(text: str, keys: Sequence[Key]) -> int | None:
    try:
        return _as_yaml(text).line_of(keys)
    except (ParseError, RecursionError):
        return None


def _duplicates(text: str, name: str) -> tuple[Duplicate, ...]:
    try:
        return _as_yaml(text).duplicates
    except (ParseError, RecursionError):
        raise ParseError(
            None, f"the key {name!r} occurs twice. Parsers use the last value. Remove the first key."
        ) from None
