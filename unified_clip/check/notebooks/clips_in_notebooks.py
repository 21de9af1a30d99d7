"""Find clips in cells that are not Python, and report each clip of a notebook with its cell and line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..._kit import atomic_files
from .. import command_lines
from ..clip_use import ClipUse
from ..trainer_files import text_names_clip
from . import cells
from .cells import NOTEBOOK, Notebook, NotebookError

LINE = re.compile(r"(?:(?P<file>[\w.-]+\.\w+), )?(?P<word>[Ll])ine (?P<line>\d+)")
"""Matches a line number in the reason of a finding, such as "line 3" or "train.py, line 3"."""

NOT_PYTHON = (
    "This cell mentions a clip, but is not valid Python. Correct the cell, or add the cell to check.ignore with a "
    "reason."
)
NO_NOTEBOOK = (
    "{reason} The file mentions a clip. Save the notebook again, or add the notebook to check.ignore with a reason."
)


def clips_outside_python(path: Path) -> list[ClipUse]:
    """Return the clips in the command lines of a notebook, and in its cells that are not Python.

    For an invalid notebook that mentions a clip, return one clip of unknown effect.
    """
    if path.suffix.lower() != NOTEBOOK:
        return []
    try:
        notebook = cells.read(path)
    except NotebookError as error:
        is_named = text_names_clip(atomic_files.read_bytes(path))
        return [ClipUse(path, 1, 1, "notebook", why_unknown=NO_NOTEBOOK.format(reason=error))] if is_named else []
    uses = command_lines.clips(path, notebook.commands)
    return uses + [
        ClipUse(path, line, 1, "cell", why_unknown=NOT_PYTHON)
        for line, text in notebook.other.items()
        if text_names_clip(text.encode())
    ]


def with_cells(uses: Sequence[ClipUse]) -> Iterator[ClipUse]:
    notebooks: dict[Path, Notebook] = {}
    for use in uses:
        if use.path.suffix.lower() != NOTEBOOK or use.clip == "notebook":
            yield use
            continue
        if use.path not in notebooks:
            notebooks[use.path] = cells.read(use.path)
        yield _placed(use, notebooks[use.path])


def _placed(use: ClipUse, notebook: Notebook) -> ClipUse:
    place = _place(notebook, use.line)
    words = f"cell {place.cell}, line {place.line}"
    name = words if use.clip == "cell" else f"{use.clip} in {words}"
    why = _renamed(use.why_unknown, use.path, notebook)
    column = max(use.column - place.indent, 1)
    return replace(use, line=place.file_line, column=column, clip=name, why_unknown=why)


def _place(notebook: Notebook, line: int) -> cells.Place:
    return notebook.places[min(line, len(notebook.places)) - 1]


def _renamed(text: str, path: Path, notebook: Notebook) -> str:

    def words(match: re.Match[str]) -> str:
        if match["file"] not in (None, path.name):
            return match[0]
        place = _place(notebook, int(match["line"]))
        before = f"{path.name}, c" if match["file"] else "C" if match["word"] == "L" else "c"
        return f"{before}ell {place.cell}, line {place.line}"

    return LINE.sub(words, text)


def line_of(path: Path, line: int) -> int:
    return _place(cells.read(path), line).file_line if path.suffix.lower() == NOTEBOOK else line
