"""Placeholders for values and files that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError
from .keys import Key, dotted

UNKNOWN = "UC106"


@dataclass(frozen=True)
class Unknown:
    """A value that cannot be read from the files, such as the result of a function call."""

    source: str
    advice: str
    reason: str = ""
    """A sentence, or '' if the value is only known at run time."""

    @property
    def problem(self) -> str:
        reason = self.reason or f"the value of {self.source:.60} is only known at run time."
        return f"{reason} {self.advice}"

    def __repr__(self) -> str:
        return self.source


@dataclass(frozen=True)
class UnreadFile:
    """A configuration file that cannot be read. The file might set any key."""

    place: str
    """The place that refers to this file, such as "train.yaml, line 1, _BASE_"."""

    problem: str
    advice: str
    is_outer: bool = False
    """Whether the unread file includes the parsed document."""

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}" if self.place else self.problem

    def error(self, keys: Sequence[Key]) -> ConfigError:
        return ConfigError(f"{self} A file that was not read might set {dotted(keys)}. {self.advice}".rstrip(), UNKNOWN)


class PartialTable(dict[Any, Any]):
    """A table that can lack keys, because one of the merged files cannot be read."""

    unread: UnreadFile

    @classmethod
    def of(cls, table: dict[Any, Any], unread: UnreadFile) -> PartialTable:
        partial = cls(table)
        partial.unread = unread
        return partial


def unread_around(data: Any) -> UnreadFile | None:
    unread = getattr(data, "unread", None)
    return unread if isinstance(unread, UnreadFile) and unread.is_outer else None
