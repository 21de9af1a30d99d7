"""Describe the first error that pydantic finds in a document."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ...errors import ConfigError
from . import Document, Key, format_value

TYPES = {
    "string_type": "a string",
    "list_type": "a list",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "model_type": "a table of keys and values",
    "model_attributes_type": "a table of keys and values",
    "dict_type": "a table of keys and values",
}

LIMITS = {
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "{le:g} or less",
    "less_than": "less than {lt:g}",
    "finite_number": "a finite number",
    "too_short": "at least {entries}",
    "too_long": "at most {entries}",
    "string_too_short": "at least one character",
}

TAGS = ("union_tag_invalid", "union_tag_not_found")


def first_error(error: ValidationError, document: Document, model: type[BaseModel]) -> ConfigError:
    """Errors about unknown keys come first, because a misspelt key also causes an error about a missing key."""
    errors = [(_keys(entry, document.data), entry) for entry in error.errors()]
    # If a value may have several types, report the error of the type that fits best: the deepest error.
    outer = [keys for keys, _ in errors if any(inner != keys and inner[: len(keys)] == keys for inner, _ in errors)]
    deepest = [(keys, entry) for keys, entry in errors if keys not in outer]
    deepest.sort(key=lambda item: item[1]["type"] != "extra_forbidden")
    place = deepest[0][0]
    keys, message = _described(place, [entry for keys, entry in deepest if keys == place], document.data, model)
    return document.wrong(keys, message)


def _described(keys: list[Key], errors: Sequence[Any], data: Any, model: type[BaseModel]) -> tuple[Sequence[Key], str]:
    error = _closest(errors)
    kind, message, content = error["type"], error["msg"].removeprefix("Value error, "), error["input"]
    value = f"it is {format_value(content)}"
    if error["loc"][-1:] == ("[key]",) and kind == "string_type":  # a key of a table such as check.formats
        return [*keys[:-1], str(keys[-1])], f"the key {content!r} is not a string. Write it in quotes."
    if kind in TYPES:
        expected = list(dict.fromkeys(TYPES[entry["type"]] for entry in errors if entry["type"] in TYPES))
        if "a number" in expected and "a whole number" in expected:
            expected.remove("a whole number")
        *first, last = expected
        return keys, f"{value}. Give {', '.join(first)} or {last}." if first else f"{value}. Give {last}."
    if kind == "invalid_key":
        names = ", ".join(_allowed_keys(keys, data, model))
        return [*keys[:-1], str(keys[-1])], f"the key {keys[-1]!r} is not a string. Use one of {names}."
    if kind == "extra_forbidden":
        return keys, no_such("key", str(keys[-1]), _allowed_keys(keys, data, model))
    if kind == "whole":
        return error["ctx"]["keys"], message
    if kind == "missing":
        fields = [type_.model_fields.get(str(keys[-1])) for type_ in _types(keys[:-1], data, model) if _is_table(type_)]
        examples = [example for field in fields if field is not None for example in field.examples or ()]
        return keys, f"it is missing. Add {next(iter(examples), keys[-1])}."
    if kind in TAGS:
        key = error["ctx"]["discriminator"].strip("'")
        tags = [name for table in _types(keys, data, model) for name in _tags(table).get(key, ())]
        tag = error["ctx"].get("tag")
        problem = "it is missing" if tag is None else f"it is {tag!r}"
        return [*keys, key], f"{problem}. Give one of {', '.join(tags)}."
    if kind == "value_error":
        if isinstance(content, dict):
            named = message.split(maxsplit=1)[0].strip("`,:")
            return [*keys, named] if named in content else keys, message
        stop = "" if message.endswith(".") else "."
        is_whole = message.startswith(format_value(content))
        return keys, message if is_whole else f"{value}. {message[0].upper()}{message[1:]}{stop}"
    return keys, f"{value}. {_remedy(error)}"


def _closest(errors: Sequence[Any]) -> Any:
    if isinstance(errors[0]["input"], dict):
        tagged = [entry for entry in errors if entry["type"] in TAGS]
        return tagged[0] if tagged else max(errors, key=lambda entry: len(entry["loc"]))
    return next((entry for entry in errors if entry["type"] not in {*TYPES, *TAGS}), errors[0])


def _remedy(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "literal_error":
        return f"Give {'true' if context['expected'] == 'True' else context['expected']}."
    if kind in LIMITS:
        number = context.get("max_length" if kind == "too_long" else "min_length")
        entries = "one entry" if number == 1 else f"{number} entries"
        return f"Give {LIMITS[kind].format(**context, entries=entries)}."
    return str(error["msg"])


OTHER_NAMES = dict.fromkeys(("max_norm", "max_grad_norm", "clip_norm", "clip_value"), "threshold")
"""Names of other libraries, which are not similar to the name of the same key here."""


def no_such(kind: str, name: str, known: Sequence[str]) -> str:
    """Return a message that suggests the most similar name, or lists all known names."""
    close = [each for each in (OTHER_NAMES.get(name),) if each in known] or difflib.get_close_matches(name, known, n=1)
    names = f"Use one of {', '.join(known)}." if known else "Remove it."
    hint = f"Did you mean {close[0]}?" if close else names
    return f"there is no such {kind}. {hint}"


# -- places in a model


def _keys(error: Any, data: Any) -> list[Key]:
    """Return the keys of an error's location, without the names of union members, which are not in the document."""
    keys: list[Key] = []
    for part in error["loc"]:
        if part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int):
            keys.append(part)
            data = _value(data, part)
    return [*keys, error["loc"][-1]] if error["type"] == "missing" else keys


def _types(keys: Sequence[Key], data: Any, model: type[BaseModel]) -> list[Any]:
    """Return the possible types of the value at a path of keys."""
    types: list[Any] = [model]
    for key in keys:
        types = [inner for type_ in types for inner in _inside(type_, key, data)]
        data = _value(data, key)
    return types


def _inside(type_: Any, key: Key, data: Any) -> list[Any]:
    if get_origin(type_) in (list, dict):
        return _members(get_args(type_)[-1])
    is_field = _is_table(type_) and key in type_.model_fields and _fits(type_, data)
    return _members(type_.model_fields[key].annotation) if is_field else []


def _allowed_keys(keys: Sequence[Key], data: Any, model: type[BaseModel]) -> list[str]:
    types = _types(keys[:-1], data, model)
    for key in keys[:-1]:
        data = _value(data, key)
    return list(dict.fromkeys(name for type_ in types if _fits(type_, data) for name in type_.model_fields))


def _members(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [member for type_ in get_args(annotation) for member in _members(type_)]
    return [annotation]


def _is_table(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _tags(table: Any) -> dict[str, tuple[Any, ...]]:
    """Return the keys that allow only one value, such as {"schedule": ("linear",)}."""
    fields = table.model_fields.items() if _is_table(table) else ()
    return {
        name: get_args(field.annotation)
        for name, field in fields
        if get_origin(field.annotation) is Literal and field.is_required() and len(get_args(field.annotation)) == 1
    }


def _fits(table: Any, data: Any) -> bool:
    """Return whether a type is a table of which the data have the tags."""
    values = data if isinstance(data, dict) else {}
    return _is_table(table) and all(
        str(values.get(name, allowed[0])) == allowed[0] for name, allowed in _tags(table).items()
    )


def _value(data: Any, key: Key) -> Any:
    if isinstance(data, list) and isinstance(key, int):
        return data[key] if key < len(data) else None
    return data.get(key) if isinstance(data, dict) else None
