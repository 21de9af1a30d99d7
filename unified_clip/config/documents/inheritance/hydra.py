"""Compose a configuration as Hydra does."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ....errors import ConfigError
from .. import interpolation
from ..document import Document, Layer
from ..files import parse, read_text
from ..keys import Key
from ..merge import MergeRules
from ..unknown import PartialTable, UnreadFile
from .base_class import Files, Inheritance, Parse
from .hydra_defaults import Default, defaults, has_defaults, package_header

RULES = MergeRules(keeps_missing=True)
ADVICE = "Import the composed configuration: run your program with --cfg job."
GLOBAL = "_global_"

MOST_PARENTS = 4
"""The number of parent folders that are searched for a main configuration."""


class Hydra(Inheritance):
    keys = ("defaults",)

    def applies(self, document: Document) -> bool:
        is_composed = has_defaults(document) or "${" in document.text or _is_part(document)
        return is_composed and document.kind in ("yaml", "json")

    def compose(self, document: Document, parse: Parse) -> Document:
        if document.kind not in ("yaml", "json"):
            return document
        if has_defaults(document) or _is_part(document):
            document = _Composition(Files(document, parse, ADVICE)).compose(document)
        return replace(document, data=interpolation.resolve(document.data))


def _is_part(document: Document) -> bool:
    entries = defaults(document)
    chooses = any(entry.is_group and not entry.is_override for entry in entries)
    return package_header(document.text) is not None and not chooses and document.kind == "yaml"


def with_main(path: Path) -> list[Document]:
    """Compose each main configuration whose `defaults` list can choose the file at `path`."""
    path = path.resolve()
    for folder in path.parents[1 : MOST_PARENTS + 1]:
        composed = [_choosing(path, main) for main in sorted(folder.glob("*.yaml"))]
        if any(composed):
            return [each for each in composed if each is not None]
    return []


def _choosing(part: Path, main: Path) -> Document | None:
    with contextlib.suppress(ConfigError):
        document = _parse(main, main.name)
        node = _Node(document, main.parent, "", _absolute(package_header(document.text) or GLOBAL))
        for entry in defaults(document):
            if entry.is_group and not entry.is_override and part.is_relative_to(main.parent / entry.group):
                name = part.relative_to(main.parent / entry.group).with_suffix("").as_posix()
                composition = _Composition(Files(document, _parse, ADVICE))
                key = _override_key(node, entry)
                composition.choices[key], composition.overriding[key] = replace(entry, names=(name,)), document
                composed = composition.compose(document)
                return replace(composed, data=interpolation.resolve(composed.data))
    return None


def _parse(path: Path, name: str) -> Document:
    return replace(parse(read_text(path), "yaml", name), path=path)


@dataclass
class _Node:
    document: Document
    root: Path
    group: str
    """The folder of the file, relative to `root`."""

    package: tuple[str, ...]
    """The path of keys under which Hydra merges the keys of this file."""


@dataclass
class _Composition:
    files: Files
    choices: dict[str, Default] = field(default_factory=dict)
    """Maps a group, such as "trainer" or "db@source", to the `defaults` entry that chooses a file."""

    overriding: dict[str, Document] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    known: dict[str, str] = field(default_factory=dict)
    """Maps a group, such as "db", to the name of the chosen file. This name replaces `${db}` in `defaults` lists."""

    def compose(self, document: Document) -> Document:
        path = (document.path or Path(document.name)).resolve()
        root = _root(path.parent, defaults(document))
        group = path.parent.relative_to(root).as_posix().removeprefix(".")
        main = _Node(document, root, group, _absolute(package_header(document.text) or GLOBAL))
        parts = self._expand(main, ())
        data: Any = self._unread(main) or {}
        layers = []
        for part, package in parts:
            own = part if isinstance(part, UnreadFile) else _own_keys(part)
            data = _merge(data, own, package)
            layers += [] if isinstance(part, UnreadFile) else [Layer(part, package)]
        data = RULES.merge(data, {}) if isinstance(data, UnreadFile) else data
        return replace(document, data=data, layers=tuple(layers))

    def _unread(self, main: _Node) -> UnreadFile | None:
        unused = [key for key in self.choices if key not in self.used and not self.choices[key].is_of_hydra]
        if unused:
            entry, owner = self.choices[unused[0]], self.overriding[unused[0]]
            why = "this entry overrides a defaults entry of another file."
            return replace(self.files.unread(owner, ["defaults", entry.index], why), is_outer=True)
        is_in_group = main.group and package_header(main.document.text) is not None
        if is_in_group or _is_part(main.document):
            why = "Hydra merges this file with other files."
            return replace(self.files.unread(main.document, [], why), is_outer=True)
        return None

    def _expand(self, node: _Node, above: tuple[Path, ...]) -> list[tuple[Document | UnreadFile, tuple[str, ...]]]:
        """Return all files with their packages, in Hydra's order of merging."""
        entries = defaults(node.document)
        for entry in entries:
            if entry.is_group and entry.names and "${" not in entry.names[0]:
                self.known.setdefault(entry.group, entry.names[0])
        parts: list[tuple[Document | UnreadFile, tuple[str, ...]]] = []
        for entry in reversed(entries):
            if entry.is_self:
                parts.append((node.document, node.package))
            elif entry.is_override:
                key = _override_key(node, entry)
                if key not in self.choices:
                    self.choices[key], self.overriding[key] = entry, node.document
                    self.known[entry.group] = entry.names[0] if entry.names else ""
            elif not entry.is_of_hydra:
                parts += reversed(self._children(node, entry, above))
        return parts[::-1]

    def _children(
        self, node: _Node, entry: Default, above: tuple[Path, ...]
    ) -> list[tuple[Document | UnreadFile, tuple[str, ...]]]:
        key = _override_key(node, entry)
        place: tuple[Document, Sequence[Key]] = node.document, ("defaults", entry.index)
        names = entry.names
        if entry.is_group and key in self.choices:
            self.used.add(key)
            names = self.choices[key].names
            place = self.overriding[key], ("defaults", self.choices[key].index)
        parts: list[tuple[Document | UnreadFile, tuple[str, ...]]] = []
        for name in names:
            parts += self._child(node, entry, name, place, above)
        return parts

    def _child(
        self, node: _Node, entry: Default, name: str, place: tuple[Document, Sequence[Key]], above: tuple[Path, ...]
    ) -> list[tuple[Document | UnreadFile, tuple[str, ...]]]:
        name = re.sub(r"\$\{([\w/]+)\}", lambda match: self.known.get(match[1], match[0]), name)
        group = "/".join(filter(None, ["" if entry.is_absolute else node.group, entry.group]))
        package = _final_package(node.package, entry.relative_package)
        if "${" in name or name == "???":
            return [(self.files.unread(*place, f"the file name {name} is only known at run time."), package)]
        path = node.root / group / f"{name}.yaml"
        if entry.is_optional and not path.is_file():
            return []
        child = self.files.open(*place, path, above)
        if isinstance(child, UnreadFile):
            return [(child, package)]
        header = package_header(child.text)
        if entry.package is None and header is not None:
            package = _absolute(header.replace("_group_", group.replace("/", ".")))
        folder = path.parent.relative_to(node.root).as_posix().removeprefix(".")
        return self._expand(_Node(child, node.root, folder, package), (*above, path))


def _override_key(node: _Node, entry: Default) -> str:
    """Return the key that overrides an entry, such as "db" or "db@source"."""
    group = "/".join(filter(None, ["" if entry.is_absolute else node.group, entry.group]))
    package = _final_package(node.package, entry.relative_package)
    default = tuple(filter(None, group.split("/")))
    return group if package == default else f"{group}@{'.'.join(package) or GLOBAL}"


def _final_package(parent: tuple[str, ...], package: str) -> tuple[str, ...]:
    return _absolute(".".join([*parent, package])) if package != "_here_" else parent


def _absolute(package: str) -> tuple[str, ...]:
    return tuple(filter(None, package.rpartition(GLOBAL)[2].split(".")))


def _root(folder: Path, entries: Sequence[Default]) -> Path:
    """For an absolute entry such as `/db: mysql`, return the folder that contains the folder `db`."""
    groups = [entry.group for entry in entries if entry.is_absolute and entry.group]
    folders = (folder, *folder.parents)
    return next((each for each in folders if any((each / group).is_dir() for group in groups)), folder)


def _own_keys(document: Document) -> Any:
    if not isinstance(document.data, dict):
        return document.data
    return {key: value for key, value in document.data.items() if key not in ("defaults", "hydra")}


def _merge(data: Any, own: Any, package: tuple[str, ...]) -> Any:
    if isinstance(own, UnreadFile):
        return _without(data, own, package)
    for key in reversed(package):
        own = {key: own}
    return RULES.merge(data, own)


def _without(data: Any, unread: UnreadFile, package: tuple[str, ...]) -> Any:
    if not package:
        return unread
    table = RULES.merge(data, {})
    inner = _without(table.get(package[0], {}), unread, package[1:])
    table[package[0]] = PartialTable.of({}, inner) if isinstance(inner, UnreadFile) else inner
    return table
