"""Decide which files `config check` reads, and write notes on other files that might contain clips."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .._kit import atomic_files
from .._kit.atomic_files import FileError
from .._kit.display import counted
from ..config.documents import DOCUMENT_KINDS
from ..errors import ConfigError
from ..source.directories import files_below, is_installed
from .clip_use import shown
from .command_lines import SHELLS, has_shebang
from .python.notebooks import NOTEBOOK
from .rules import accepted, patterns
from .trainer_files import SOURCES, names_clip

SUFFIXES = (*DOCUMENT_KINDS, *SOURCES, *SHELLS)

MAX_BYTES = 1 << 20
"""The largest size of a file that is parsed. A larger file is only searched for names such as `max_grad_norm`."""

MAX_NOTEBOOK_BYTES = 64 << 20

TOO_LARGE = "It is larger than"

UNREAD = (
    ".j2", ".jinja", ".jinja2", ".tmpl", ".tpl", ".gin", ".jsonnet", ".libsonnet", ".cfg", ".conf", ".ini", ".txt",
    ".args", ".env", ".zsh", ".bat", ".ps1", "dockerfile", "justfile",
)  # fmt: skip
"""Endings of files that the check does not read. `notes` mentions such a file if its text mentions a clip."""

MAX_NAMED = 3
TOOL_DIRECTORIES = (".git", ".hg", ".svn", ".venv", ".tox", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache")
"""`notes` ignores files in these directories."""

REPORT = re.compile(
    rb'\s*(\{\s*"version": \d+,\s*"config": .*"wanted": .*"headline": '
    rb'|\{\s*"\$schema": "https://json.schemastore.org/sarif.*"name": "unified-clip"'
    rb'|\[\s*\{\s*"description": .*"check_name": "clip-'
    rb"|\[\s*\]\s*$)",
    re.DOTALL,
)
"""Matches a report of a check as JSON, as SARIF or for GitLab. `[]` is a report for GitLab without findings."""


def files(paths: Sequence[Path], clip: Path, declared: Sequence[str] = ()) -> list[Path]:
    """Return all files below `paths`, except the clip configuration.

    A file is listed once, even if several paths or links lead to it.

    declared: Patterns of files that are read whatever their suffix is.
    """
    root = clip.resolve().parent

    def has_kind(file: Path) -> bool:
        return has_shebang(file) or patterns.first_match(declared, file, root) != ""

    by_real_path = {Path(os.path.realpath(file)): file for path in paths for file in below(path, has_kind)}
    for own in (clip, accepted.file_of(clip)):
        by_real_path.pop(own.resolve(), None)
    return [by_real_path[file] for file in sorted(by_real_path)]


def below(path: Path, has_kind: Callable[[Path], bool] = has_shebang) -> list[Path]:
    """Return the files with a suffix of `SUFFIXES` below a directory. If `path` is a file, return only this file.

    Hidden directories, virtual environments and installed packages are skipped.
    """
    if not path.is_dir():
        atomic_files.check_regular(path)
        return [path]
    files = files_below(path, SUFFIXES, has_kind)
    if not files:
        suffixes = ", ".join(SUFFIXES)
        raise ConfigError(f"{path}: the directory has no file that ends in {suffixes}. Pass another path.", "UC108")
    return files


def unreadable(path: Path) -> str:
    try:
        with atomic_files.reading(path) as file:
            limit = MAX_NOTEBOOK_BYTES if path.suffix.lower() == NOTEBOOK else MAX_BYTES
            file.read(1)  # some files of /proc can only be opened
            return f"{TOO_LARGE} {limit >> 20} MiB." if os.fstat(file.fileno()).st_size > limit else ""
    except FileError as error:
        return f"The reason: {error.strerror}."


def is_report(path: Path) -> bool:
    try:
        return path.suffix.lower() in DOCUMENT_KINDS and REPORT.match(atomic_files.read_bytes(path)) is not None
    except OSError:
        return False


def notes(reports: Sequence[Path], paths: Sequence[Path], without_clip: Sequence[Path]) -> list[str]:
    """Return the notes on files that the check does not read or understand.

    without_clip: The documents and scripts without a clip.
    """
    names = ", ".join(map(shown, reports))
    texts = [f"The check does not read its own reports: {names}."] if reports else []
    folders = [path for path in paths if path.is_dir()]
    unread = sorted(file for folder in folders for file in _unread_below(folder) if names_clip(file))
    if unread:
        texts.append(f"The check does not read {counted(len(unread), 'file')} with a clip's name: {_some(unread)}.")
    if unknown := [file for file in without_clip if names_clip(file)]:
        files = counted(len(unknown), "file")
        texts.append(f"In {files} with a clip's name, the check found no number that sets a clip: {_some(unknown)}.")
    return texts


def _some(files: Sequence[Path]) -> str:
    more = f" and {len(files) - MAX_NAMED} more" if len(files) > MAX_NAMED else ""
    return f"{', '.join(map(shown, files[:MAX_NAMED]))}{more}"


def _unread_below(root: Path) -> Iterator[Path]:
    """Yield the files of kinds that the check does not read, and the files in hidden directories."""
    for name, folders, names in os.walk(root):
        folder = Path(name)
        folders[:] = [each for each in folders if each not in TOOL_DIRECTORIES and not is_installed(folder / each)]
        is_hidden = any(part.startswith(".") for part in folder.relative_to(root).parts)
        ends = (*SUFFIXES, *UNREAD) if is_hidden else UNREAD
        yield from (folder / each for each in names if each.lower().endswith(ends))
