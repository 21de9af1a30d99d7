"""Find the files of a project that a file imports. The files are searched, not parsed, to be fast in large projects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ..catalog import FRAMEWORKS

PROJECT_DEPTH = 6
"""The number of parent folders to search for an imported module."""

IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import\b[ \t]*(\([^)]{0,5000}|[^\n#;]*)|import[ \t]+([^\n#;]+))",
    re.MULTILINE,
)


def imported_files(path: Path, content: bytes, wanted: str | None = None) -> Iterator[tuple[Path, str]]:
    """Yield (file, imported name). The name is empty for a module.

    wanted: Only follow imports that may bind this name. None follows all imports.
    """
    for match in IMPORT.finditer(content):
        for name, bound in _names(*(part or b"" for part in match.groups())):
            if wanted is None or (wanted and bound in (wanted, "*")):
                file, rest = file_of(name, path)
                if file is not None:
                    yield file, wanted or "*" if rest == "*" else rest


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
    if not dots and [*package, last][0] in FRAMEWORKS:
        return None, ""
    folders = list(path.absolute().parents)[:PROJECT_DEPTH]
    for folder in folders[dots - 1 : dots] if dots else folders:
        module, owner = folder.joinpath(*package, last), folder.joinpath(*package)
        files = [(module.with_name(f"{last}.py"), ""), (module / "__init__.py", "")]
        files += [(owner.with_name(f"{owner.name}.py"), last)] if package else []
        files += [(owner / "__init__.py", last)] if package or dots else []
        for file, rest in files:
            if file != path.absolute() and file.is_file():
                return file, rest
        if (folder / ".git").exists():
            break
    return None, ""
