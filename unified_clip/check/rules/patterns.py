"""Match files with the patterns in the table `check` of a clip configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

HERE = re.compile(r"^(\./+)+")

BACKSLASH = "\\"


def matches(glob: str, path: Path, root: Path) -> bool:
    """Return whether a pattern matches the path from `root` to a file.

    The function resolves symbolic links in `path`. `root` must be a path without symbolic links.
    """
    return as_regex(HERE.sub("", glob), "[^/]*").fullmatch(relative(path, root)) is not None


def first_match(globs: Iterable[str], path: Path, root: Path) -> str:
    return next((glob for glob in globs if matches(glob, path, root)), "")


def relative(path: Path, root: Path) -> str:
    """Return the path from `root` to a file, with "/" on all systems. Symbolic links in `path` are resolved first."""
    return Path(os.path.relpath(os.path.realpath(path), root)).as_posix()


def is_near(one: Path, other: Path, root: Path) -> bool:
    """Return whether two files probably belong to one project.

    The folder of one file must contain the other file, or both files must share a folder below `root`.
    """
    folders = [_real_folder(os.path.abspath(path.parent)) for path in (one, other)]  # noqa: PTH100
    shared = os.path.commonpath(folders)
    return shared in folders or (shared != str(root) and Path(shared).is_relative_to(root))


@cache
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def as_regex(glob: str, star: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    texts = {"**/": "(?:.*/)?", "**": ".*", "*": star, "?": "[^/]"}
    return re.compile("".join(texts.get(part, re.escape(part)) for part in parts))


def advice(glob: str, root: Path, wrong: str = "") -> str:
    """Return advice for a pattern that has no effect.

    wrong: For an entry of `check.ignore`, the key that might be wrong, such as "path". Otherwise ''.
    """
    whole, correct = ("entry", f"its {wrong}") if wrong else ("pattern", "it")
    if BACKSLASH in glob:
        return f'Write / in patterns on all systems. Write "{glob.replace(BACKSLASH, "/")}", or remove the {whole}.'
    if Path(glob).is_absolute():
        path = relative(Path(glob), root)
        return f'Write "{path}", the path relative to the clip configuration. Or remove the {whole}.'
    if (root / glob).is_dir():
        return f'Write "{glob.rstrip("/")}/**" for all files below this directory, or remove the {whole}.'
    return f"Remove the {whole}, or correct {correct}."
