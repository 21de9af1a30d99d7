"""Read a Jupyter notebook as one Python source, and report each clip of a notebook with its cell and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..._kit import atomic_files
from ..._kit.parse import UnreadableSourceError, parse_python
from ..clip_use import LINE, ClipUse, of_unread_file
from ..command_lines import text_names_clip

NOTEBOOK = ".ipynb"

PYTHON_MAGICS = ("time", "timeit", "capture", "prun", "debug", "python", "python3", "pypy", "memit", "mprun", "lprun")
"""Cell magics, such as `%%time`, that are followed by lines of Python."""

SHELLS = ("bash", "sh", "shell", "script", "cmd", "system", "!", "sx")
FILES = ("writefile", "file", "writetemplate")

MAGIC = re.compile(r"(\s*)(?:[%!?]+(.*)|[\w.]+\?{1,2}\s*)")
ASSIGNED = re.compile(r"(\s*[\w,. ]+=\s*)[%!](.*)")
"""Matches an assignment from a shell command, such as files = !ls."""

NOT_PYTHON = (
    "This cell mentions a clip, but is not valid Python. Correct the cell, or add the cell to check.ignore with a "
    "reason."
)
NO_NOTEBOOK = (
    "{reason} The file mentions a clip. Save the notebook again, or add the notebook to check.ignore with a reason."
)


class Place(NamedTuple):
    cell: int
    line: int
    file_line: int
    """The line in the notebook file. Lines and cells are counted from 1."""

    @property
    def words(self) -> str:
        return f"cell {self.cell}, line {self.line}"


class Notebook(NamedTuple):
    """The code of a notebook. `source` and `commands` have the same number of lines."""

    source: str
    commands: str
    """The commands in lines that start with `!` or `%`, and the code of cells such as `%%bash`."""

    other: dict[int, str]
    """{number of the first line: text} for each cell that is not Python."""

    places: Sequence[Place]

    def place(self, line: int) -> Place:
        return self.places[min(line, len(self.places)) - 1]


class NotebookError(Exception):
    pass


def python_source(path: Path) -> bytes:
    if path.suffix.lower() != NOTEBOOK:
        return atomic_files.read_bytes(path)
    try:
        return read(path).source.encode()
    except NotebookError:
        return b""


def all_code(path: Path) -> bytes:
    try:
        notebook = read(path)
    except NotebookError:
        return atomic_files.read_bytes(path)
    return "\n".join([notebook.source, notebook.commands, *notebook.other.values()]).encode()


def commands(path: Path) -> str:
    try:
        return read(path).commands
    except NotebookError:
        return ""


def read(path: Path) -> Notebook:
    text = atomic_files.read_text(path, errors="replace")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotebookError(f"The notebook is not valid JSON: {error}.") from None
    sources: list[str] = []
    commands: list[str] = []
    places: list[Place] = []
    other: dict[int, str] = {}
    start, file_line = 0, 1
    for number, cell in _code_cells(data):
        lines = "".join(cell).split("\n")
        first = len(places) + 1
        code, shell = _python(lines)
        if code is None:
            other[first] = "\n".join(lines)
        sources += code if code is not None else [""] * len(lines)
        commands += shell
        for index, line in enumerate(lines, 1):
            before, start = start, _place_of(text, line, start)
            file_line += text.count("\n", before, start)  # from the last place on: large notebooks have many lines
            places.append(Place(number, index, file_line))
    return Notebook("\n".join([*sources, ""]), "\n".join(commands), other, places)


def _place_of(text: str, line: str, start: int) -> int:
    """Return the place of a line of code in the JSON text of its notebook, or `start` if it is written otherwise."""
    written = (json.dumps(line, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True))
    return next((place for each in written if line and (place := text.find(each, start)) >= 0), start)


def _code_cells(data: Any) -> Iterator[tuple[int, list[str]]]:
    cells: Any = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list):
        raise NotebookError("The file is not a notebook: it has no cells.")
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source: Any = cell.get("source") or ""
            yield number, [source] if isinstance(source, str) else [str(line) for line in source]


def _python(lines: Sequence[str]) -> tuple[list[str] | None, list[str]]:
    """Return (lines of Python, lines of commands) of a cell. For a cell that is not Python, the first item is None."""
    empty = [""] * len(lines)
    if _parses(lines):
        return list(lines), empty
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith("%%"):
        name, _, argument = lines[first][2:].strip().partition(" ")
        if name in SHELLS:
            return empty, [*empty[: first + 1], *lines[first + 1 :]]
        if name not in PYTHON_MAGICS and not (name in FILES and argument.strip().endswith(".py")):
            return None, empty
        lines = [*lines[:first], "", *lines[first + 1 :]]
    code, commands = _without_magics(lines)
    return (code, commands) if _parses(code) else (None, commands)


def _without_magics(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (lines of Python, lines of commands). The lines of Python have `pass` or None in place of a command."""
    code, commands = [], []
    is_continued = False
    for line in lines:
        assigned, magic = ASSIGNED.fullmatch(line), MAGIC.fullmatch(line)
        if is_continued:
            code.append("")
            commands.append(line)
        elif assigned or magic:
            code.append(f"{assigned[1]}None" if assigned else f"{magic[1]}pass")  # type: ignore[index]
            commands.append((assigned[2] if assigned else magic[2]) or "")  # type: ignore[index]
        else:
            code.append(line)
            commands.append("")
        is_continued = commands[-1].rstrip().endswith("\\")
    return code, commands


def _parses(lines: Sequence[str]) -> bool:
    try:
        parse_python("\n".join(lines))
    except UnreadableSourceError:
        return False
    return True


def clips_outside_python(path: Path) -> list[ClipUse]:
    """Return the clips in the cells of a notebook that are not Python.

    For an invalid notebook that mentions a clip, return one clip of unknown effect.
    """
    if path.suffix.lower() != NOTEBOOK:
        return []
    try:
        notebook = read(path)
    except NotebookError as error:
        is_named = text_names_clip(atomic_files.read_bytes(path))
        return [of_unread_file(path, "notebook", NO_NOTEBOOK.format(reason=error))] if is_named else []
    return [
        ClipUse(path, line, 1, "cell", why_unknown=NOT_PYTHON, code=text)
        for line, text in notebook.other.items()
        if text_names_clip(text.encode())
    ]


def with_cells(uses: Sequence[ClipUse]) -> Iterator[ClipUse]:
    """Yield the clips. The place of a clip in a notebook becomes its line in the file, and its name has the cell."""
    notebook = cache(read)
    for use in uses:
        is_placed = use.path.suffix.lower() == NOTEBOOK and use.clip != "notebook"
        yield _placed(use, notebook(use.path)) if is_placed else use


def _placed(use: ClipUse, notebook: Notebook) -> ClipUse:
    def renamed(match: re.Match[str]) -> str:
        words = notebook.place(int(match[1])).words
        return words.capitalize() if match[0].startswith("L") else words

    place = notebook.place(use.line)
    name = place.words if use.clip == "cell" else f"{use.clip} in {place.words}"
    return replace(use, line=place.file_line, clip=name, why_unknown=LINE.sub(renamed, use.why_unknown))


def line_of(path: Path, line: int) -> int:
    return read(path).place(line).file_line if path.suffix.lower() == NOTEBOOK else line
