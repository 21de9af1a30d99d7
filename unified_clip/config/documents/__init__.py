"""Parse configuration files. Errors contain the file, the line and the key."""

from .document import Document, Layer
from .files import DOCUMENT_KINDS, dump, kind_of, parse, read_text
from .keys import Key, dotted, format_value, infinity
from .unknown import PartialTable, Unknown, UnreadFile
from .yaml_text import Yaml12Number

__all__ = [
    "DOCUMENT_KINDS",
    "Document",
    "Key",
    "Layer",
    "PartialTable",
    "Unknown",
    "UnreadFile",
    "Yaml12Number",
    "dotted",
    "dump",
    "format_value",
    "infinity",
    "kind_of",
    "parse",
    "read_text",
]
