"""Print the problems of a run as annotations for GitHub Actions: `unified-clip parity --format github`."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..._kit.display import annotation, safe
from ..results import ParityReport, Problem
from ..suite import own_functions
from . import view


def lines(report: ParityReport, root: Path) -> Iterator[str]:
    for problem in report.problems:
        place = _place(problem, root)
        yield annotation("error", safe(view.problem_line(report, problem)), **place, title=safe(problem.what))


def _place(problem: Problem, root: Path) -> dict[str, Any]:
    """Return the place of an entry of the list of known differences, or where a file defines the user's function."""
    if problem.file:
        return {"file": safe(os.path.relpath(problem.file)), "line": problem.line}
    if ".py:" not in (problem.function or ""):
        return {}
    path, name = own_functions.split_name(problem.function or "", root)
    nodes = own_functions.parse(path).body
    lines = [node.lineno for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name]
    return {"file": safe(os.path.relpath(path))} | ({"line": lines[-1]} if lines else {})
