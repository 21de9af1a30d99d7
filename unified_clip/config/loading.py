"""Settings from data, and what is wrong with them in words."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from ..errors import ConfigError
from .documents import Document, Key, shown
from .schedules import Constant, Cosine, Linear, Piecewise
from .settings import VERSION, Group, Provenance, Settings

TABLES = {"groups": Group, "provenance": Provenance}
SCHEDULES = {"constant": Constant, "linear": Linear, "cosine": Cosine, "piecewise": Piecewise}


def checked(document: Document) -> dict[str, Any]:
    """The data of a document, found to be settings."""
    data = document.data
    if not isinstance(data, dict):
        raise ConfigError(f"{document.name}: it holds no table, but {shown(data)}; it needs at least a rule")
    data = {key: value for key, value in data.items() if key != "$schema"}
    version = data.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise document.wrong(
            ["version"], f"it is {version}, and this unified_clip knows version {VERSION}; install a later unified_clip"
        )
    try:
        Settings.model_validate(data)
    except ValidationError as error:
        raise first_of(error, document) from None
    return data


def first_of(error: ValidationError, document: Document) -> ConfigError:
    """The first thing that is wrong, with its place and what to do."""
    found = [each for each in error.errors() if _is_about(each)] or error.errors()
    found.sort(key=lambda each: each["type"] != "extra_forbidden")  # a key that is misspelt is missing as well
    keys, message = _described(found[0], document.data)
    return document.wrong(keys, message)


def _is_about(error: Any) -> bool:
    """Whether an error is about what was given. pydantic reads a threshold as a number and as a table."""
    return _place(error["loc"])[1] != "number" or not isinstance(error["input"], dict)


def _place(loc: Sequence[Key]) -> tuple[list[Key], str]:
    """Return the keys in a path of pydantic's, and as what it read the threshold there: "number", "table" or ""."""
    start = 2 if loc[:1] == ("groups",) else 0
    if len(loc) <= start + 1 or loc[start] != "threshold":
        return list(loc), ""
    before, branch, inside = loc[: start + 1], str(loc[start + 1]), loc[start + 2 :]
    if not branch.startswith("tagged-union"):
        return [*before, *inside], "number"
    return [*before, *inside[1:]], "table"  # after the name of the schedule


def _described(error: Any, data: Any) -> tuple[Sequence[Key], str]:
    keys, _ = _place(error["loc"])
    if error["type"] == "invalid_key":
        names = ", ".join(_known(keys, data))
        return [*keys[:-1], str(keys[-1])], f"the key {keys[-1]!r} is not a string; the keys are {names}"
    message = error["msg"].removeprefix("Value error, ")
    given = f"it is {shown(error['input'])}"
    kind = error["type"]
    if kind == "extra_forbidden":
        return keys, _unknown(keys, data)
    if kind == "whole":
        return error["ctx"]["keys"], message
    if kind == "missing":
        return keys, "it is missing"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return [*keys, "schedule"], f"give one of {', '.join(SCHEDULES)}"
    if kind == "literal_error":
        return keys, f"{given}; give {error['ctx']['expected']}"
    if kind == "value_error":
        named = message.split(maxsplit=1)[0].rstrip(",:")
        if isinstance(error["input"], dict):
            return [*keys, named] if named in error["input"] else keys, message
        return keys, f"{given}; {message}"
    return keys, f"{given}; {_in_words(error)}"


def _in_words(error: Any) -> str:
    words = {
        "string_type": "give a string",
        "string_too_short": "give at least one character",
        "list_type": "give a list",
        "too_short": "give at least one entry",
        "int_type": "give a whole number",
        "int_from_float": "give a whole number",
        "model_type": "give a table",
        "model_attributes_type": "give a table",
        "dict_type": "give a table",
    }
    if error["type"] == "greater_than_equal":
        return f"give {error['ctx']['ge']} or more"
    return words.get(error["type"], str(error["msg"]))


def _unknown(keys: Sequence[Key], data: Any) -> str:
    known = _known(keys, data)
    close = difflib.get_close_matches(str(keys[-1]), known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return f"there is no such key; {hint}"


def _known(keys: Sequence[Key], data: Any) -> list[str]:
    """The keys of the table in which a key stands."""
    *outer, _ = keys
    if outer[-1:] == ["threshold"]:
        for key in outer:
            data = data[key]
        table: Any = SCHEDULES[data["schedule"]]
    else:
        table = TABLES[str(outer[0])] if outer else Settings
    return list(table.model_fields)
