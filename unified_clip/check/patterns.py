"""Patterns of files in the table `check` of a clip configuration."""

from __future__ import annotations

import os
import re
from pathlib import Path


def matches(glob: str, path: Path, root: Path) -> bool:
    """Return whether the path of a file matches a pattern.

    The path is relative to `root`, with links followed. `root` itself must have no links in its path.
    """
    relative = Path(os.path.relpath(os.path.realpath(path), root)).as_posix()
    return pattern(glob, "[^/]*").fullmatch(relative) is not None


def pattern(glob: str, star: str) -> re.Pattern[str]:
    """Return a regular expression for a file pattern with *, ** and ?. `star`: the regular expression for *."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    texts = {"**/": "(?:.*/)?", "**": ".*", "*": star, "?": "[^/]"}
    return re.compile("".join(texts.get(part, re.escape(part)) for part in parts))


def advice(glob: str, root: Path) -> str:
    """Return the edit for a pattern without effect. If it names a directory, the edit adds `/**`."""
    if (root / glob).is_dir():
        return f'Write "{glob.rstrip("/")}/**" for all files below this directory, or remove the rule.'
    return "Remove the rule, or correct its path."
