"""Describe the first error that pydantic finds in a document: its place, and pydantic's text or our own."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ...errors import ConfigError
from . import Document, Key, format_value

OTHER_NAMES = dict.fromkeys(("max_norm", "max_grad_norm", "clip_norm", "clip_value"), "threshold")
"""Names of other libraries, which are not similar to the name of the same key here."""

REMOVED_RULES = {
    "adagc": "0.2.0 removed the rule 'adagc'. Remove adaptive and set threshold, which limits the norm of each tensor. "
    "Or set rule to 'global_norm' and adaptive.rule to 'zclip', which limits the total norm."
}

WORDS = {
    r"a valid dictionary( or (instance of \w+|object to extract fields from))?": "a table",
    r"a valid boolean": "true or false",
    r"\bTrue$": "true",
    r"Input should be (?=greater|less)": "Give a number ",
    r"Input should be": "Give",
    r"\.?$": ".",
}
"""Patterns for pydantic's words, and the words for readers of a configuration file."""


def first_error(error: ValidationError, document: Document, model: type[BaseModel]) -> ConfigError:
    """Errors about unknown keys come first, because a misspelt key also causes an error about a missing key."""
    errors = [(_keys(entry, document.data), entry) for entry in error.errors()]
    # If a value may have several types, report the error of the type that fits best: the deepest error.
    outer = [keys for keys, _ in errors if any(inner != keys and inner[: len(keys)] == keys for inner, _ in errors)]
    deepest = [(keys, entry) for keys, entry in errors if keys not in outer]
    keys, entry = min(deepest, key=lambda item: (_rank(item[1]), -len(item[1]["loc"])))
    return document.wrong(*_described(keys, entry, model))


def _rank(entry: Any) -> int:
    """Errors of our own validators say more than errors about the type of another member of a union."""
    kinds = ("extra_forbidden", "union_tag_invalid", "union_tag_not_found", "value_error", "whole")
    is_tag_of_no_table = entry["type"].startswith("union_tag") and not isinstance(entry["input"], dict)
    return kinds.index(entry["type"]) if entry["type"] in kinds and not is_tag_of_no_table else len(kinds)


def _described(keys: list[Key], error: Any, model: type[BaseModel]) -> tuple[Sequence[Key], str]:
    kind, message, content = error["type"], error["msg"].removeprefix("Value error, "), error["input"]
    if kind == "invalid_key" or (kind == "string_type" and error["loc"][-1:] == ("[key]",)):
        return [*keys[:-1], str(keys[-1])], f"the key {keys[-1]!r} is not a string. Write it in quotes."
    if kind == "extra_forbidden":
        names = dict.fromkeys(name for table in _tables(error["loc"], model) for name in table.model_fields)
        return keys, no_such("key", str(keys[-1]), list(names))
    if kind.startswith("union_tag"):
        keys = [*keys, error["ctx"]["discriminator"].strip("'")]
    if kind in ("missing", "union_tag_not_found"):
        fields = [table.model_fields.get(str(keys[-1])) for table in _tables(error["loc"], model)]
        examples = [example for field in fields if field is not None for example in field.examples or ()]
        return keys, f"it is missing. Add {next(iter(examples), keys[-1])}."
    if kind == "union_tag_invalid":
        tag, expected = error["ctx"]["tag"], error["ctx"]["expected_tags"]
        return keys, REMOVED_RULES.get(tag, f"it is {tag!r}. Give one of {expected}.")
    if kind == "whole":
        return error["ctx"]["keys"], message
    if kind == "value_error" and isinstance(content, dict):
        named = message.split(maxsplit=1)[0].strip("`,:")
        return [*keys, named] if named in content else keys, message
    if message.startswith(format_value(content)):
        return keys, message
    for words, ours in WORDS.items():
        message = re.sub(words, ours, message)
    return keys, f"it is {format_value(content)}. {message[0].upper()}{message[1:]}"


def no_such(kind: str, name: str, known: Sequence[str]) -> str:
    """Return a message that suggests the most similar name, or lists all known names."""
    close = [each for each in (OTHER_NAMES.get(name),) if each in known] or difflib.get_close_matches(name, known, n=1)
    names = f"Use one of {', '.join(known)}." if known else "Remove it."
    hint = f"Did you mean {close[0]}?" if close else names
    return f"there is no such {kind}. {hint}"


def _keys(error: Any, data: Any) -> list[Key]:
    """Return the keys of an error's location, without the names of union members, which are not in the document."""
    keys: list[Key] = []
    for part in error["loc"]:
        is_index = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if is_index or (isinstance(data, dict) and part in data):
            data = data[part]
            keys.append(part)
    return [*keys, error["loc"][-1]] if error["type"] == "missing" else keys


def _tables(place: Sequence[Key], model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the possible tables around an error. A part of its place can be the tag of a member of a union."""
    models = [model]
    for part in place[:-1]:
        fields = [each.model_fields[str(part)] for each in models if part in each.model_fields]
        if fields:
            models = [inner for field in fields for inner in _models(field.annotation)]
        else:
            models = [each for each in models if part in _tags(each)] or models
    return models


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


def _tags(model: type[BaseModel]) -> list[Any]:
    annotations = [field.annotation for field in model.model_fields.values()]
    return [tag for each in annotations if get_origin(each) is Literal for tag in get_args(each)]
