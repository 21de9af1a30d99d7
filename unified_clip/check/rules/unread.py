"""Count the files that may contain clips, but that the check does not read: templates and hidden files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...port.source_files import SKIPPED as INSTALLED
from ..clip_use import shown
from ..trainer_files import names_clip
from .required import SUFFIXES

KINDS = (".j2", ".jinja", ".jinja2", ".tmpl", ".tpl", ".gin", ".jsonnet", ".libsonnet")
"""The suffixes of files that may contain clips, and are not read."""

OTHER_KINDS = (".cfg", ".conf", ".ini", ".txt", ".args", ".env", "dockerfile")
"""The ends of names of files that rarely contain clips. They count only if their text names a clip."""

HIDDEN = "in hidden directories"
SKIPPED = (".git", ".hg", ".svn", ".venv", ".tox", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache")
"""Hidden directories without code of the project."""


def note(paths: Sequence[Path]) -> list[str]:
    """Return a list with one note: the numbers of files that are not read, by kind. Return [] if there are none.

    Files below the directories in `paths` count if they may contain clips.
    """
    files = {file: kind for path in paths if path.is_dir() for file, kind in _below(path)}
    if not files:
        return []
    counts = Counter(files.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    naming = sorted(file for file in files if names_clip(file))
    names = f" Files that name a clip: {len(naming)}, such as {shown(naming[0])}." if naming else ""
    return [f"Files that may contain clips, but are not read: {kinds}.{names}"]


def _below(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield (file, kind) for each file below a directory that may contain clips, and that the check does not read.

    A file in a hidden directory has the kind HIDDEN.
    """
    for name, folders, names in os.walk(root):
        folder = Path(name)
        folders[:] = [each for each in folders if each not in SKIPPED and not _is_installed(folder / each)]
        is_hidden = any(part.startswith(".") for part in folder.relative_to(root).parts)
        for file in (folder / each for each in names):
            kind = file.suffix.lower()
            if is_hidden and file.name.lower().endswith((*SUFFIXES, *KINDS)) and names_clip(file):
                yield file, HIDDEN
            elif not is_hidden and kind in KINDS:
                yield file, kind
            elif not is_hidden and file.name.lower().endswith(OTHER_KINDS) and names_clip(file):
                yield file, kind or file.name


def _is_installed(folder: Path) -> bool:
    return folder.name in INSTALLED or (folder / "pyvenv.cfg").exists()
