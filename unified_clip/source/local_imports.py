"""Find the files of a project that a file imports. The files are searched, not parsed, to be fast in large projects."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from .frameworks import FRAMEWORKS

PROJECT_DEPTH = 6
"""The number of parent folders to search for an imported module."""

IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import\b[ \t]*(\([^)]{0,5000}|[^\n#;]*)|import[ \t]+([^\n#;]+))",
    re.MULTILINE,
)


def imported_files(path: Path, content: bytes, object_name: str | None = None) -> Iterator[tuple[Path, str]]:
    """Yield (file, imported name). The name is empty for a module.

    object_name: Only follow imports that may bind this name. None follows all imports.
    """
    for match in IMPORT.finditer(content):
        for name, bound in _names(*(part or b"" for part in match.groups())):
            if object_name is None or (object_name and bound in (object_name, "*")):
                file, rest = file_of(name, path)
                if file is not None:
                    yield file, object_name or "*" if rest == "*" else rest


def _names(package: bytes, objects: bytes, modules: bytes) -> Iterator[tuple[str, str]]:
    """Yield (full name, bound name) for each object or module in an import statement."""
    start = package.decode("utf-8", "replace")
    for part in (objects or modules).decode("utf-8", "replace").strip(" \t(").split(","):
        lines = [line.partition("#")[0] for line in part.splitlines()]
        if words := " ".join(lines).split():
            yield f"{start}.{words[0]}" if start.strip(".") else start + words[0], words[-1] if start else ""


def file_of(name: str, path: Path) -> tuple[Path | None, str]:
    """Return (file of a module, ''), or (file of the module that defines the object, name of the object).

    `path` is the file with the import. Modules outside of its project are ignored.
    """
    dots = len(name) - len(name.lstrip("."))
    *package, last = name.lstrip(".").split(".")
    first = (*package, last)[0]
    if not dots and first in FRAMEWORKS:
        return None, ""
    folders = searched_folders(path.absolute().parent)
    for folder, names in folders[dots - 1 : dots] if dots else folders:
        if not dots and not names & {first, f"{first}.py"}:
            continue
        module, owner = folder.joinpath(*package, last), folder.joinpath(*package)
        files = [(module.with_name(f"{last}.py"), ""), (module / "__init__.py", "")]
        files += [(owner.with_name(f"{owner.name}.py"), last)] if package else []
        files += [(owner / "__init__.py", last)] if package or dots else []
        for file, rest in files:
            if file != path.absolute() and file.is_file():
                return file, rest
    return None, ""


@functools.cache
def searched_folders(folder: Path) -> Sequence[tuple[Path, frozenset[str]]]:
    """Return the folders to search for modules, with the names in each folder: up to the root of the repository."""
    folders = []
    for outer in [folder, *folder.parents][:PROJECT_DEPTH]:
        names = frozenset(file.name for file in outer.iterdir()) if os.access(outer, os.R_OK) else frozenset[str]()
        folders.append((outer, names))
        if ".git" in names:
            break
    return folders
