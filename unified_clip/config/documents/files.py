"""Read and write TOML, YAML and JSON."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import tomlkit

from ..._kit import atomic_files
from ..._kit.atomic_files import FileError
from ...errors import ConfigError
from ...recorder.lines import plain_json
from . import python_text, script_options, toml_text, yaml_text
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


PARSERS = {"toml": toml_text.parse, "yaml": yaml_text.parse, "json": _parse_json}


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
