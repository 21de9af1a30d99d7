"""Code that `torch.compile` traces."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "unified_clip"
TRACED = ("_core", "_api", "_compute/device.py", "_backends/torch", "adaptive", "config/clipper.py", "config/steps.py")


def unions(source: str) -> Iterator[int]:
    """Yield the lines of `isinstance(x, A | B)`, which PyTorch before 2.10 cannot trace. Use tuples."""
    for node in ast.walk(ast.parse(source)):
        is_check = isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass")
        if is_check and isinstance(node.args[1], ast.BinOp):
            yield node.lineno


@pytest.mark.parametrize("place", TRACED)
def test_traced_code_has_no_union_in_isinstance(place: str) -> None:
    path = PACKAGE / place
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    assert files
    found = [f"{file.relative_to(PACKAGE)}:{line}" for file in files for line in unions(file.read_text("utf-8"))]
    assert found == []


def test_the_line_of_a_union_is_found() -> None:
    assert list(unions("x = 1\nisinstance(x, int | float) or isinstance(x, (int, float))")) == [2]
