"""Source files as syntax trees, parsed once for all tests."""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path


@functools.cache
def parse(path: Path) -> ast.Module:
    """Return the tree of a file. Garbage collection is off during parsing, because it would visit millions of nodes."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.freeze()
        gc.enable()


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parse(path)))
