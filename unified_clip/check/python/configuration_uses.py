"""Decide whether code uses a clip configuration or callback.

Printing a configuration is not a use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...config.formats.python_source import FUNCTIONS, Source, last_name
from ...port.source.unused_result import scope_of

METHODS = (
    "__call__", "as_optax", "as_paddle", "attach_to", "clip_", "clipper", "copy", "export_to", "model_copy", "pairs",
    "traced",
)  # fmt: skip

CONTENTS = ("get", "items", "pop", "setdefault", "values")

PASSES = (
    ast.BinOp, ast.BoolOp, ast.Dict, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.List, ast.ListComp, ast.Set,
    ast.Starred, ast.Tuple,
)  # fmt: skip

SHOWS = (
    "ascii", "asdict", "bool", "callable", "critical", "debug", "dir", "dumps", "error", "eval", "exception", "exec",
    "format", "hasattr", "hash", "id", "info", "isinstance", "len", "log", "log_params", "pformat", "pprint", "print",
    "repr", "str", "type", "vars", "warn", "warning", "write",
)  # fmt: skip

NAMESPACES = ("globals", "locals", "vars")

COMPREHENSIONS = (ast.DictComp, ast.GeneratorExp, ast.ListComp, ast.SetComp)

DEPTH = 5


def is_used(source: Source, name: str, scope: ast.AST | None = None, depth: int = 0, *, stores: bool = True) -> bool:
    """Return whether code might call, pass, return or store the variable `name`.

    scope: The function or class that defines the variable, or None for a variable of the module.
    stores: Whether `self.clip = name` is a use.
    """
    nodes = _references(source, name, scope)
    return any(is_use(source, node, depth) for node in nodes if stores or not _is_stored(source, node))


def _is_stored(source: Source, node: ast.expr) -> bool:
    match source.parents[node]:
        case ast.Assign(targets=[ast.Attribute()]):
            return True
    return False


def is_attribute_used(source: Source, name: str) -> bool:
    """Return whether code might clip with an attribute called `name`. Attributes of imported modules are ignored."""
    return any(is_use(source, node) for node in _attribute_references(source, name))


def is_use(source: Source, node: ast.AST, depth: int = 0) -> bool:
    parent = source.parents[node]
    match parent:
        case ast.Attribute(attr=name):
            return name in METHODS or name in CONTENTS
        case ast.Call(func=function):
            return function is node or last_name(function) not in SHOWS
        case ast.Return() | ast.Yield() | ast.YieldFrom() | ast.Lambda() | ast.arguments() | ast.withitem():
            return True
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            return True
        case ast.IfExp(test=test):
            return node is not test and is_use(source, parent, depth)
        case ast.Subscript(value=value):
            return node is value and is_use(source, parent, depth)
        case ast.NamedExpr(target=target):
            return _is_target_used(source, target, depth) or is_use(source, parent, depth)
        case ast.Assign(targets=targets):
            return any(_is_target_used(source, target, depth) for target in targets)
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return _is_target_used(source, target, depth)
    if isinstance(parent, (ast.keyword, ast.Await, *PASSES)):
        return is_use(source, parent, depth)
    return False


def _is_target_used(source: Source, target: ast.expr, depth: int) -> bool:
    scope = scope_of(source, target, target.id) if isinstance(target, ast.Name) else None
    if not isinstance(target, ast.Name) or isinstance(scope, ast.ClassDef):
        return True
    return depth < DEPTH and is_used(source, target.id, scope, depth + 1)


def _references(source: Source, name: str, scope: ast.AST | None) -> Iterator[ast.expr]:
    """Yield the expressions that read the variable `name`. A call such as `locals()` reads all variables.

    A comprehension over `locals()` does not count as a read, because it usually only logs settings.
    """
    for node in source.nodes if scope is None else ast.walk(scope):
        match node:
            case ast.Name(id=other, ctx=ast.Load()) if other == name and not _is_shadowed(source, node, name, scope):
                yield node
            case ast.Subscript(value=ast.Call(func=ast.Name(id=function), args=[]), slice=ast.Constant(value=key)):
                if key == name and function in NAMESPACES:
                    yield node
            case ast.Call(func=ast.Name(id=function), args=[]) if function in NAMESPACES:
                is_listed = any(isinstance(outer, COMPREHENSIONS) for outer in source.around(node))
                if not is_listed and scope is (None if function == "globals" else source.function(node)):
                    yield node
            case ast.Call(func=ast.Name(id="eval" | "exec"), args=[ast.Constant(value=str(text)), *_]):
                if re.search(rf"\b{re.escape(name)}\b", text):
                    yield node.func


def _attribute_references(source: Source, name: str) -> Iterator[ast.expr]:
    for node in source.nodes:
        match node:
            case ast.Attribute(attr=other, value=value, ctx=ast.Load()) if other == name:
                if source.dotted(value).partition(".")[0] not in _packages(source) and not _clamps(source, node):
                    yield node
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=other), *_]) if other == name:
                yield node


def _packages(source: Source) -> set[str]:
    """Return the array packages that a file imports. Their attributes, such as `torch.clip`, are not configurations."""
    return source.packages & {"cupy", "jax", "keras", "mlx", "numpy", "paddle", "tensorflow", "torch"}


def _clamps(source: Source, node: ast.Attribute) -> bool:
    call = source.parents[node]
    if not isinstance(call, ast.Call) or call.func is not node:
        return False
    values = [getattr(each, "operand", each) for each in (*call.args, *(each.value for each in call.keywords))]
    return any(isinstance(each, ast.Constant) and isinstance(each.value, int | float) for each in values)


def _is_shadowed(source: Source, node: ast.AST, name: str, scope: ast.AST | None) -> bool:
    for outer in source.around(node):
        if outer is scope:
            return False
        if isinstance(outer, FUNCTIONS) and _binds(outer, name):
            return True
    return False


def _binds(function: ast.AST, name: str) -> bool:
    inner = list(ast.walk(function))
    if any(name in node.names for node in inner if isinstance(node, ast.Global | ast.Nonlocal)):
        return False
    stores = (node for node in inner if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return any(node.arg == name for node in inner if isinstance(node, ast.arg)) or any(n.id == name for n in stores)
