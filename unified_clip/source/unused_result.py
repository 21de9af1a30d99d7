"""Find calls that have no effect, because no code uses the result. `port` and `config check` share this module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Protocol, TypeGuard

from ..errors import ConfigError
from .frameworks import FRAMEWORKS
from .tree import FUNCTIONS

UNUSED = (
    "No code uses the result of this call, so the call clips nothing. To train as before, remove the call. To clip, "
    "use the clipped gradients, as in gradients = clip(gradients), or pass the clip to the optimizer."
)
NOT_UPDATED = (
    "This file calls init of the transformation with this clip, but never calls update, so the clip has no effect, "
    "unless another file calls update. Call update, or remove the transformation."
)
REPLACED = (
    "Line {line} assigns another value to {name} before any code uses this clip, so this clip has no effect. Remove "
    "one of the two lines."
)
CONTAINERS = ("dict", "list", "tuple", "zip")
PASSES = (ast.Call, ast.keyword, ast.List, ast.Tuple, ast.Starred, ast.Subscript)


class Source(Protocol):
    """A parsed file: of `unified_clip.source`, or of `config check`."""

    @property
    def parents(self) -> Mapping[ast.AST, ast.AST]: ...

    @property
    def nodes(self) -> Sequence[ast.AST]: ...

    @property
    def calls(self) -> Sequence[ast.Call]: ...

    @property
    def packages(self) -> Set[str]: ...

    def dotted(self, node: ast.AST) -> str: ...


def check(source: Source, call: ast.Call) -> None:
    """Raise ConfigError if no code uses the result of a clip, or if code replaces the result before it is read.

    An unused variable of the module is no error, because other files can import it. The variable `_` is an exception.
    """
    node: ast.AST = call
    if isinstance(source.parents[node], ast.Expr):
        raise ConfigError(UNUSED)
    _check_updates(source, [call])
    while isinstance(source.parents[node], PASSES):
        node = source.parents[node]
        if isinstance(node, ast.Call) and source.dotted(node.func).partition(".")[0] not in (*FRAMEWORKS, *CONTAINERS):
            return  # the function that is called may use the clip
    statement = source.parents[node]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    target = statement.targets[0]
    target = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
    if not isinstance(target, ast.Name):
        return
    _check_next(source, statement, target.id)
    scope = scope_of(source, target, target.id)
    nodes = source.nodes if scope is None else ast.walk(scope)
    _check_updates(
        source, [read for inner in nodes if isinstance(inner, ast.Name) for read in _reads(inner, target.id)]
    )
    if is_local(scope):
        is_read = _is_read(source, scope, statement, target.id)
    else:
        is_read = target.id != "_" or any(_reads(node, "_") for node in source.nodes if isinstance(node, ast.Name))
    if not is_read:
        raise ConfigError(UNUSED)


def calls(source: Source, text: str) -> dict[tuple[int, int], ast.Call]:
    """Return {(line, column): call}. Columns are counted in characters, from 1.

    If several calls begin at one position, as in `model().clip()`, the dict contains the innermost call.
    """
    lines = re.split(r"\r\n?|\n", text)
    before = [lines[node.lineno - 1].encode()[: node.col_offset] for node in source.calls]
    return {(node.lineno, len(start.decode()) + 1): node for node, start in zip(source.calls, before, strict=True)}


def scope_of(source: Source, node: ast.AST, name: str) -> ast.AST | None:
    for scope in _around(source, node):
        if not isinstance(scope, (*FUNCTIONS, ast.ClassDef)):
            continue
        declared = [inner for inner in ast.walk(scope) if isinstance(inner, ast.Global | ast.Nonlocal)]
        declarations = [inner for inner in declared if name in inner.names]
        if any(isinstance(inner, ast.Global) for inner in declarations):
            return None
        functions = [next(filter(is_function, _around(source, inner)), None) for inner in declarations]
        if not any(function is scope for function in functions):
            return scope
    return None


def _around(source: Source, node: ast.AST) -> Iterator[ast.AST]:
    while node in source.parents:
        node = source.parents[node]
        yield node


def is_function(node: ast.AST) -> bool:
    return isinstance(node, FUNCTIONS)


def is_local(scope: ast.AST | None) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda]:
    return isinstance(scope, FUNCTIONS)


def _check_updates(source: Source, transformations: Sequence[ast.expr]) -> None:
    methods = [source.parents[node] for node in transformations]
    names = [each.attr if isinstance(each, ast.Attribute) else "" for each in methods]
    updates = [source.parents[each] for each, name in zip(methods, names, strict=True) if name == "update"]
    if "optax" not in source.packages or {*names} - {"init", "update"}:
        return
    unused = ConfigError(NOT_UPDATED)
    for call in updates:
        try:
            if isinstance(call, ast.Call):
                check(source, call)
            return
        except ConfigError as error:
            unused = error
    if names:
        raise unused


def _check_next(source: Source, statement: ast.stmt, name: str) -> None:
    parent = source.parents[statement]
    blocks = [block for _, block in ast.iter_fields(parent) if isinstance(block, list) and statement in block]
    for following in blocks[0][blocks[0].index(statement) + 1 :] if blocks else ():
        if isinstance(following, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if _reads(following, name):
            return
        if isinstance(following, ast.Assign) and any(ast.unparse(each) == name for each in following.targets):
            raise ConfigError(REPLACED.format(line=following.lineno, name=name))


def _is_read(source: Source, scope: ast.AST, statement: ast.stmt, name: str) -> bool:
    loops = {outer for outer in _around(source, statement) if isinstance(outer, ast.For | ast.While)}
    for node in _reads(scope, name):
        around = list(_around(source, node))
        is_inner = next(outer for outer in around if isinstance(outer, FUNCTIONS)) is not scope
        if is_inner or node.lineno > (statement.end_lineno or 0) or loops.intersection(around):
            return True
    return any(name in node.names for node in ast.walk(scope) if isinstance(node, ast.Global | ast.Nonlocal))


def _reads(node: ast.AST, name: str) -> list[ast.Name]:
    names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return [inner for inner in names if inner.id == name and isinstance(inner.ctx, ast.Load)]
