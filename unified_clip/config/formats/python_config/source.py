"""Read the values that a configuration in Python assigns to variables at the top level."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from ...._kit.parse import UnreadableSourceError, parse_python
from ...._kit.static_values import Target, UnknownValueError, evaluate
from ....errors import ConfigError
from ...documents import Document, Key, Unknown
from .changes import BASES, ROOTS, assigned_names, reads_base, unread_statements

WHOLE = "Import the whole configuration: the output of Config.fromfile(...).dump()."


def parse(text: str, name: str, names: Mapping[str, Any] | None = None) -> Document:
    """Return the variables at the top level of a file. `names` has the variables of the base files."""
    reader = _Reader(dict(names or {}))
    body = statements(text, name)
    for statement in body:
        reader.read(statement)
    for key, statement in unread_statements(body, reader.understood):
        reader.set(key, Unknown(ast.unparse(statement).partition("\n")[0], WHOLE), statement.lineno)
    return Document(name, text, "python", reader.data, reader.places)


def statements(text: str, name: str) -> list[ast.stmt]:
    try:
        return parse_python(text).body
    except UnreadableSourceError as error:
        raise ConfigError(f"{name}: {error}", "UC102") from None


class _Reader:
    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.has_bases = BASES in names
        self.data: dict[str, Any] = {}
        self.places: dict[tuple[Key, ...], int] = {}
        self.understood: set[ast.stmt] = set()

    def set(self, name: str, value: Any, line: int) -> None:
        self.names[name] = self.data[name] = value
        self.places[name,] = line

    def read(self, statement: ast.stmt) -> None:
        if reads_base(statement):
            self.set(BASES, Unknown(ast.unparse(statement.body), WHOLE), statement.lineno)  # type: ignore[attr-defined]
        for name in assigned_names(statement):
            if name == BASES and self.has_bases:
                continue
            self.set(name, self.value(statement.value, (name,)), statement.lineno)  # type: ignore[attr-defined]
        match statement:
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=target, attr="update"), args=args, keywords=keywords)
            ):
                self._update(statement, target, args, keywords)
            case ast.Assign(targets=[ast.Subscript(value=target, slice=ast.Constant(value=str(key)))], value=value):
                self._insert(statement, target, {key: value})
            case ast.Assign(targets=[ast.Attribute(value=target, attr=key)], value=value):
                self._insert(statement, target, {key: value})
            case ast.Delete(targets=[ast.Attribute(value=target, attr=key)]):
                self._delete(statement, _path(target), key)
            case ast.AugAssign(target=ast.Name(id=name), op=operation, value=change):
                value = self.value(ast.BinOp(ast.Name(name), operation, change), (name,))
                if not isinstance(value, Unknown):
                    self.set(name, value, statement.lineno)
                    self.understood.add(statement)

    def _update(self, statement: ast.stmt, target: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> None:
        entries = _entries(ast.Call(ast.Name("dict"), [], keywords))
        if len(args) == 1:
            inner = _entries(args[0])
            entries = None if inner is None or entries is None else inner | entries
        if entries is not None and len(args) < 2:
            self._insert(statement, target, entries)

    def _insert(self, statement: ast.stmt, target: ast.expr, entries: dict[str, ast.expr]) -> None:
        """Set entries in the dict at `target`, if this dict is known."""
        path = _path(target)
        table = self._named(path)
        keys = path[1:] if path[:1] == (BASES,) else path
        self.places.update({(*keys, key): value.lineno for key, value in entries.items() if path})
        if all(self._is_irrelevant((*path, key)) for key in entries):
            self.understood.add(statement)
        elif isinstance(table, dict) and path:
            for key, value in entries.items():
                table[key] = self.value(value, (*keys, key))
            if path[0] not in self.data and path[0] != BASES:  # a variable of another file
                self.data[path[0]] = self.names[path[0]]
            self.understood.add(statement)

    def _delete(self, statement: ast.stmt, path: tuple[str, ...], key: str) -> None:
        table = self._named(path)
        if path and (self._is_irrelevant((*path, key)) or (isinstance(table, dict) and key in table)):
            self.understood.add(statement)
            if isinstance(table, dict):
                table.pop(key, None)

    def _is_irrelevant(self, path: tuple[str, ...]) -> bool:
        return path[:1] == (BASES,) and (not self.has_bases or path[1:2] not in [(root,) for root in ROOTS])

    def value(self, node: ast.expr, keys: tuple[Key, ...]) -> Any:
        """Return the value of an expression, or an `Unknown`."""
        entries = _entries(node)
        if entries is not None:
            self.places.update({(*keys, key): value.lineno for key, value in entries.items()})
            return {key: self.value(value, (*keys, key)) for key, value in entries.items()}
        if isinstance(node, ast.List | ast.Tuple):
            self.places.update({(*keys, index): value.lineno for index, value in enumerate(node.elts)})
            return [self.value(value, (*keys, index)) for index, value in enumerate(node.elts)]
        unknown = Unknown(ast.unparse(node), WHOLE)
        if path := _path(_unbraced(node)):
            value = self._named(path)
            return unknown if isinstance(value, Unknown) else value
        try:
            return evaluate(node, self._of_name, lambda _: "")
        except UnknownValueError:
            return unknown

    def _of_name(self, name: Target) -> Any:
        path = _path(name)
        value = self._named(path)
        if not path or isinstance(value, Unknown):
            raise UnknownValueError(name)
        return value

    def _named(self, path: tuple[str, ...]) -> Any:
        value: Any = self.names
        for key in path:
            if not isinstance(value, dict) or key not in value:
                return Unknown(".".join(path), WHOLE)
            value = value[key]
        return value


def _entries(node: ast.expr) -> dict[str, ast.expr] | None:
    entries: dict[Any, ast.expr] | None = None
    match node:
        case ast.Call(func=ast.Name(id="dict"), args=[]):
            entries = {keyword.arg: keyword.value for keyword in node.keywords}
        case ast.Dict():
            entries = {getattr(key, "value", None): value for key, value in zip(node.keys, node.values, strict=True)}
    return entries if entries is not None and all(isinstance(key, str) for key in entries) else None


def _path(node: ast.expr) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=value, attr=key) | ast.Subscript(value=value, slice=ast.Constant(value=str(key))):
            outer = _path(value)
            return (*outer, key) if outer else ()
    return ()


def _unbraced(node: ast.expr) -> ast.expr:
    """Return the expression inside `{{ }}`, an old syntax of mmengine."""
    match node:
        case ast.Set(elts=[ast.Set(elts=[inner])]) if _path(inner)[:1] == ("_base_",):
            return inner
    return node
