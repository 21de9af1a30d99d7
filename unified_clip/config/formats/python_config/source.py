"""Read the values that a configuration in Python assigns to variables at the top level."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Set
from typing import Any

from ...._kit.parse import UnreadableSourceError, parse_python
from ...._kit.static_values import Target, UnknownValueError, evaluate
from ....errors import ConfigError
from ...documents import Document, Key, Unknown

BASES = "_base_"
"""A file assigns the paths of its base files to `_base_`. Expressions such as `_base_.model` read these files."""

ROOTS = {"optim_wrapper", "optimizer_config", BASES}
"""The variables that affect clipping."""

WRITERS = frozenset({"globals", "locals", "vars", "exec"})
"""Builtin functions that can change a variable without an assignment."""

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


# -- statements that might change a setting, apart from plain assignments such as `a = 1`


def reads_base(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.With) and "read_base" in ast.unparse(statement.items[0])


def assigned_names(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign) and statement.value:
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def unread_statements(body: list[ast.stmt], understood: Set[ast.stmt]) -> list[tuple[str, ast.stmt]]:
    """Return each statement with an unknown effect on clipping, and the variable that the statement might change."""
    relevant = _relevant_names(body)
    sets_wrapper = any("optim_wrapper" in assigned_names(statement) for statement in body)
    not_understood: list[tuple[str, ast.stmt]] = []
    for statement in body:
        if statement in understood:
            continue
        names = _changed_names(statement) & relevant
        if "*" in names:
            names = {"optim_wrapper" if sets_wrapper else "_base_"}
        if names:
            not_understood += [(name, statement) for name in sorted(names & ROOTS) or ["optim_wrapper"]]
    return not_understood


def _relevant_names(body: list[ast.stmt]) -> set[str]:
    """Return the variables that can affect clipping, including aliases of a dict."""
    relevant = {*ROOTS, *WRITERS, "*"}
    assignments = [(assigned_names(node), node.value) for node in body if isinstance(node, ast.Assign | ast.AnnAssign)]
    assignments += [
        ([node.target.id], node.value)
        for node in body
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    ]
    assigned = {name for names, _ in assignments for name in names}
    mutable = {name for names, value in assignments if not isinstance(value, ast.Constant | None) for name in names}
    before = 0
    while before < len(relevant):
        before = len(relevant)
        for targets, value in assignments:
            used = _names(value) & assigned if value else set()
            if relevant.intersection(targets):
                relevant |= used
            if relevant & used & (mutable | ROOTS):
                relevant.update(targets)
    return relevant


def _changed_names(statement: ast.stmt) -> set[str]:
    """Return the variables that a statement might change. '*' means every variable."""
    if reads_base(statement) or (isinstance(statement, ast.AnnAssign) and statement.value is None):
        return set()
    plain = assigned_names(statement)
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if not plain or len(plain) < len(targets):
        return _names(statement)
    nodes = list(ast.walk(statement))
    calls = [node for node in nodes if isinstance(node, ast.Call) and not _is_builtin(node.func)]
    walrus = [node.target for node in nodes if isinstance(node, ast.NamedExpr)]
    return {name for node in [*calls, *walrus] for name in _names(node)}


def _is_builtin(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and hasattr(builtins, function.id) and function.id not in WRITERS


def _names(node: ast.AST) -> set[str]:
    names: set[str] = set()
    nodes = list(ast.walk(node))
    irrelevant = [inner.value for inner in nodes if isinstance(inner, ast.Attribute) and inner.attr not in ROOTS]
    other_keys = {id(inner) for inner in irrelevant if isinstance(inner, ast.Name) and inner.id == BASES}
    for inner in nodes:
        if isinstance(inner, ast.Name) and not _is_builtin(inner) and id(inner) not in other_keys:
            names.add(inner.id)
        elif isinstance(inner, ast.alias):
            names.add(inner.asname or inner.name.partition(".")[0])
        elif isinstance(inner, ast.FunctionDef | ast.ClassDef):
            names.add(inner.name)
    return names
