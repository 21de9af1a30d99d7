"""Configuration files as data. Errors name the file, the line and the path of a key."""

from .document import Document
from .files import KINDS, dump, kind_of, parse, read_text
from .keys import Key, dotted, format_value

__all__ = ["KINDS", "Document", "Key", "dotted", "dump", "format_value", "kind_of", "parse", "read_text"]
