"""Follow values through the variables of a file, and compare the parameters of clips and optimizers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cached_property

from ....config.formats.python_source import Source

APPENDING = ("append", "extend", "insert")
PARAMETERS = ("parameters", "named_parameters", "trainable_variables")


class Flow:
    """The values and the reads of the variables of a Python file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._tables: dict[ast.AST, dict[str, list[ast.expr]]] = {}

    def reached(self, node: ast.AST, function: ast.AST | None = None) -> Iterator[ast.AST]:
        """Yield the nodes of an expression, and those of the values of its variables. `function`: None for the file."""
        table = self._table(function or self.source.nodes[0])
        seen: set[str] = set()
        waiting = [node]
        while waiting:
            for inner in ast.walk(waiting.pop()):
                yield inner
                code = code_of(inner)
                if code and code not in seen:
                    seen.add(code)
                    waiting += table.get(code, ())

    def _table(self, function: ast.AST) -> dict[str, list[ast.expr]]:
        """Return the values that a function, or the file, assigns to each variable or adds to it, by its code."""
        if function not in self._tables:
            table: dict[str, list[ast.expr]] = {}
            for node in ast.walk(function):
                for target, value in _assigned(node):
                    table.setdefault(code_of(target), []).append(value)
            self._tables[function] = table
        return self._tables[function]

    @cached_property
    def _reads(self) -> dict[str, list[ast.expr]]:
        reads: dict[str, list[ast.expr]] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                reads.setdefault(code_of(node), []).append(node)
        return reads

    def outer_calls(self, node: ast.AST) -> Iterator[ast.Call]:
        """Yield the calls that get the value of an expression, also through variables and functions of the file."""
        seen: set[str] = set()
        waiting = [node]
        while waiting:
            for outer in self.source.around(waiting.pop()):
                if isinstance(outer, ast.Call):
                    yield outer
                for code in self._names_of_value(outer):
                    if code and code not in seen:
                        seen.add(code)
                        waiting += self._reads.get(code, ())
                if isinstance(outer, ast.stmt):
                    break

    def _names_of_value(self, outer: ast.AST) -> Sequence[str]:
        """Return the variables and functions that get the value of an expression from the code around it."""
        match outer:
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in APPENDING:
                return [code_of(owner)]
            case ast.Assign(targets=targets):
                return list(map(code_of, targets))
            case ast.AugAssign(target=target):
                return [code_of(target)]
            case ast.Return():
                functions = (each for each in self.source.around(outer) if isinstance(each, ast.FunctionDef))
                return [each.name for each in functions][:1]
        return ()

    def models(self, node: ast.AST) -> set[str]:
        """Return the code of the models whose parameters an expression takes, as "net_g" for `net_g.parameters()`.

        "self." at the beginning is left out. Return an empty set if they are unknown.
        """
        attributes = (inner for inner in self.reached(node) if isinstance(inner, ast.Attribute))
        return {ast.unparse(each.value).removeprefix("self.") for each in attributes if each.attr in PARAMETERS}


def code_of(node: ast.AST) -> str:
    """Return the code of a dotted name, or '' for any other node."""
    if isinstance(node, ast.Name):
        return node.id
    before = code_of(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before else ""  # type: ignore[attr-defined]


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield (variable, value) for each variable that a statement or call sets or adds a value to."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                yield from ((part, value) for part in parts)
        case ast.AugAssign(target=target, value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
        case ast.For(target=target, iter=value):
            parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            yield from ((part, value) for part in parts)
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[*_, value]) if name in APPENDING:
            yield owner, value


def are_apart(left: set[str], right: set[str]) -> bool:
    """Return whether two sets of models are known and have no model, and no part of a model, in common."""
    related = any(a == b or f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.") for a in left for b in right)
    return bool(left) and bool(right) and not related
