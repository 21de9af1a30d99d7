"""Temporary directories. A later process of the same user removes the directory of a killed process."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

PREFIX = "unified_clip_"

LOCK = ".lock"
"""A process and its workers lock this file in their temporary directory until they end."""


class Scratch:
    def __init__(self, purpose: str) -> None:
        _remove_abandoned_once(tempfile.gettempdir())
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}_"))
        self.lock = _create_lock(self.path)
        """The file descriptor of the lock, which workers inherit, or None if the file system has no locks."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def remove_abandoned(directory: str) -> None:
    if fcntl is None:
        return
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):  # another process was faster, or the directory is another user's
                    if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                        _remove_if_unlocked(Path(entry.path))


_remove_abandoned_once = cache(remove_abandoned)


def _remove_if_unlocked(path: Path) -> None:
    """Raise OSError if a process holds the lock, or if the directory has no lock."""
    assert fcntl is not None
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _create_lock(path: Path) -> int | None:
    if fcntl is None:
        return None
    descriptor, name = tempfile.mkstemp(dir=path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:  # not on this file system
        os.close(descriptor)
        return None
    Path(name).rename(path / LOCK)  # last, so that no process sees the file unlocked
    return descriptor
