"""Files whose paths a configuration contains, such as DeepSpeed's file in Hugging Face's TrainingArguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...._kit import atomic_files
from ..document import Document, Layer
from ..keys import Key
from ..merge import MergeRules
from ..unknown import Unknown
from .base_class import Files, Inheritance, Parse

MOST_FOLDERS = 8
"""The number of folders in which the file can be: the folder of the configuration, and its parents. A relative path
refers to the working directory of the training, which is unknown."""


SEVERAL = "the commands name several files."


@dataclass(frozen=True)
class NamedFile(Inheritance):
    at: tuple[str, ...]
    advice: str
    suffixes: tuple[str, ...] = (".json",)

    def applies(self, document: Document) -> bool:
        return self._text(document) is not None

    def compose(self, document: Document, parse: Parse) -> Document:
        text = self._text(document)
        if text is None:
            return document
        files = Files(document, parse, self.advice)
        path = self._find(document, files, text)
        if isinstance(path, Unknown):
            return replace(document, data=_with(document.data, self.at, path))
        named = files.parse(path, files.name(path))
        data = _with(document.data, self.at, named.data)
        return replace(document, data=data, layers=(Layer(document), Layer(named, self.at)))

    def _text(self, document: Document) -> str | None:
        value: Any = document.data
        for key in self.at:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, str) and value.strip() else None

    def _find(self, document: Document, files: Files, text: str) -> Path | Unknown:
        folder = (document.path or Path(document.name)).resolve().parent
        folders = [folder, *folder.parents][:MOST_FOLDERS]
        paths = list(dict.fromkeys((each / text).resolve() for each in folders if (each / text).is_file()))
        if not paths:
            problem = f"cannot find {text} in the folder of {document.name} or in a parent folder."
            return Unknown(text, self.advice, problem)
        others = [path for path in paths if atomic_files.read_bytes(path) != atomic_files.read_bytes(paths[0])]
        if others:
            names = " and ".join(files.name(path) for path in (paths[0], others[0]))
            raise document.wrong(
                self.at,
                f"{names} differ, and this key can name either file. In a copy of {document.name}, write the "
                "absolute path of the file that your program reads.",
            )
        return paths[0]


@dataclass(frozen=True)
class DefaultsFile(NamedFile):
    """A file with the defaults of a script's options, as in `train.py --config FILE`."""

    suffixes: tuple[str, ...] = (".yaml", ".yml")

    def applies(self, document: Document) -> bool:
        return document.kind == "args" and document.data.get(self.at[0]) is not None

    def compose(self, document: Document, parse: Parse) -> Document:
        if not self.applies(document):
            return document
        files = Files(document, parse, self.advice)
        text = self._text(document)
        path = self._find(document, files, text) if text else Unknown("", self.advice, SEVERAL)
        own = {key: value for key, value in document.data.items() if key != self.at[0]}
        if isinstance(path, Unknown):
            unread = files.unread(document, self.at, path.reason)
            return replace(document, data=MergeRules().merge(unread, own))
        named = files.parse(path, files.name(path))
        return replace(document, data=MergeRules().merge(named.data, own), layers=(Layer(named), Layer(document)))


def _with(data: Any, keys: Sequence[Key], value: Any) -> Any:
    if not keys:
        return value
    return {**data, keys[0]: _with(data[keys[0]], keys[1:], value)}
