"""Convert a notebook into one Python source, and map each line of the source to its cell."""

from __future__ import annotations

import bisect
import contextlib
import functools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..._kit import atomic_files
from ..._kit.parse import UnreadableSourceError, parse_python
from ...config.formats.python_source import Source
from ...errors import ConfigError
from ...source.unused_result import WRITTEN

NOTEBOOK = ".ipynb"

PYTHON_MAGICS = ("time", "timeit", "capture", "prun", "debug", "python", "python3", "pypy", "memit", "mprun", "lprun")
"""Cell magics, such as `%%time`, that are followed by lines of Python."""

FILES = ("writefile", "file", "writetemplate")

STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
MAGIC = re.compile(r"\s*(%%|[%!?])")
HELP = re.compile(r"\s*[\w.]+\?{1,2}\s*")
ASSIGNED = re.compile(r"(\s*[\w,. ]+=\s*)[%!](.*)")
"""Matches an assignment from a shell command, such as files = !ls."""


class Place(NamedTuple):
    cell: int
    line: int
    file_line: int
    """The line in the notebook file. Lines and cells are counted from 1."""

    indent: int = 0
    """The number of spaces that this module adds before the code of the line."""


class Notebook(NamedTuple):
    """The code of a notebook. `source` and `commands` have the same number of lines."""

    source: str
    commands: str
    """The commands in lines that start with `!` or `%`, and the code of cells such as `%%bash`."""

    other: dict[int, str]
    """{number of the first line: text} for each cell that is not Python."""

    places: Sequence[Place]


class NotebookError(Exception):
    pass


def python_source(path: Path) -> bytes:
    if path.suffix.lower() != NOTEBOOK:
        return atomic_files.read_bytes(path)
    try:
        return read(path).source.encode()
    except NotebookError:
        return b""


def parsed(path: Path) -> Source:
    return _parsed(python_source(path), path.name)


@functools.lru_cache(maxsize=64)  # several searches read the same file
def _parsed(code: bytes, name: str) -> Source:
    return Source(code, name)


def source_of(path: Path) -> Source | None:
    with contextlib.suppress(ConfigError, OSError):
        return parsed(path)
    return None


def all_code(path: Path) -> bytes:
    try:
        notebook = read(path)
    except NotebookError:
        return atomic_files.read_bytes(path)
    return "\n".join([notebook.source, notebook.commands, *notebook.other.values()]).encode()


def read(path: Path) -> Notebook:
    text = atomic_files.read_text(path, errors="replace")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotebookError(f"The notebook is not valid JSON: {error}.") from None
    cells = [*_code_cells(data)]
    sources: list[str] = []
    commands: list[str] = []
    places: list[Place] = []
    other: dict[int, str] = {}
    lines_of = _file_lines(text, [cell for _, cell in cells])
    for (number, cell), file_lines in zip(cells, lines_of, strict=True):
        lines = "".join(cell).split("\n")
        first = len(places) + 1
        code, shell = _python(lines)
        if code is None:
            other[first] = "\n".join(lines)
        sources += code if code is not None else [""] * len(lines)
        commands += shell
        indent = int(any(line.startswith(f"def {WRITTEN}(") for line in code or ()))
        places += [Place(number, index + 1, line, indent) for index, line in enumerate(file_lines)]
    return Notebook("\n".join([*sources, ""]), "\n".join(commands), other, places)


def _code_cells(data: Any) -> Iterator[tuple[int, list[str]]]:
    sheets: Any = data.get("worksheets", [data]) if isinstance(data, dict) else []  # of nbformat 3
    sheets = [each for each in sheets if isinstance(each, dict) and isinstance(each.get("cells"), list)]
    if not sheets:
        raise NotebookError("The file is not a notebook: it has no cells.")
    cells: list[Any] = [cell for sheet in sheets for cell in sheet["cells"]]
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source: Any = cell.get("source") or cell.get("input") or ""
            yield number, [source] if isinstance(source, str) else [str(line) for line in source]


def _file_lines(text: str, cells: Sequence[list[str]]) -> Iterator[list[int]]:
    strings = [*STRING.finditer(text)]
    ends = [match.start() for match in re.finditer("\n", text)]
    keys = [index for index, match in enumerate(strings) if match[0] in ('"source"', '"input"')]
    for cell in cells:
        index = next((key for key in keys if _is_at(strings, key + 1, cell)), None)
        starts = [1] * max(len(cell), 1)
        if index is not None:
            keys = keys[keys.index(index) + 1 :]
            matches = strings[index + 1 : index + 1 + len(cell)]
            starts = [bisect.bisect_left(ends, match.start()) + 1 for match in matches] or starts
        yield [line for line, part in zip(starts, cell, strict=False) for _ in range(part.count("\n"))] + starts[-1:]


def _is_at(strings: Sequence[re.Match[str]], start: int, cell: Sequence[str]) -> bool:
    matches = strings[start : start + len(cell)]
    return len(matches) == len(cell) and all(
        json.loads(match[0], strict=False) == part for match, part in zip(matches, cell, strict=True)
    )


def _python(lines: Sequence[str]) -> tuple[list[str] | None, list[str]]:
    """Return (lines of Python, lines of commands) of a cell. For a cell that is not Python, the first item is None."""
    empty = [""] * len(lines)
    if _parses(lines):
        return list(lines), empty
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith("%%"):
        name, _, argument = lines[first][2:].strip().partition(" ")
        if name not in PYTHON_MAGICS and not (name in FILES and argument.strip().endswith(".py")):
            is_shell = name in ("bash", "sh", "shell", "script", "cmd", "system", "!", "sx")
            return (empty, [*empty[: first + 1], *lines[first + 1 :]]) if is_shell else (None, empty)
        lines = [*lines[:first], "", *lines[first + 1 :]]
        if name in FILES and _parses(written := _written(lines, first)):
            return written, empty
    code, commands = _without_magics(lines)
    return (code, commands) if _parses(code) else (None, commands)


def _written(lines: Sequence[str], first: int) -> list[str]:
    """Put the code of a `%%writefile` cell into a function.

    The line `def` replaces the line `%%writefile`, so that line numbers do not change.
    """
    return [*lines[:first], f"def {WRITTEN}():", *(f" {line}" if line else "" for line in lines[first + 1 :])]


def _without_magics(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (lines of Python, lines of commands).

    A line `pass` replaces each magic command, so that line numbers do not change.
    """
    code, commands = [], []
    is_continued = False
    for line in lines:
        match = ASSIGNED.fullmatch(line)
        is_magic = is_continued or MAGIC.match(line) is not None or HELP.fullmatch(line) is not None
        if match and not is_continued:
            code.append(f"{match[1]}None")
            commands.append(match[2])
        elif is_magic:
            indent = line[: len(line) - len(line.lstrip())]
            code.append("" if is_continued else f"{indent}pass")
            commands.append(line.strip().lstrip("%!?"))
        else:
            code.append(line)
            commands.append("")
        is_continued = is_magic and line.rstrip().endswith("\\")
    return code, commands


def _parses(lines: Sequence[str]) -> bool:
    try:
        parse_python("\n".join(lines))
    except UnreadableSourceError:
        return False
    return True
