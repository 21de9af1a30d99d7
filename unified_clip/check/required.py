"""Find the paths of a command, and the patterns of `check.require`, that have no clip."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from .._coded_error import CodedError
from ..config.documents import KINDS
from ..config.formats import convert
from ..errors import ConfigError
from ..port.source_files import files_below
from . import patterns
from .clip_use import Found
from .trainer_files import PYTHON, SHELL

SUFFIXES = (*KINDS, PYTHON, SHELL)


class NothingFoundError(CodedError, code="UC108"):
    """The error of a check that finds no clip where one is required."""


def below(path: Path) -> list[Path]:
    """Return the files to check at a path: the file itself, or the files with one of `SUFFIXES` below a directory.

    ConfigError: the path does not exist, or the directory has no such file.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError(f"{path}: no such file or directory. Correct the path.", "UC108")
    files = files_below(path, SUFFIXES)
    if not files:
        suffixes = ", ".join(SUFFIXES)
        raise ConfigError(f"{path}: the directory has no file that ends in {suffixes}. Pass another path.", "UC108")
    return files


def check(clip: Path, required: Sequence[str], paths: Sequence[Path], files: Sequence[Path], found: Found) -> list[str]:
    """Check that each path, and each pattern of `check.require`, has a file with a clip.

    A pattern for files outside `paths` is not checked. Return a note for each.

    clip: The file of the clip configuration. required: The patterns. paths: The paths that the user passed.
    files: The checked files. found: The clips in these files.

    NothingFoundError: a path or a pattern has no file with a clip.
    """
    clipping = found.files | {
        os.path.realpath(file) for use in found.uses for file in (use.path, use.read) if file is not None
    }
    problems = list(_paths_without_clip(clip, paths, files, clipping))
    if problems and found.unread:
        problems.append(f"Files that could not be read: {found.unread}.")
    root, notes = clip.resolve().parent, []
    for index, glob in enumerate(required):
        matching = [file for file in files if patterns.matches(glob, file, root)]
        if any(os.path.realpath(file) in clipping for file in matching):
            continue
        if not matching and not _covers(paths, root, glob):
            notes.append(f"check.require: {glob!r} is not checked, since no path contains it.")
            continue
        problem = f"none of {len(matching)} files that match {glob!r} has a clip. Restore the clip, or remove the rule."
        if not matching:
            problem = f"no checked file matches {glob!r}. {patterns.advice(glob, root)}"
        document = convert.named(clip, convert.UNIFIED_CLIP)[1]
        problems.append(str(document.wrong(("check", "require", index), problem)))
    if problems:
        raise NothingFoundError(" ".join(problems))
    return notes


def _paths_without_clip(clip: Path, paths: Sequence[Path], files: Sequence[Path], clipping: set[str]) -> Iterator[str]:
    """Yield a sentence with a remedy for each path that has no file in `clipping`.

    clip, paths, files: As for `check`. clipping: The real paths of the files with a clip.
    """
    for path in paths:
        inner = files if len(paths) == 1 else below(path)
        real = {os.path.realpath(file) for file in inner} - {os.path.realpath(clip)}
        if not real & clipping:
            yield f"{path}: none of {len(real)} files has a clip. Restore the clip, or pass other paths."


def _covers(paths: Sequence[Path], root: Path, glob: str) -> bool:
    """Return whether one of `paths` contains the directory or file that a pattern names before its first wildcard."""
    fixed = re.split(r"[*?]", glob)[0]
    folder = root / (fixed if fixed == glob else fixed.rpartition("/")[0])
    return any(Path(os.path.realpath(folder)).is_relative_to(path.resolve()) for path in paths)
