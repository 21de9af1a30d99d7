"""Inheritance for trainers that read a single configuration file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..document import Document
from ..merge import MergeRules
from ..unknown import UnreadFile
from .base_class import Inheritance, Parse
from .hydra_defaults import has_defaults

BASE_KEYS = ("_BASE_", "_base_")
ADVICE = "Import the whole configuration, as your program prints it."


class OneFile(Inheritance):
    def compose(self, document: Document, parse: Parse) -> Document:
        return document


def with_unread_bases(document: Document, inheritance: Inheritance) -> Document:
    """If the document names base files, make all missing keys unknown."""
    keys = [key for key in BASE_KEYS if document.shows(key) and _names_files(document.data[key])]
    keys += ["defaults"] if has_defaults(document) else []
    for key in keys:
        if key not in inheritance.keys and isinstance(document.data, dict):
            problem = "this trainer does not read the file that this key names."
            unread = UnreadFile(document.place([key], document.name), problem, ADVICE)
            return replace(document, data=MergeRules().merge(unread, document.data))
    return document


def _names_files(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(isinstance(text, str) for text in values)
