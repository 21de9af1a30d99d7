"""Replace interpolations of OmegaConf, such as `${trainer.clip}`, by their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .keys import Key
from .unknown import PartialTable, Unknown

ADVICE = "Write the value instead, or import the resolved configuration, which Hydra prints with `--cfg job --resolve`."
LONGEST = 10_000
"""The maximum length of a text after its interpolations are replaced."""

MOST_VALUES = 100_000
"""The maximum number of values after interpolations are replaced. More values could fill the memory."""


def resolve(data: Any) -> Any:
    """Replace each interpolation by its value. An interpolation that cannot be resolved becomes an `Unknown`."""
    resolver = _Resolver(data)
    result = resolver.resolved((), data)
    too_many = f"the interpolations expand to more than {MOST_VALUES} values."
    return Unknown("the interpolations", ADVICE, too_many) if _count(result, {}) > MOST_VALUES else result


class _UnknownError(Exception):
    def __init__(self, unknown: Unknown) -> None:
        super().__init__(unknown)
        self.unknown = unknown


class _Resolver:
    def __init__(self, data: Any) -> None:
        self.data = data
        self.results: dict[tuple[Key, ...], Any] = {}
        self.active: set[tuple[Key, ...]] = set()

    def resolved(self, path: tuple[Key, ...], value: Any) -> Any:
        if path in self.results:
            return self.results[path]
        if isinstance(value, str) and "${" not in value:
            return value
        if isinstance(value, dict):
            table = {key: self.resolved((*path, key), inner) for key, inner in value.items()}
            result: Any = PartialTable.of(table, value.unread) if isinstance(value, PartialTable) else table
        elif isinstance(value, list):
            result = [self.resolved((*path, index), inner) for index, inner in enumerate(value)]
        elif isinstance(value, str):
            result = self._text(path, value)
        else:
            result = value
        self.results[path] = result
        return result

    def _text(self, path: tuple[Key, ...], text: str) -> Any:
        if path in self.active:
            return Unknown(text, ADVICE, f"{text:.60} refers to itself.")
        self.active.add(path)
        try:
            return self._replaced(path, text)
        except _UnknownError as error:
            return replace(error.unknown, source=text)
        except RecursionError:
            return Unknown(text, ADVICE, f"{text:.60} needs too many other interpolations.")
        finally:
            self.active.discard(path)

    def _replaced(self, path: tuple[Key, ...], text: str) -> Any:
        parts: list[Any] = []
        position = 0
        for match in re.finditer(r"\\*\$\{", text):
            if match.start() < position:
                continue
            if match[0].count("\\") % 2:
                raise _UnknownError(Unknown(text, ADVICE, f"{text:.60} has an escaped ${{, which is not supported."))
            end = _closing(text, match.end())
            parts += [text[position : match.start()], self._named(path, text[match.end() : end - 1])]
            position = end
        parts.append(text[position:])
        rest = [part for part in parts if part != "" or not isinstance(part, str)]
        if len(rest) == 1:
            return rest[0]
        if any(isinstance(part, dict | list) for part in rest):
            raise _UnknownError(Unknown(text, ADVICE, f"{text:.60} inserts a table or a list into a text."))
        if sum(len(str(part)) for part in rest) > LONGEST:
            raise _UnknownError(
                Unknown(text, ADVICE, f"{text:.60} has more than {LONGEST} characters with its values inserted.")
            )
        return "".join(map(str, rest))

    def _named(self, path: tuple[Key, ...], name: str) -> Any:
        if "${" in name:
            name = str(self._replaced(path, name))
        if ":" in name:
            resolver = name.partition(":")[0]
            raise _UnknownError(Unknown(name, f"The value needs the resolver {resolver}. {ADVICE}"))
        keys = self._keys(path, name.strip())
        if not keys:
            raise _UnknownError(Unknown(name, ADVICE, f"${{{name:.60}}} does not name a key."))
        value = self.data
        for length in range(len(keys)):
            value = self._inner(keys[:length], value, keys[length], name)
        result = self.resolved(tuple(keys), value)
        if isinstance(result, Unknown):
            raise _UnknownError(result)
        return result

    def _inner(self, path: Sequence[Key], value: Any, key: Key, name: str) -> Any:
        if isinstance(value, str) and "${" in value:  # an interpolation that names a table
            value = self.resolved(tuple(path), value)
        if isinstance(value, Unknown):
            raise _UnknownError(value)
        if isinstance(value, list) and str(key).isdigit() and int(key) < len(value):
            return value[int(key)]
        if isinstance(value, dict):
            names = [each for each in value if str(each) == str(key)]
            if names:
                return value[names[0]]
            if isinstance(value, PartialTable):
                raise _UnknownError(Unknown(name, f"{value.unread.error([*path, key])}"))
        raise _UnknownError(Unknown(name, ADVICE, f"${{{name:.60}}} names a key that does not exist."))

    def _keys(self, path: tuple[Key, ...], name: str) -> list[Key]:
        dots = len(name) - len(name.lstrip("."))
        keys: list[Key] = [key for key in re.split(r"[.\[\]]+", name[dots:]) if key]
        return [*path[: len(path) - dots], *keys] if dots else keys


def _closing(text: str, start: int) -> int:
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if not depth:
            return position + 1
    raise _UnknownError(Unknown(text, "Add the brace: }.", f"{text:.60} has no closing brace."))


def _count(value: Any, counts: dict[int, int]) -> int:
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in counts:
        inner = value.values() if isinstance(value, dict) else value
        counts[id(value)] = 1 + sum(_count(each, counts) for each in inner)
    return counts[id(value)]
