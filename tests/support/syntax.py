"""Source files as syntax trees, parsed once for all tests."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of a file."""
    return list(ast.walk(parse(path)))
