"""Parse configuration files. Errors contain the file, the line and the key."""

from .document import BASE_KEYS, Document, inheriting
from .files import DOCUMENT_KINDS, dump, kind_of, parse, read_text
from .keys import Key, Unknown, dotted, format_value, infinity
from .yaml_text import Yaml12Number

__all__ = [
    "BASE_KEYS",
    "DOCUMENT_KINDS",
    "Document",
    "Key",
    "Unknown",
    "Yaml12Number",
    "dotted",
    "dump",
    "format_value",
    "infinity",
    "inheriting",
    "kind_of",
    "parse",
    "read_text",
]
