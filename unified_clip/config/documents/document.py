"""A parsed configuration file, or several merged files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import ConfigError
from .keys import Duplicate, Key, dotted, format_value
from .unknown import UNKNOWN, PartialTable, Unknown


class Layer(NamedTuple):
    document: Document
    at: tuple[Key, ...] = ()
    """The path of keys in the merged document under which the data of `document` is inserted."""


@dataclass(frozen=True)
class Document:
    """A parsed configuration file, or several files that a trainer merges."""

    name: str
    text: str
    kind: str
    """The file type: toml, yaml, json, or a type with its own parser, such as python."""

    data: Any
    """The merged values. A value that cannot be read is an `Unknown`."""

    places: Mapping[tuple[Key, ...], int] = field(default_factory=dict)
    """The line of each key, or an empty mapping for a document with `line_of`."""

    path: Path | None = None
    duplicates: tuple[Duplicate, ...] = ()
    """Keys that occur twice. `data` has the last value of each key."""

    layers: tuple[Layer, ...] = ()
    """The merged files. Later files replace keys of earlier files."""

    line_of: Callable[[Sequence[Key]], int | None] | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        paths = [self.path, *(layer.document.path for layer in self.layers)]
        return tuple(dict.fromkeys(path for path in paths if path is not None))

    def origin(self, keys: Sequence[Key]) -> tuple[Document, Sequence[Key]]:
        """Return the file that sets a key, and the path of the key in that file."""
        for length in range(len(keys), 0, -1):
            for document, at in reversed(self.layers if self.shows(*keys[:length]) else ()):
                inner = tuple(keys[len(at) : length])
                is_there = inner in document.places or document.shows(*inner)
                if inner and tuple(keys[: len(at)]) == at and is_there:
                    return document.origin(inner)
        return self, keys

    def line(self, keys: Sequence[Key]) -> int | None:
        """Return the line of a key, or of the nearest enclosing table."""
        document, keys = self.origin(keys)
        for length in range(len(keys), 0, -1):
            inner = tuple(keys[:length])
            line = document.line_of(inner) if document.line_of else document.places.get(inner)
            if line is not None:
                return line
        return None

    def place(self, keys: Sequence[Key], name: str = "") -> str:
        """Return the place of a key as text, such as "clip.toml, line 3, threshold.start"."""
        document, line = self.origin(keys)[0], self.line(keys)
        file = name if document.name == self.name else document.name
        return ", ".join(filter(None, [file, f"line {line}" if line else "", dotted(keys)]))

    def wrong(self, keys: Sequence[Key], message: str, code: str = "") -> ConfigError:
        return ConfigError(f"{self.place(keys, self.name)}: {message}", code)

    def get(self, *keys: Key, default: Any = None) -> Any:
        """Return the value at a path of keys, or `default` if a key is missing or a table is null.

        Raise ConfigError if the value is unknown, or the value of a key before the last key is not a table.
        """
        value = self.data
        for index, key in enumerate(keys):
            if value is None:
                return default
            if isinstance(value, Unknown):
                raise self.wrong(keys[:index], value.problem, UNKNOWN)
            if isinstance(value, list) and isinstance(key, int):
                value = value[key]
                continue
            if not isinstance(value, dict):
                raise self.wrong(
                    keys[:index], f"{format_value(value)} is not a table. Give a table with keys such as {key}."
                )
            if key not in value:
                _check_complete(value, keys)
                return default
            value = value[key]
        if isinstance(value, Unknown):
            raise self.wrong(keys, value.problem, UNKNOWN)
        return value

    def has(self, *keys: Key) -> bool:
        """Return whether the file has a key. The value can be null. Raise ConfigError if this is unknown."""
        table = self.data
        for index, key in enumerate(keys):
            if isinstance(table, Unknown):
                raise self.wrong(keys[:index], table.problem, UNKNOWN)
            if isinstance(table, dict) and key not in table:
                _check_complete(table, keys)
            try:
                table = table[key]
            except (LookupError, TypeError):
                return False
        return True

    def shows(self, *keys: Key) -> bool:
        """Return whether the document has a key. The value can be null. Unreadable files are ignored."""
        table = self.data
        try:
            for key in keys:
                table = table[key]
        except (LookupError, TypeError):
            return False
        return True


def _check_complete(table: dict[Any, Any], keys: Sequence[Key]) -> None:
    if isinstance(table, PartialTable):
        raise table.unread.error(keys)
