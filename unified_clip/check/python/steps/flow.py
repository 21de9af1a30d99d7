"""Follow gradients through variables, and compare the parameters of clips and optimizers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....config.formats.python_source import Source

MAX_DEPTH = 8
APPENDING = ("append", "extend", "insert")


def reaches(source: Source, function: ast.AST, call: ast.Call, target: ast.AST) -> bool:
    """Return whether the result of a call is in an expression, by itself or through variables of a function."""
    return any(node is call for node in reached(source, function, target))


def reached(source: Source, function: ast.AST, node: ast.AST, depth: int = 0) -> Iterator[ast.AST]:
    """Yield the nodes of an expression, and those of the values of its variables in a function."""
    for inner in ast.walk(node):
        yield inner
        is_read = isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Load)
        if is_read and depth < MAX_DEPTH:
            for value in values(source, function, ast.unparse(inner)):
                if not any(each is inner for each in ast.walk(value)):
                    yield from reached(source, function, value, depth + 1)


def values(source: Source, function: ast.AST, code: str) -> Iterator[ast.expr]:
    """Yield the values that a function, or the module, assigns to a variable or adds to it. `code`: its code."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=value) if any(_has(target, code) for target in targets):
                yield value
            case ast.AugAssign(target=target, value=value) if ast.unparse(target) == code:
                yield value
            case ast.AnnAssign(target=target, value=ast.expr() as value) if ast.unparse(target) == code:
                yield value
            case ast.For(target=target, iter=value) if _has(target, code):
                yield value
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[*_, value]) if name in APPENDING:
                if ast.unparse(owner) == code:
                    yield value


def _has(target: ast.expr, code: str) -> bool:
    """Return whether an assignment to a target sets a variable, by itself or as a part of a tuple."""
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return any(ast.unparse(part) == code for part in parts)


def models(source: Source, node: ast.AST) -> set[str]:
    """Return the code of the models whose parameters an expression takes, such as "net_g" for `net_g.parameters()`.

    "self." at the beginning is left out. Return an empty set if they are unknown.
    """
    found = set()
    for inner in reached(source, source.nodes[0], node):
        if isinstance(inner, ast.Attribute) and inner.attr in ("parameters", "named_parameters", "trainable_variables"):
            found.add(ast.unparse(inner.value).removeprefix("self."))
    return found


def are_apart(left: set[str], right: set[str]) -> bool:
    """Return whether two sets of models are known and have no model, and no part of a model, in common."""
    related = any(a == b or f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.") for a in left for b in right)
    return bool(left) and bool(right) and not related
