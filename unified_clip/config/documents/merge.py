"""Merge the data of a file with the data of its base files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .keys import Key
from .unknown import PartialTable, Unknown, UnreadFile


class MergeError(Exception):
    """The trainer rejects a table, because the base file's value at the same key is not a table."""

    def __init__(self, keys: tuple[Key, ...]) -> None:
        super().__init__(keys)
        self.keys = keys


@dataclass(frozen=True)
class MergeRules:
    delete_key: str = ""
    """If a table sets this key to true, as in `_delete_=True`, the table replaces the base file's table."""

    keeps_missing: bool = False
    """Whether a key with the value "???" keeps the value of the base file, as in Hydra."""

    is_strict: bool = False

    def merge(self, lower: Any, upper: Any, path: tuple[Key, ...] = ()) -> Any:
        """Merge `upper` onto `lower`. A table that is merged onto an `UnreadFile` becomes a `PartialTable`."""
        if not isinstance(upper, dict):
            return upper
        deletes = upper.get(self.delete_key) if self.delete_key else None
        if isinstance(deletes, Unknown):
            return deletes
        if deletes:
            return {key: value for key, value in upper.items() if key != self.delete_key}
        if not isinstance(lower, dict | UnreadFile):
            return upper
        unread = lower if isinstance(lower, UnreadFile) else lower.unread if isinstance(lower, PartialTable) else None
        result = {} if isinstance(lower, UnreadFile) else dict(lower)
        for key, value in upper.items():
            if key == self.delete_key or (self.keeps_missing and value == "???" and (key in result or unread)):
                continue
            below = result.get(key, unread)
            if isinstance(below, Unknown):
                below = UnreadFile("", below.problem, "")
            is_table = isinstance(value, dict) and not value.get(self.delete_key)
            if self.is_strict and is_table and key in result and not isinstance(below, dict | UnreadFile):
                raise MergeError((*path, key))
            is_new = key not in result and unread is None  # a new table keeps its key `_delete_`
            result[key] = value if is_new else self.merge(below, value, (*path, key))
        return result if unread is None else PartialTable.of(result, unread)
