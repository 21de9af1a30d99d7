"""Parse JSON."""

from __future__ import annotations

import json
from typing import Any

from . import yaml_text
from .unreadable import MAX_DIGITS, NOT_VALID, UnreadableError, too_long


def parse(text: str) -> Any:
    def unique_table(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        if len(set(names)) < len(names):
            name = next(name for name in names if names.count(name) > 1)
            raise UnreadableError(_duplicate_line(text), f"the key {name!r} occurs twice. Remove one.")
        return dict(items)

    def short_int(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise too_long(text, digits)
        return int(digits)

    try:
        return json.loads(text, object_pairs_hook=unique_table, parse_int=short_int)
    except json.JSONDecodeError as error:
        raise UnreadableError(error.lineno, NOT_VALID.format("JSON", error.msg)) from None


def _duplicate_line(text: str) -> int | None:
    """Return the line of a duplicate key in JSON; None if no key occurs twice. The YAML parser finds the line."""
    try:
        yaml_text.parse(text.replace("\t", " "))
    except (UnreadableError, RecursionError) as error:
        return getattr(error, "line", None)
    return None
