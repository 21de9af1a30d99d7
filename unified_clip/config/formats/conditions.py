"""Whether the conditions of a trainer's row hold for a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

from ...facts.trainer_rows import Table, Test, When
from ..documents import Document, Key
from . import engines

Path = tuple[Key, ...]

ANY, TYPE = "*", "<type>"
"""Wildcards in a path: any key or index, and the value of the key `type` of the same table."""


@dataclass(frozen=True)
class Context:
    """A file, and the place in the file to which the keys of conditions are relative."""

    document: Document
    version: Version | None = None
    section: Path = ()
    place: Path = ()
    """The clip key."""

    vocabulary: Sequence[str] = ()
    only_shows: bool = False
    """Whether files that cannot be read are ignored. Otherwise, a key that they might set raises an error."""

    def at(self, section: Path, place: Path = ()) -> Context:
        return replace(self, section=section, place=place)

    def resolve(self, path: Sequence[Key]) -> Path:
        if path[:1] == ("/",):
            return tuple(path[1:])
        return (*self.place, *path[1:]) if path[:1] == ("@",) else (*self.section, *path)

    def has(self, path: Path) -> bool:
        return self.document.shows(*path) if self.only_shows else self.document.has(*path)

    def value(self, path: Path) -> Any:
        if not self.only_shows:
            return self.document.get(*path)
        value = self.document.data
        for key in path:
            value = value[key]
        return value

    def expand(self, pattern: Path, start: int = 0) -> list[Path]:
        """Return the paths in the file that match a pattern. Before `start`, "*" is the name of a key."""
        places = (index for index, key in enumerate(pattern) if index >= start and key in (ANY, TYPE))
        index = next(places, None)
        if index is None:
            return [pattern] if self.has(pattern) else []
        outer, rest = pattern[:index], pattern[index + 1 :]
        table = replace(self, only_shows=True).value(outer) if self.document.shows(*outer) else None
        keys: Sequence[Key] = ()
        if isinstance(table, Mapping):
            keys = list(table) if pattern[index] == ANY else [str(table.get("type"))]
        elif isinstance(table, list) and pattern[index] == ANY:
            keys = range(len(table))
        if pattern[index] == ANY and rest:  # entries of other types have no keys
            keys = [key for key in keys if isinstance(table[key], dict | list)]  # type: ignore[index]
        return [path for key in keys for path in self.expand((*outer, key, *rest), index + 1)]

    def found(self, test: Test) -> Iterator[Path]:
        """Yield the paths of the keys in a condition that the file has."""
        keys = [(name,) for name in self.vocabulary] if test.key == (("vocabulary",),) else test.key
        return (path for key in keys for path in self.expand(self.resolve(key)))

    def first(self, when: When) -> Path | None:
        """Return the path of the first key in conditions that the file has, or the first path."""
        tests = [test for test in when if isinstance(test, Test) and test.key]
        found = ((*path, *self._others(test, path)) for test in tests for path in self.found(test))
        return next(found, self.resolve(tests[0].key[0]) if tests else None)

    def _others(self, test: Test, path: Path) -> Sequence[Key]:
        """Return the first key in a table that is not one of the keys in `only`."""
        return [key for key in self.value(path) if key not in test.only][:1] if test.only else []

    def holds(self, when: When) -> bool:
        return all(self._any(test) if isinstance(test, tuple) else self._is(test) for test in when)

    def _any(self, tests: tuple[Test, ...]) -> bool:
        return any(map(self._is, tests))

    def _is(self, test: Test) -> bool:
        # a strategy of unknown value, such as ${strategy}, is of no known engine
        context = replace(self, only_shows=True) if test.engine else self
        return context._plain(test) != test.negate

    def _plain(self, test: Test) -> bool:
        document, version = self.document, self.version
        if test.kind and document.kind != test.kind:
            return False
        if test.file and document.name.rpartition(".")[0].lower() not in test.file:
            return False
        if test.text and re.search(test.text, document.text) is None:
            return False
        if test.version and version is not None:
            return False
        if (test.since or test.before) and (version is None or not is_in_range(version, test.since, test.before)):
            return False
        return not test.key or any(self._matches(test, path) for path in self.found(test))

    def _matches(self, test: Test, path: Path) -> bool:
        if test.state == "present" and test.is_plain:
            return True
        value = self.value(path)
        states = {"set": value is not None, "null": value is None, "on": bool(value)}
        states |= {"list": isinstance(value, list), "table": isinstance(value, dict)}
        return (
            states.get(test.state, True)
            and (test.among is None or is_one_of(value, test.among))
            and (not test.like or re.fullmatch(test.like, str(value)) is not None)
            and (not test.differs or not is_one_of(value, [self.other(test)]))
            and (not test.only or (isinstance(value, dict) and not test.only.issuperset(value)))
            and (not test.engine or engines.of_strategy(value) == test.engine)
        )

    def other(self, test: Test) -> Any:
        path = self.resolve(test.differs)
        return self.value(path) if self.has(path) else test.otherwise


def is_one_of(value: Any, known: Sequence[Any]) -> bool:
    """Compare values like `in`, but without taking True for 1."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in known)


def is_in_range(version: Version | None, since: str, before: str) -> bool:
    """Return whether a version is in a range. An unknown version is new: it has no upper limit."""
    is_new = not since or version is None or version >= Version(since)
    return is_new and (not before or (version is not None and version < Version(before)))


def tests_of(table: Any) -> Iterator[Test]:
    """Yield each condition in a row, also in its lists and tables."""
    if isinstance(table, Test):
        yield table
    elif isinstance(table, tuple):
        for value in table:
            yield from tests_of(value)
    elif isinstance(table, Table):
        for _, value in table:
            yield from tests_of(value)
