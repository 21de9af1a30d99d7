"""Prose in source files: docstrings, and the strings that commands and errors print. support/prose.py judges it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support import syntax

VALUE = "VALUE"
"""The word that replaces each value in a message."""

SENTENCE = re.compile(r"(?:[A-Za-z'`-]+[,:;.]? ){3,}[A-Za-z'`]+")
"""A string without four words in a row is a name, a pattern or a fragment."""

CODE = re.compile(r"^\s*(?:import |from \w+ import |def |class |@|>>> |\{%|<)|[{}]\s*$|\(\?|\\[sdwb]", re.MULTILINE)
"""Strings of code, templates and patterns, which no one reads as prose."""

HEADING = re.compile(r"^(?:Args|Returns|Raises|Yields|Attributes|Source|Note|Warns):", re.MULTILINE)
ITEM = re.compile(r"^\s*(?:[\w*`.\[\]]+(?:, [\w*`.]+)*|\w+ \(\w+\)):\s", re.MULTILINE)


class Text(NamedTuple):
    place: str
    text: str
    kind: str


def texts(root: Path, folder: Path) -> Iterator[Text]:
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for line, text, kind in strings(syntax.parse(path)):
            if kind == "docstring":
                yield Text(f"{name}:{line}", prose_of(text), kind)
            elif SENTENCE.search(text) and not CODE.search(text):
                yield Text(f"{name}:{line}", text, kind)


def strings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield (line, text, kind) for each string. A string that is a statement is a docstring. Values become one word."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield node.lineno, node.value.value, "docstring"
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
            yield node.lineno, text, "message"
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield node.lineno, node.value, "message"
        elif not isinstance(node, ast.Name | ast.Pass | ast.alias | ast.expr_context | ast.operator):
            for field in node._fields:
                child = getattr(node, field, None)
                if isinstance(child, ast.AST):
                    nodes.append(child)
                elif isinstance(child, list):
                    nodes += [node for node in child if isinstance(node, ast.AST)]


def prose_of(docstring: str) -> str:
    """Return a docstring as Markdown: no examples, and an item for each argument and error."""
    text = re.sub(r"^ .*\S {3,}\S.*$", "", inspect.cleandoc(docstring), flags=re.MULTILINE)  # commands and what they do
    text = re.sub(r"^ *>>> .*?(?:\n *\n|\Z)", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^Example:$", "", HEADING.sub("", text), flags=re.MULTILINE)
    lines = (f"\n{line.strip()}" if ITEM.match(line) else line.strip() for line in text.splitlines())
    return "\n".join(lines)
