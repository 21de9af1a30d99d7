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
        place = f"{file}, frameworks.{name}.functions.{public_name}"
        if public_name not in CALLS:
            raise SuiteError(f"{place}: {no_such('function', public_name, REPLACEABLE)}")
        if public_name not in REPLACEABLE:
            raise SuiteError(
                f"{place}: your function cannot replace a class, a hook or an adaptive rule. Use one of these "
                f"keys: {', '.join(REPLACEABLE)}. To test such clips, see docs/own-functions.md#limits"
            )
        if NATIVE not in framework.modes:
            remedy = f"Add {NATIVE!r} to frameworks.{name}.modes"
            raise SuiteError(f"{place}: `modes` lacks {NATIVE!r}, the mode that calls your function. {remedy}")
        path, function = split_name(text, file.parent)
        if not path.is_file():
            raise SuiteError(f"{place}: there is no file {path}. Correct the path")
        if not _may_define(path, function, place, is_own_python=framework.python == sys.executable):
            names = [node.name for node in parse(path).body if isinstance(node, ast.FunctionDef)]
            advice = (
                no_such("function", function, names).partition(". ")[2] if names else "Correct the name, or the path"
            )
            raise SuiteError(f"{place}: {path} has no function {function!r}. {advice}")
        if not any(uses_function(case, public_name, name) for case in cases):
            raise SuiteError(
                f"{place}: no case calls {public_name} in the mode {NATIVE} on {name}. Remove this line, or add "
                f"{public_name} to `rules` or `calls` of a [[cases]] table for {name} and the mode {NATIVE}"
            )
    for public_name, returned in framework.returns.items():
        place = f"{file}, frameworks.{name}.returns.{public_name}"
        if public_name not in framework.functions:
            raise SuiteError(
                f"{place}: frameworks.{name}.functions has no {public_name}. Add {public_name}, or remove this line"
            )
        if CALLS[public_name].style not in WITH_NORM:
            problem = (
                f"`returns` does not apply to {public_name}, because the result of {public_name} always has the same "
                "form"
            )
            raise SuiteError(f"{place}: {problem}. Remove this line")
        if returned == "nothing" and (CALLS[public_name].style != "in place" or not CALLS[public_name].returns_norm):
            problem = f'"nothing" is allowed for clip_grad_norm_, but not for {public_name}'
            raise SuiteError(f'{place}: {problem}. Write "gradients", or remove this line')


def uses_function(case: Case, public_name: str, framework: str) -> bool:
    modes = case.options.modes
    return case.call_name == public_name and case.is_for_framework(framework) and (not modes or NATIVE in modes)


def _may_define(path: Path, name: str, place: str, *, is_own_python: bool) -> bool:
    """Return whether a Python file seems to define a name. The file is parsed, but not run.

    is_own_python: Whether this interpreter will run the file. If False, syntax errors are ignored, because the
        file can be for another version of Python.
    """
    try:
        nodes = parsed_nodes(atomic_files.read_bytes(path))
    except FileError as error:
        raise SuiteError(f"{place}: {error}".rstrip(".")) from None
    except UnreadableSourceError as error:
        if not is_own_python:
            return True
        raise SuiteError(f"{place}: {path.name}: {error}".rstrip(".")) from None
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {(node.asname or node.name) for node in nodes if isinstance(node, ast.alias)}
    return bool(names & {name, "*"})
