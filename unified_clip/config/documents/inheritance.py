"""Whether a file inherits settings from other files: by `_BASE_` or `_base_`, or as Hydra composes files.

Each file is read on its own. A file that inherits, and that does not set the threshold, has no clip of its own.
"""

from __future__ import annotations

import re
from typing import Any

from .document import Document
from .keys import Key, Unknown

BASE_KEYS = ("_BASE_", "_base_")

HEADER = re.compile(r"\s*(#.*\n\s*)*#\s*@package\s+(?!_group_)\S")
"""Matches the comment with which Hydra merges a file into another table than the one of its folder."""


def inheriting(document: Document) -> tuple[Key, ...] | None:
    """Return the key that names other files, () if a comment of Hydra shows that there are others, or None."""
    data = document.data if isinstance(document.data, dict) else {}
    for key in BASE_KEYS:
        if _names_files(data.get(key)):
            return (key,)
    if _is_composed(data.get("defaults")):
        return ("defaults",)
    return () if document.kind == "yaml" and HEADER.match(document.text) else None


def _names_files(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return isinstance(value, Unknown) or (bool(values) and all(isinstance(text, str) for text in values))


def _is_composed(defaults: Any) -> bool:
    """Return whether a `defaults` list names files of the program, and not only of Hydra itself."""
    entries = defaults if isinstance(defaults, list) else []
    names = [next(iter(entry)) if isinstance(entry, dict) and len(entry) == 1 else entry for entry in entries]
    if not all(isinstance(name, str) and name.strip() for name in names):
        return False
    groups = [name.split()[-1].strip("/").partition("/")[0] for name in names]  # without words such as `override`
    return any(group not in ("_self_", "hydra") for group in groups)
