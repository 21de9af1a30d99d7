"""The functions of the user in `[frameworks.NAME.functions]`, which replace the framework's own functions."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

from ..._kit import atomic_files
from ..._kit.atomic_files import FileError
from ..._kit.parse import UnreadableSourceError, parse_python, parsed_nodes
from ..modes import NATIVE
from .case import Case
from .public_calls import CALLS
from .schema import FrameworkTable, SuiteError, no_such

STYLES = ("in place", "list", "each", "measure")
"""The values of `PublicCall.style` for the public functions that a user's function can replace."""

WITH_NORM = ("in place", "list")
"""If `PublicCall.style` is one of these, a user's function can leave out the norm, and return only the clipped
gradients."""

REPLACEABLE = tuple(name for name, call in CALLS.items() if call.style in STYLES)


def split_name(text: str, root: Path) -> tuple[Path, str]:
    path, _, name = text.rpartition(":")
    return (root / path).absolute(), name


def parse(path: Path) -> ast.Module:
    """Return an empty module if the file cannot be read or parsed."""
    try:
        return parse_python(atomic_files.read_bytes(path))
    except (UnreadableSourceError, FileError):
        return ast.Module([], [])


def check(name: str, framework: FrameworkTable, file: Path, cases: Sequence[Case]) -> None:
    for public_name, text in framework.functions.items():
        if problem := _problem_of_function(name, framework, file, cases, public_name, *split_name(text, file.parent)):
            raise SuiteError(f"{file}, frameworks.{name}.functions.{public_name}: {problem}")
    for public_name, returned in framework.returns.items():
        call = CALLS.get(public_name)
        problem = ""
        if call is None or public_name not in framework.functions:
            problem = f"frameworks.{name}.functions has no {public_name}. Add it, or remove this line"
        elif call.style not in WITH_NORM:
            problem = f"the result of {public_name} always has the same form. Remove this line"
        elif returned == "nothing" and (call.style != "in place" or not call.returns_norm):
            problem = 'only for clip_grad_norm_ is "nothing" allowed. Write "gradients", or remove this line'
        if problem:
            raise SuiteError(f"{file}, frameworks.{name}.returns.{public_name}: {problem}")


def _problem_of_function(
    name: str, framework: FrameworkTable, file: Path, cases: Sequence[Case], public_name: str, path: Path, function: str
) -> str:
    if public_name not in CALLS:
        return no_such("function", public_name, REPLACEABLE)
    if public_name not in REPLACEABLE:
        problem = "your function cannot replace a class, a hook or an adaptive clip"
        return f"{problem}. Choose from {', '.join(REPLACEABLE)}. See docs/own-functions.md#limits"
    if NATIVE not in framework.modes:
        return f"the mode {NATIVE!r} calls your function. Add {NATIVE!r} to frameworks.{name}.modes"
    if not path.is_file():
        return f"there is no file {path}. Correct the path"
    if problem := _problem_of_file(path, function, is_own_python=framework.python == sys.executable):
        return problem
    if not any(uses_function(case, public_name, name) for case in cases):
        problem = f"no case calls {public_name} in the mode {NATIVE} on {name}"
        return f"{problem}. Remove this line, or add {public_name} to `rules` or `calls` of a [[cases]] table"
    return ""


def uses_function(case: Case, public_name: str, framework: str) -> bool:
    modes = case.options.modes
    return case.call_name == public_name and case.is_for_framework(framework) and (not modes or NATIVE in modes)


def _problem_of_file(path: Path, name: str, *, is_own_python: bool) -> str:
    """Return '' if a Python file seems to define a name. The file is parsed, but not run.

    is_own_python: Whether this interpreter will run the file. If False, syntax errors are ignored, because the
        file can be for another version of Python.
    """
    try:
        nodes = parsed_nodes(atomic_files.read_bytes(path))
    except FileError as error:
        return str(error).rstrip(".")
    except UnreadableSourceError as error:
        return f"{path.name}: {error}".rstrip(".") if is_own_python else ""
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {(node.asname or node.name) for node in nodes if isinstance(node, ast.alias)}
    if names & {name, "*"}:
        return ""
    functions = [node.name for node in parse(path).body if isinstance(node, ast.FunctionDef)]
    advice = no_such("function", name, functions).partition(". ")[2] if functions else "Correct the name, or the path"
    return f"{path} has no function {name!r}. {advice}"
