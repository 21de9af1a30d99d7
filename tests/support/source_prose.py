"""Prose in source files: docstrings, and the strings that commands and errors print. support/prose.py judges it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

VALUE = "VALUE"
"""What stands for a value in a message."""

SENTENCE = re.compile(r"(?:[A-Za-z'`-]+[,:;.]? ){3,}[A-Za-z'`]+")
"""A string without four words in a row is a name, a pattern or a fragment."""

CODE = re.compile(r"^\s*(?:import |from \w+ import |def |class |@|>>> |\{%|<)|[{}]\s*$|\(\?|\\[sdwb]", re.MULTILINE)
"""Strings of code, templates and patterns, which no one reads as prose."""

HEADING = re.compile(r"^(?:Args|Returns|Raises|Yields|Attributes|Source|Note|Warns):", re.MULTILINE)
ITEM = re.compile(r"^\s*(?:[\w*`.\[\]]+(?:, [\w*`.]+)*|\w+ \(\w+\)):\s", re.MULTILINE)


class Text(NamedTuple):
    """A docstring or a message, and where it is."""

    place: str
    text: str
    kind: str


def texts(root: Path, folder: Path) -> Iterator[Text]:
    """Yield the docstrings and messages in the Python files of a folder."""
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = docstrings(tree)
        for node in found:
            yield Text(f"{name}:{node.lineno}", prose_of(str(node.value)), "docstring")
        for line, text in messages(tree, {id(node) for node in found}):
            yield Text(f"{name}:{line}", text, "message")


def docstrings(tree: ast.Module) -> list[ast.Constant]:
    """Return the strings that are statements: docstrings, and the descriptions of variables."""
    statements = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return [value for value in statements if isinstance(value, ast.Constant) and isinstance(value.value, str)]


def messages(tree: ast.AST, skipped: set[int]) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string that reads as a sentence. Values in it become one word."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            text = node.value
        else:
            yield from messages(node, skipped)
            continue
        if SENTENCE.search(text) and not CODE.search(text):
            yield node.lineno, text


def prose_of(docstring: str) -> str:
    """Return a docstring as Markdown: no examples, and an item for each argument and error."""
    text = re.sub(r"^ .*\S {3,}\S.*$", "", inspect.cleandoc(docstring), flags=re.MULTILINE)  # commands and what they do
    text = re.sub(r"^ *>>> .*?(?:\n *\n|\Z)", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^Example:$", "", HEADING.sub("", text), flags=re.MULTILINE)
    lines = (f"\n{line.strip()}" if ITEM.match(line) else line.strip() for line in text.splitlines())
    return "\n".join(lines)
