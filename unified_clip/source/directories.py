"""Find the files that `unified-clip port` and `unified-clip config check` read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

INSTALLED = ("__pycache__", "node_modules", "site-packages")


def files_below(
    path: Path, suffixes: Sequence[str], has_kind: Callable[[Path], bool] = lambda file: False
) -> list[Path]:
    """Return the files with one of the lower-case `suffixes`, and all other files for which `has_kind` returns True.

    Skip hidden directories and installed packages. Also return the directories that cannot be read.
    """
    files = sorted(_below(path, tuple(suffixes), has_kind), key=lambda file: (not file.is_symlink(), file))
    return sorted({os.path.realpath(file): file for file in files}.values())  # resolve() fails for a link to itself


def _below(root: Path, suffixes: tuple[str, ...], has_kind: Callable[[Path], bool]) -> Iterator[Path]:
    unreadable: list[OSError] = []
    for name, folders, names in os.walk(root, onerror=unreadable.append):
        folder = Path(name)
        folders[:] = sorted(name for name in folders if not (name.startswith(".") or is_installed(folder / name)))
        paths = (folder / name for name in names if name.lower().endswith(suffixes) or has_kind(folder / name))
        # broken links are reported as unreadable. Pipes are skipped
        yield from (path for path in paths if path.is_file() or not path.exists())
    # as files, which cannot be read. A directory that was removed meanwhile is skipped
    yield from (Path(error.filename) for error in unreadable if not isinstance(error, FileNotFoundError))


def is_installed(folder: Path) -> bool:
    return folder.name in INSTALLED or (folder / "pyvenv.cfg").exists()
