"""Print the problems of a run as annotations for GitHub Actions: `unified-clip parity --format github`."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..._kit.display import annotation, safe
from ..results import ParityReport, Problem
from ..suite import own_functions
from . import markdown


def lines(report: ParityReport, root: Path) -> list[str]:
    return [_annotation(problem, root) for problem in report.problems]


def _annotation(problem: Problem, root: Path) -> str:
    return annotation("error", safe(markdown.problem_line(problem)), **_place(problem, root), title=safe(problem.what))


def _place(problem: Problem, root: Path) -> dict[str, Any]:
    if ".py:" not in (problem.function or ""):
        return {}
    path, line = _place_of_function(*own_functions.split_name(problem.function or "", root))
    return {"file": safe(os.path.relpath(path))} | ({"line": line} if line else {})


Place = tuple[Path, int | None]
"""(file, line of the definition)"""


def _place_of_function(path: Path, name: str) -> Place:
    """Return the place of a function, or of the imported function to which it only passes the threshold."""
    tree = own_functions.parse(path)
    function = _definitions(tree).get(name)
    if not isinstance(function, ast.FunctionDef):
        return _definition(path, name) or (path, None)
    called = [place for text in _adapted(function) if (place := _imported(tree, path, text))]
    return called[0] if len({*called}) == 1 else (path, function.lineno)


def _adapted(function: ast.FunctionDef) -> set[str]:
    """Return the functions to which `function` passes its second parameter, the threshold.

    If `function` multiplies or divides numbers, return an empty set, because this may change the threshold.
    """
    nodes, parameters = list(ast.walk(function)), function.args.args
    if len(parameters) < 2 or any(isinstance(each, ast.Mult | ast.Div) for each in nodes):
        return set()
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    if any(isinstance(call.func, ast.Attribute) and call.func.attr.startswith(("mul", "div")) for call in calls):
        return set()
    return {
        ast.unparse(call.func)
        for call in calls
        for argument in (*call.args, *(each.value for each in call.keywords))
        if isinstance(argument, ast.Name) and argument.id == parameters[1].arg
    }


def _definitions(tree: ast.Module) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def _definition(path: Path, name: str, seen: Sequence[Path] = ()) -> Place | None:
    tree = own_functions.parse(path)
    if node := _definitions(tree).get(name):
        return path, node.lineno
    return None if path in seen else _imported(tree, path, name, (*seen, path))


def _imported(tree: ast.Module, path: Path, text: str, seen: Sequence[Path] = ()) -> Place | None:
    """Return the place of a function that the file imports from a file of the working directory.

    text: The function as the file writes it, such as "clip" or "train.clip".
    """
    module, _, attribute = text.rpartition(".")
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            here = alias.asname or alias.name
            if here not in (text, module):
                continue
            package, level = (node.module or "", node.level) if isinstance(node, ast.ImportFrom) else ("", 0)
            name = alias.name if here == text else attribute
            source = package if here == text else f"{package}.{alias.name}"
            if file := _file_of(source, level, path):
                return _definition(file, name, seen)
    return None


def _file_of(module: str, level: int, path: Path) -> Path | None:
    """Return the file of a module that `path` imports, if the file is in the working directory.

    level: The number of dots before the name of the module.
    """
    directories = [path.parent, *map(Path, os.environ.get("PYTHONPATH", "").split(os.pathsep)), Path("src")]
    directories = [*path.parents][level - 1 : level] if level else directories
    places = [directory.absolute().joinpath(*module.split(".")) for directory in directories]
    files = [file for place in places for file in (place.parent / f"{place.name}.py", place / "__init__.py")]
    return next((file for file in files if file.is_file() and file.is_relative_to(Path.cwd())), None)
