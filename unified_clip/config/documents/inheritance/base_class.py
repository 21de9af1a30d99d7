"""How trainers combine a file with its base files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..document import Document
from ..keys import Key
from ..unknown import UnreadFile

Parse = Callable[[Path, str], Document]
"""Parses a file. The string is the name of the file in error messages."""

MOST_FILES = 200


class Inheritance(ABC):
    keys: Sequence[str] = ()
    """The top-level keys that list other files."""

    def applies(self, document: Document) -> bool:
        return any(document.shows(key) for key in self.keys)

    @abstractmethod
    def compose(self, document: Document, parse: Parse) -> Document:
        """Merge a file with its base files, and resolve its interpolations.

        All keys that a missing base file might set become unknown.
        """


class OneFile(Inheritance):
    def compose(self, document: Document, parse: Parse) -> Document:
        return document


@dataclass
class Files:
    main: Document
    parse: Parse
    advice: str
    opened: int = field(default=0, init=False)

    def open(
        self, document: Document, keys: Sequence[Key], path: Path, above: Sequence[Path] = ()
    ) -> Document | UnreadFile:
        if path.resolve() in [other.resolve() for other in above]:
            chain = " -> ".join(self.name(other) for other in [*above, path])
            raise document.wrong(
                keys, f"these files include each other in a circle: {chain}. Remove one of these references."
            )
        if not path.is_file():
            name = self.name(path)
            return self.unread(document, keys, f"{name} is a folder." if path.is_dir() else f"cannot find {name}.")
        self.opened += 1
        if self.opened > MOST_FILES:
            raise document.wrong(keys, f"the configuration has more than {MOST_FILES} base files. Use fewer.")
        return self.parse(path, self.name(path))

    def unread(self, document: Document, keys: Sequence[Key], problem: str) -> UnreadFile:
        return UnreadFile(document.place(keys, document.name), problem, self.advice)

    def name(self, path: Path) -> str:
        if self.main.path is None:
            return path.as_posix()
        return Path(os.path.relpath(path, self.main.path.parent)).as_posix()
