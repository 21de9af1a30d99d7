"""The files below a directory that `unified-clip port` and `unified-clip config check` read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

INSTALLED = ("__pycache__", "node_modules", "site-packages")
"""The names of directories whose files are not the project's own. Commands skip these directories."""


def files_below(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the files with these suffixes below a directory, sorted by path. Broken links count as files.

    Leave out hidden directories, virtual environments and installed packages. List a file with several links once.

    suffixes: In lower case. They also match names in upper case.

    OSError: a directory cannot be read.
    """
    files = sorted(_below(path, tuple(suffixes)), key=lambda file: (not file.is_symlink(), file))
    return sorted({os.path.realpath(file): file for file in files}.values())  # resolve() fails for a link to itself


def _below(root: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    for name, folders, names in os.walk(root, onerror=_fail):
        folder = Path(name)
        folders[:] = sorted(name for name in folders if not (name.startswith(".") or is_installed(folder / name)))
        paths = (folder / name for name in names if name.lower().endswith(suffixes))
        # broken links are reported as unreadable; pipes are skipped
        yield from (path for path in paths if path.is_file() or not path.exists())


def _fail(error: OSError) -> None:
    """Raise the error of a directory that cannot be read, instead of skipping it.

    Ignore a directory that was removed.
    """
    if not isinstance(error, FileNotFoundError):
        raise error


def is_installed(folder: Path) -> bool:
    """Return whether a directory has a virtual environment, installed packages or compiled modules."""
    return folder.name in INSTALLED or (folder / "pyvenv.cfg").exists()
