"""A parsed configuration file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from .keys import UNKNOWN, Duplicate, Key, Unknown, dotted, format_value

INTERPOLATED = ("yaml", "json", "toml")
BASE_KEYS = ("_BASE_", "_base_")

HEADER = re.compile(r"\s*(#.*\n\s*)*#\s*@package\s+(?!_group_)\S")
"""Matches the comment with which Hydra merges a file into another table than the one of its folder."""

RESOLVE = "Write the value here, or import the resolved configuration, which Hydra prints with `--cfg job --resolve`."


@dataclass(frozen=True)
class Document:
    """A parsed configuration file. A key of another file, as in `${trainer.clip}`, has no known value."""

    name: str
    text: str
    kind: str
    """The file type: toml, yaml, json, or a type with its own parser, such as python."""

    data: Any
    """The values. A value that cannot be read is an `Unknown`."""

    places: Mapping[tuple[Key, ...], int] = field(default_factory=dict)
    """The line of each key, or an empty mapping for a document with `line_of`."""

    path: Path | None = None
    duplicates: tuple[Duplicate, ...] = ()
    """Keys that occur twice. `data` has the last value of each key."""

    line_of: Callable[[Sequence[Key]], int | None] | None = None

    def line(self, keys: Sequence[Key]) -> int | None:
        """Return the line of a key, or of the nearest enclosing table."""
        for length in range(len(keys), 0, -1):
            inner = tuple(keys[:length])
            line = self.line_of(inner) if self.line_of else self.places.get(inner)
            if line is not None:
                return line
        return None

    def place(self, keys: Sequence[Key], name: str = "") -> str:
        """Return the place of a key as text, such as "line 3, threshold.start", after the name of the file."""
        line = self.line(keys)
        return ", ".join(filter(None, [name, f"line {line}" if line else "", dotted(keys)]))

    def wrong(self, keys: Sequence[Key], message: str, code: str = "") -> ConfigError:
        return ConfigError(f"{self.place(keys, self.name)}: {message}", code)

    def get(self, *keys: Key, default: Any = None) -> Any:
        """Return the value at a path of keys, or `default` if a key is missing or a table is null.

        Raise ConfigError if the value is unknown, or the value of a key before the last key is not a table.
        """
        value = self.data
        for index, key in enumerate(keys):
            self._check_known(keys[:index], value)
            if value is None:
                return default
            if isinstance(value, list) and isinstance(key, int):
                value = value[key]
                continue
            if not isinstance(value, dict):
                raise self.wrong(
                    keys[:index], f"{format_value(value)} is not a table. Give a table with keys such as {key}."
                )
            if key not in value:
                return default
            value = value[key]
        self._check_known(keys, value)
        return value

    def has(self, *keys: Key) -> bool:
        """Return whether the file has a key. The value can be null. Raise ConfigError if this is unknown."""
        table = self.data
        for index, key in enumerate(keys):
            self._check_known(keys[:index], table)
            try:
                table = table[key]
            except (LookupError, TypeError):
                return False
        return True

    def shows(self, *keys: Key) -> bool:
        """Return whether the document has a key. The value can be null or unknown."""
        table = self.data
        try:
            for key in keys:
                table = table[key]
        except (LookupError, TypeError):
            return False
        return True

    def _check_known(self, keys: Sequence[Key], value: Any) -> None:
        if isinstance(value, str) and "${" in value and self.kind in INTERPOLATED:
            value = Unknown(value, RESOLVE)
        if isinstance(value, Unknown):
            raise self.wrong(keys, value.problem, UNKNOWN)


def inheriting(document: Document) -> tuple[Key, ...] | None:
    """Return the key by which a file inherits settings from other files, such as `_BASE_` or Hydra's `defaults`.

    Return () if a comment of Hydra shows that there are other files, and None if the file inherits nothing. Each file
    is read on its own: a file that inherits, and that does not set the threshold, has no clip of its own.
    """
    data = document.data if isinstance(document.data, dict) else {}
    for key in BASE_KEYS:
        if _names_files(data.get(key)):
            return (key,)
    if _is_composed(data.get("defaults")):
        return ("defaults",)
    return () if document.kind == "yaml" and HEADER.match(document.text) else None


def _names_files(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return isinstance(value, Unknown) or (bool(values) and all(isinstance(text, str) for text in values))


def _is_composed(defaults: Any) -> bool:
    """Return whether a `defaults` list names files of the program, and not only of Hydra itself."""
    entries = defaults if isinstance(defaults, list) else []
    names = [next(iter(entry)) if isinstance(entry, dict) and len(entry) == 1 else entry for entry in entries]
    if not all(isinstance(name, str) and name.strip() for name in names):
        return False
    groups = [name.split()[-1].strip("/").partition("/")[0] for name in names]  # without words such as `override`
    return any(group not in ("_self_", "hydra") for group in groups)
