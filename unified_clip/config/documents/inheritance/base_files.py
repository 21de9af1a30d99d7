"""Merge the base files that a top-level key such as `_BASE_` lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..document import Document, Layer
from ..keys import Key, format_value
from ..merge import MergeError, MergeRules
from ..unknown import Unknown, UnreadFile
from .base_class import Files, Inheritance, Parse

PLAIN = MergeRules()


@dataclass(frozen=True)
class BaseFiles(Inheritance):
    """Merges the base files in the order of the list at `key`, and merges the file itself last."""

    key: str
    advice: str
    rules: MergeRules = PLAIN
    takes_text: bool = True

    @property
    def keys(self) -> Sequence[str]:  # type: ignore[override]
        return (self.key,)

    defaults: str = ""
    """The name of the trainer's file of defaults. This file can be missing."""

    folder: str = ""
    """The name of a parent folder in which the trainer also searches base files."""

    def compose(self, document: Document, parse: Parse) -> Document:
        return self._load(document, Files(document, parse, self.advice), ())

    def _load(self, document: Document, files: Files, above: tuple[Path, ...]) -> Document:
        if not self.applies(document):
            return document
        above = (*above, document.path or Path(document.name))
        bases: list[Document | UnreadFile] = []
        references = list(self.references(document))
        for keys, text in references:
            base = self._open(document, keys, text, files, above)
            if isinstance(base, UnreadFile) and self.defaults and text.rpartition("/")[2] == self.defaults:
                base = Document(text, "", document.kind, {})
            bases.append(base if isinstance(base, UnreadFile) else self._load(base, files, above))
        lower = self.merge_bases(document, bases, [keys for keys, _ in references])
        documents = [base for base in bases if isinstance(base, Document) and base.path]
        layers = [layer for base in documents for layer in base.layers or [Layer(base)]]
        return replace(document, data=self.combine(document, lower), layers=(*layers, Layer(document)))

    def merge_bases(
        self, document: Document, bases: Sequence[Document | UnreadFile], keys: Sequence[Sequence[Key]]
    ) -> Any:
        """Return the merged data of all base files, or an `UnreadFile` if the last base file cannot be read."""
        lower: Any = {}
        for index, base in enumerate(bases):
            lower = base if isinstance(base, UnreadFile) else self._merge(document, keys[index], lower, base.data)
        return lower

    def combine(self, document: Document, bases: Any) -> Any:
        own = {key: value for key, value in document.data.items() if key != self.key}
        return self._merge(document, (), bases, own)

    def path(self, text: str, folder: Path) -> Path | str:
        if "://" in text:
            return f"{text} is on another machine."
        path = folder / Path(text).expanduser()
        above = [parent / text for parent in folder.resolve().parents if self.folder and parent.name == self.folder]
        return next((each for each in above if each.is_file()), path) if not path.is_file() else path

    def _open(
        self, document: Document, keys: Sequence[Key], text: str, files: Files, above: tuple[Path, ...]
    ) -> Document | UnreadFile:
        path = self.path(text, above[-1].parent)
        if isinstance(path, str):
            return files.unread(document, keys, path)
        base = files.open(document, keys, path, above)
        if isinstance(base, Document) and not isinstance(base.data, dict):
            raise base.wrong(
                (), f"this file has no keys, but it is a base file of {document.name}. Add keys and values."
            )
        return base

    def references(self, document: Document) -> Iterator[tuple[list[Key], str]]:
        value = document.data[self.key]
        if isinstance(value, Unknown):
            raise document.wrong([self.key], value.problem)
        if isinstance(value, str) and self.takes_text:
            yield [self.key], value
            return
        if not isinstance(value, list):
            raise document.wrong([self.key], f"{format_value(value)} is not a list of paths. Give a list.")
        for index, text in enumerate(value):
            if not isinstance(text, str):
                raise document.wrong([self.key, index], f"{format_value(text)} is not a path. Give a path as text.")
            yield [self.key, index], text

    def _merge(self, document: Document, keys: Sequence[Key], lower: Any, upper: Any) -> Any:
        try:
            return self.rules.merge(lower, upper)
        except MergeError as error:
            raise document.wrong(
                keys or error.keys,
                "training fails, because this key is a table here, but not in the base file. Give the key the same "
                "type in both files.",
            ) from None
