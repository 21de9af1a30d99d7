"""Base files of a configuration in Python: the files in `_base_`, or the imports in `with read_base():`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ...documents import Document, Key, PartialTable, UnreadFile
from ...documents.inheritance.base_files import BaseFiles
from ...documents.merge import MergeRules
from .source import BASES, WHOLE, parse, reads_base, statements

RULES = MergeRules(delete_key="_delete_", is_strict=True)
FOLDER = re.compile(r"\{\{\s*fileDirname\s*\}\}")


class Import(NamedTuple):
    path: str
    """A path relative to the importing file, or the name of a module in an installed package."""

    names: dict[str, str] | None
    """Maps each imported name to its name in the base file. None means that all names are imported."""


@dataclass(frozen=True)
class ConfigBases(BaseFiles):
    key: str = BASES
    advice: str = WHOLE
    rules: MergeRules = RULES

    def references(self, document: Document) -> Iterator[tuple[list[Key], str]]:
        if imports := _imports(document):
            for each in imports:
                yield [self.key], each.path
            return
        for keys, text in super().references(document):
            folder = (document.path or Path(document.name)).resolve().parent
            yield keys, FOLDER.sub(folder.as_posix(), text)

    def path(self, text: str, folder: Path) -> Path | str:
        if "::" in text or not text.endswith((".py", ".json", ".yaml", ".yml")):
            return f"{text} is in an installed package. unified_clip does not read packages."
        return super().path(text, folder)

    def merge_bases(
        self, document: Document, bases: Sequence[Document | UnreadFile], keys: Sequence[Sequence[Key]]
    ) -> Any:
        imports = _imports(document)
        names: dict[str, Any] = {}
        unread = None
        for index, base in enumerate(bases):
            if isinstance(base, UnreadFile):
                unread = unread or base
                continue
            data = _imported(base.data, imports[index]) if imports else base.data
            repeated = sorted(names.keys() & data.keys())
            if repeated and not imports:
                raise document.wrong(
                    keys[index],
                    f"training fails, because two base files set {repeated[0]}. Keep {repeated[0]} in one file only.",
                )
            names |= data
            if isinstance(data, PartialTable):
                unread = unread or data.unread
        return names if unread is None else PartialTable.of(names, unread)

    def combine(self, document: Document, bases: Any) -> Any:
        if _imports(document):
            own = parse(document.text, document.name, bases).data
            data = bases | {key: value for key, value in own.items() if key != self.key}
            return PartialTable.of(data, bases.unread) if isinstance(bases, PartialTable) else data
        own = parse(document.text, document.name, {self.key: bases})
        own.get(self.key)  # raises an error if a statement changes the base files' data in another way
        return super().combine(replace(own, path=document.path), bases)


def _imported(data: dict[str, Any], statement: Import) -> dict[str, Any]:
    if statement.names is None:
        return data
    names = {new: data[name] for new, name in statement.names.items() if name in data}
    return PartialTable.of(names, data.unread) if isinstance(data, PartialTable) else names


def _imports(document: Document) -> list[Import]:
    imports = []
    for statement in statements(document.text, document.name):
        for node in statement.body if isinstance(statement, ast.With) and reads_base(statement) else []:
            if isinstance(node, ast.ImportFrom) and node.module:
                names = (
                    None if node.names[0].name == "*" else {each.asname or each.name: each.name for each in node.names}
                )
                path = "../" * (node.level - 1) + node.module.replace(".", "/") + ".py" if node.level else node.module
                imports.append(Import(path, names))
    return imports
