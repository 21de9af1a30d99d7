"""Read and write TOML, YAML and JSON."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import tomlkit
import tomlkit.exceptions
import tomlkit.items

from ..._kit import atomic_files
from ..._kit.atomic_files import FileError
from ..._kit.parse import tomllib
from ...errors import ConfigError
from ...recorder.lines import plain_json
from . import python_text, script_options, yaml_text
from .document import Document
from .keys import MAX_DIGITS, NOT_VALID, Duplicate, Key, Parsed, ParseError, too_long

DEEPEST = 100
"""The levels of nested tables and lists in a document."""

DOCUMENT_KINDS = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}


def kind_of(path: Path) -> str:
    if path.suffix.lower() not in DOCUMENT_KINDS:
        raise ConfigError(f"{path}: the suffix is not one of {', '.join(DOCUMENT_KINDS)}. Use one of these.", "UC103")
    return DOCUMENT_KINDS[path.suffix.lower()]


def read_text(path: Path) -> str:
    try:
        return atomic_files.read_text(path)
    except FileError as error:
        raise ConfigError(str(error), "UC101") from None


def parse(text: str, kind: str, name: str) -> Document:
    """Parse TOML, YAML or JSON. Trainers' parsers use the last of duplicate keys, so duplicates raise no error."""
    _check_kind(kind)
    try:
        parsed = _parsed(text, kind)
    except ParseError as error:
        line = f", line {error.line}" if error.line else ""
        raise ConfigError(f"{name}{line}: {error}", "UC102") from None
    except RecursionError:
        problem = "its lists or tables are nested too deep to be read. Use fewer levels."
        raise ConfigError(f"{name}: {problem}", "UC102") from None
    data = {} if parsed.data is None else copy.deepcopy(parsed.data)
    return Document(name, text, kind, data, duplicates=parsed.duplicates, line_of=parsed.line_of)


@lru_cache(maxsize=64)
def _parsed(text: str, kind: str) -> Parsed:
    parsed = PARSERS[kind](text)
    _check_depth(parsed.data)
    return parsed


def _parse_json(text: str) -> Parsed:
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
    return Parsed(data, _duplicates(text, repeated[0]) if repeated else (), partial(_line_in_json, text))


@lru_cache(maxsize=8)
def _as_yaml(text: str) -> Parsed:
    return yaml_text.parse(text.replace("\t", " "))


def _line_in_json(text: str, keys: Sequence[Key]) -> int | None:
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


def _parse_toml(text: str) -> Parsed:
    """TOML forbids duplicate keys, so the tuple of duplicates is empty."""
    try:
        return Parsed(tomllib.loads(text), (), partial(_toml_line, text))
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


def _toml_line(text: str, keys: Sequence[Key]) -> int | None:
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
        return _toml_line(text, [*keys, first])
    return before.count("\n") + 1 if match else None


PARSERS = {"toml": _parse_toml, "yaml": yaml_text.parse, "json": _parse_json}


def _check_depth(data: Any) -> None:
    """Raise RecursionError early, because functions that read the data call themselves for each level."""
    level = [data]
    for _ in range(DEEPEST):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise RecursionError


def dump(data: Any, kind: str) -> str:
    if kind in ("args", "python"):
        return script_options.dump(data) if kind == "args" else python_text.dump(data)
    _check_kind(kind)
    if kind == "toml":
        return tomlkit.dumps(data)
    if kind == "yaml":
        return yaml_text.dump(data)
    return json.dumps(plain_json(data), indent=2, ensure_ascii=False) + "\n"


def _check_kind(kind: str) -> None:
    if kind not in DOCUMENT_KINDS.values():
        kinds = ", ".join(dict.fromkeys(DOCUMENT_KINDS.values()))
        raise ConfigError(f"{kind!r} is not a kind of file. Pass one of {kinds}.")
