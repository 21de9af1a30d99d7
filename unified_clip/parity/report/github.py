"""Print the problems of a run as annotations for GitHub Actions: `unified-clip parity --format github`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..._display import annotation, safe
from ..results import ParityReport, Problem
from ..suite import own_functions
from . import markdown


def lines(report: ParityReport, root: Path) -> list[str]:
    return [_annotation(problem, root) for problem in report.problems]


def _annotation(problem: Problem, root: Path) -> str:
    title = ": ".join(filter(None, (problem.what, markdown.cases_of(problem))))
    level = "warning" if problem.excused else "error"
    return annotation(level, safe(markdown.problem_line(problem)), **_place(problem, root), title=safe(title))


def _place(problem: Problem, root: Path) -> dict[str, Any]:
    if ".py:" not in (problem.function or ""):
        return {}
    path, name = own_functions.split_name(problem.function or "", root)
    line = own_functions.lines_of(path).get(name)
    return {"file": safe(os.path.relpath(path))} | ({"line": line} if line else {})
