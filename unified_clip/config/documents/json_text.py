"""Parse JSON, and find keys that occur twice."""

from __future__ import annotations

import json
from typing import Any

from . import yaml_text
from .keys import Duplicate
from .parse_error import MAX_DIGITS, NOT_VALID, ParseError, too_long


def parse(text: str) -> tuple[Any, tuple[Duplicate, ...]]:
    repeated: list[str] = []

    def table(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        repeated.extend(name for name in dict.fromkeys(names) if names.count(name) > 1)
        return dict(items)

    def short_int(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise too_long(text, digits)
        return int(digits)

    try:
        data = json.loads(text, object_pairs_hook=table, parse_int=short_int)
    except json.JSONDecodeError as error:
        raise ParseError(error.lineno, NOT_VALID.format("JSON", error.msg)) from None
    return data, _duplicates(text, repeated[0]) if repeated else ()


def _duplicates(text: str, name: str) -> tuple[Duplicate, ...]:
    try:
        return yaml_text.parse(text.replace("\t", " "))[1]
    except (ParseError, RecursionError):
        raise ParseError(
            None, f"the key {name!r} occurs twice. Parsers use the last value. Remove the first key."
        ) from None
