"""Write a file under a temporary name, and rename the file when it is complete."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NUMBERS = itertools.count()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    new = temporary_path(path)
    try:
        yield new
        new.replace(path.resolve())
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def temporary_path(path: Path) -> Path:
    # Not made from the name of `path`: a longer name might exceed a limit of the file system.
    return path.resolve().with_name(f".unified-clip.{os.getpid()}.{next(NUMBERS)}")
