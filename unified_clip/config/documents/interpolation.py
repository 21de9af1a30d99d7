"""Replace interpolations of OmegaConf, such as `${trainer.clip}`, by their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .keys import Key
from .unknown import PartialTable, Unknown

ADVICE = "Write the value instead, or import the resolved configuration, which Hydra prints with `--cfg job --resolve`."
INNERMOST = re.compile(r"\$\{([^${}]*)\}")
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
        """Replace the innermost interpolations until there is none."""
        if "\\${" in text:
            raise _UnknownError(Unknown(text, ADVICE, f"{text:.60} has an escaped ${{, which is not supported."))
        result = text
        while match := INNERMOST.search(result):
            value = self._named(path, match[1])
            if match[0] == result:
                return value
            if isinstance(value, dict | list):
                raise _UnknownError(Unknown(text, ADVICE, f"{text:.60} inserts a table or a list into a text."))
            result = f"{result[: match.start()]}{value}{result[match.end() :]}"
            if len(result) > LONGEST:
                problem = f"{text:.60} has more than {LONGEST} characters with its values inserted."
                raise _UnknownError(Unknown(text, ADVICE, problem))
        if "${" in result:
            raise _UnknownError(Unknown(text, ADVICE, f"{text:.60} has braces that do not match."))
        return result

    def _named(self, path: tuple[Key, ...], name: str) -> Any:
        if ":" in name:
            resolver = name.partition(":")[0]
            raise _UnknownError(Unknown(name, f"The value needs the resolver {resolver}. {ADVICE}"))
        name = name.strip()
        dots = len(name) - len(name.lstrip("."))  # a relative name, such as `.clip` or `..clip`
        keys: list[Key] = [key for key in re.split(r"[.\[\]]+", name) if key]
        if not keys:
            raise _UnknownError(Unknown(name, ADVICE, f"${{{name:.60}}} does not name a key."))
        keys = [*path[: len(path) - dots], *keys] if dots else keys
        value = self.data
        for length, key in enumerate(keys):
            value = self._inner(keys[:length], value, key, name)
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


def _count(value: Any, counts: dict[int, int]) -> int:
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in counts:
        inner = value.values() if isinstance(value, dict) else value
        counts[id(value)] = 1 + sum(_count(each, counts) for each in inner)
    return counts[id(value)]
