"""Parse the arguments OLD and NEW: a file and its training function, as in `old.py:step`."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..._kit import atomic_files
from ..._kit.atomic_files import FileError
from ..._kit.parse import UnreadableSourceError, parse_python
from ..errors import VerifyError

TOGETHER = ("tensorflow", "paddle")
"""Packages that crash if one process imports both."""


@dataclass(frozen=True)
class Script:
    side: Literal["old", "new"]
    file: Path
    name: str
    text: str
    """The command-line argument, such as "old.py:step"."""

    python: str = sys.executable

    def __str__(self) -> str:
        return self.text


def parse_script(side: Literal["old", "new"], text: str, python: str | None) -> Script:
    file, _, name = text.rpartition(":")
    if not file or not name.isidentifier():
        raise VerifyError(f"{text!r} does not name a file and a function. Type both, as in {side}.py:step.")
    if not Path(file).is_file():
        raise VerifyError(f"There is no file {file}. Pass an existing file and a function in it, as in {side}.py:step.")
    if Path(file).suffix != ".py":
        raise VerifyError(f"{file} is not a .py file. Pass a Python file and a function in it, as in {side}.py:step.")
    if set(TOGETHER) <= _imports(Path(file)):
        raise VerifyError(
            f"{file} imports {' and '.join(TOGETHER)}, and one process cannot import both. Move each step "
            "into its own file, or import the packages inside the functions."
        )
    return Script(side, Path(file).absolute(), name, text, python or sys.executable)


def _imports(file: Path) -> set[str]:
    try:
        body = parse_python(atomic_files.read_bytes(file)).body
    except (UnreadableSourceError, FileError):
        return set()
    names = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in body if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names}
