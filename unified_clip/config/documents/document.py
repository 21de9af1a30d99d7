"""A parsed file: its values by paths of keys, and errors that name the line of a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError
from . import toml_text, yaml_text
from .keys import Key, dotted, format_value


@dataclass(frozen=True)
class Document:
    """A parsed TOML, YAML or JSON file, or a trainer's file, with its text."""

    name: str
    """The name of the file in messages."""

    text: str
    kind: str
    """toml, yaml, json, or another kind of file that a trainer's format reads, such as python."""

    data: Any
    places: Mapping[tuple[Key, ...], int] = field(default_factory=dict)
    """The line of each path of keys. Only for other kinds than toml, yaml and json."""

    def line(self, keys: Sequence[Key]) -> int | None:
        """Return the line of a key. If it is unknown, return the line of the nearest table around the key, or else
        None.
        """
        find = {"toml": toml_text.line_of, "yaml": yaml_text.line_of, "json": yaml_text.line_of}.get(self.kind)
        for length in range(len(keys), 0, -1):
            line = find(self.text, keys[:length]) if find else self.places.get(tuple(keys[:length]))
            if line is not None:
                return line
        return None

    def place(self, keys: Sequence[Key], name: str = "") -> str:
        """Return the place of a key as text, such as "clip.toml, line 3, threshold.start".

        Unknown parts are left out.
        """
        line = self.line(keys)
        return ", ".join(filter(None, [name, f"line {line}" if line else "", dotted(keys)]))

    def wrong(self, keys: Sequence[Key], message: str, code: str = "") -> ConfigError:
        """Return an error whose message has the file's name, and the line and path of a key.

        `code`: the kind of problem, unless it is a wrong key or value.
        """
        return ConfigError(f"{self.place(keys, self.name)}: {message}", code)

    def get(self, *keys: Key, default: Any = None) -> Any:
        """Return the value at a path of keys. Return `default` if the key or a table of the path is missing."""
        value = self.data
        for index, key in enumerate(keys):
            if value is None:
                return default
            if isinstance(value, list) and isinstance(key, int):
                value = value[key]
                continue
            if not isinstance(value, dict):
                raise self.wrong(keys[:index], f"it is {format_value(value)}. Give keys with values, such as {key}.")
            if key not in value:
                return default
            value = value[key]
        return value

    def has(self, *keys: Key) -> bool:
        """Return whether the file sets a path of keys, even if to null."""
        table = self.data
        try:
            for key in keys:
                table = table[key]
        except (LookupError, TypeError):
            return False
        return True
