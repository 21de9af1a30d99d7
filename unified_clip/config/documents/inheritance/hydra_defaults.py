"""Parse the `defaults` list of a Hydra configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..document import Document
from ..keys import format_value

SELF, GROUP = "_self_", "_group_"
HEADER = re.compile(r"^\s*#\s*@package\s+(\S+)\s*$")


@dataclass(frozen=True)
class Default:
    """An entry of a `defaults` list, such as `override /trainer@fit: gpu`."""

    index: int
    """The index in the list, or -1 for the entry `_self_` that Hydra adds."""

    group: str
    """The folder of the chosen file, such as "trainer" for `/trainer: gpu` or `trainer/gpu`."""

    names: tuple[str, ...]
    """The chosen files, such as ("gpu",) for `trainer: gpu`."""

    package: str | None
    """The package after `@`, such as "fit" for `trainer@fit: gpu`, or None for Hydra's default package."""

    is_absolute: bool
    is_override: bool = False
    is_optional: bool = False
    is_group: bool = field(default=True)
    """Whether the entry chooses a file of a group."""

    @property
    def is_self(self) -> bool:
        return self.names == (SELF,) and not self.is_group

    @property
    def relative_package(self) -> str:
        return self.group.replace("/", ".") if self.package is None else self.package

    @property
    def is_of_hydra(self) -> bool:
        return self.group == "hydra" or self.group.startswith("hydra/")


def has_defaults(document: Document) -> bool:
    """Return whether a file has a valid `defaults` list."""
    value = document.data.get("defaults") if isinstance(document.data, dict) else None
    entries = value if isinstance(value, list) else [0]
    return all(isinstance(entry, str) or (isinstance(entry, dict) and len(entry) == 1) for entry in entries)


def defaults(document: Document) -> list[Default]:
    """Return the entries of the `defaults` list of a file. A missing entry `_self_` is added at the end."""
    entries = list(_entries(document)) if document.shows("defaults") and has_defaults(document) else []
    if not any(entry.is_self for entry in entries):
        entries.append(Default(-1, "", (SELF,), None, False, is_group=False))
    return entries


def _entries(document: Document) -> Iterator[Default]:
    for index, entry in enumerate(document.data["defaults"]):
        if isinstance(entry, str):
            words, group, name = _words(entry)
            folder, _, file = name.strip("/").rpartition("/")
            names: tuple[str, ...] = (file,)
            is_group, is_absolute = False, name.startswith("/")
        else:
            ((text, value),) = entry.items()
            words, group, name = _words(str(text))
            folder, is_group, is_absolute = name.strip("/"), True, name.startswith("/")
            values = value if isinstance(value, list) else [] if value is None else [value]
            if not all(isinstance(each, str | int | float) for each in values):
                keys = ("defaults", index)
                raise document.wrong(keys, f"{format_value(value)} is not the name of a file. Give a name, or null.")
            names = tuple(str(each) for each in values)
        names = tuple(re.sub(r"\.ya?ml$", "", each) for each in names)
        yield Default(
            index, folder, names, group, is_absolute, "override" in words, "optional" in words, is_group=is_group
        )


def _words(text: str) -> tuple[set[str], str | None, str]:
    """Split "override /group@package" into ({"override"}, "package", "/group")."""
    *words, rest = text.split() or [""]
    name, at, package = rest.partition("@")
    return set(words), (package.partition(":")[2] or package) if at else None, name


def package_header(text: str) -> str | None:
    """Return the package in the comment `# @package NAME` at the top of a file."""
    for line in text.splitlines():
        if match := HEADER.match(line):
            return None if match[1] == GROUP else match[1]
        if line.strip() and not line.lstrip().startswith("#"):
            return None
    return None
