"""Read a configuration in Python, such as mmengine's: the values that the file assigns at its top level."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from ..._kit.parse import UnreadableSourceError
from ...errors import ConfigError
from ...source.constants import constant
from ...source.module import Module
from .document import Document
from .keys import Key, Unknown

BASES = "_base_"
WHOLE = "Import the whole configuration: the output of Config.fromfile(...).dump()."


def parse(text: str, name: str, roots: Sequence[str]) -> Document:
    """Return the variables of a file as a document. A variable that the file changes in another way is unknown.

    roots: The variables that can be set without an assignment, as in `_base_.NAME.update(...)` or `a = NAME = dict()`.
    """
    try:
        module = Module(text)
    except UnreadableSourceError as error:
        raise ConfigError(f"{name}: {error}", "UC102") from None
    reader = _Reader(module)
    for root in roots:
        changes = reader.changes(root)
        if root not in reader.data and (BASES in reader.data or any(map(reader.is_at_top, changes))):
            reader.set_unknown(root, changes)
    return Document(name, text, "python", reader.data, reader.places)


def dump(data: dict[str, Any]) -> str:
    return "".join(f"{name} = {_source(value)}\n" for name, value in data.items())


def _source(value: Any) -> str:
    if isinstance(value, dict):
        return f"dict({', '.join(f'{key}={_source(inner)}' for key, inner in value.items())})"
    return "float('inf')" if value == float("inf") else repr(value)


class _Reader:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.data: dict[str, Any] = {}
        self.places: dict[tuple[Key, ...], int] = {}
        self._assigned = dict(_assignments(module.tree.body))
        for name, value in {target.id: value for target, value in self._assigned.items()}.items():
            self.places[name,] = value.lineno
            self.data[name] = self._value(value, (name,))
            self.set_unknown(name, self.changes(name))
        for statement in module.tree.body:
            if isinstance(statement, ast.With) and "read_base" in ast.unparse(statement.items[0]):
                self.set_unknown(BASES, [statement])

    def set_unknown(self, name: str, changes: Sequence[ast.AST]) -> None:
        if changes:
            self.data[name] = Unknown(ast.unparse(self._statement(changes[0])).partition("\n")[0], WHOLE)
            self.places[name,] = changes[0].lineno  # type: ignore[attr-defined]

    def changes(self, name: str) -> list[ast.AST]:
        """Return the code that might change a variable, apart from the assignments at the top level."""
        targets = [target for target in self._assigned if target.id == name]
        mentions = [node for node in self.module.nodes if _name_of(node) == name and node not in targets]
        last = max((target.lineno for target in targets), default=0)
        stars = [node for node in self.module.nodes if _name_of(node) == "*" and node.lineno > last > 0]  # type: ignore[attr-defined]
        is_entry = len(mentions) == 1 and self._is_entry(mentions[0])
        is_constant = bool(targets) and isinstance(self._assigned[targets[-1]], ast.Constant)
        return [*stars, *([] if is_entry or is_constant else mentions)]

    def _is_entry(self, node: ast.AST) -> bool:
        """Return whether a name is an entry of a dict or a list that the file assigns to another variable."""
        parents, depth = self.module.parents, 0
        while _entries(parents[node]) is not None or isinstance(parents[node], ast.keyword):
            node, depth = parents[node], depth + 1
        return depth > 0 and node in self._assigned.values()

    def _statement(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, ast.stmt):
            node = self.module.parents[node]
        return node

    def is_at_top(self, node: ast.AST) -> bool:
        return self._statement(node) in self.module.tree.body

    def _value(self, node: ast.expr, keys: tuple[Key, ...]) -> Any:
        if isinstance(node, ast.Name) and isinstance(self.data.get(node.id), dict | list):
            return self.data[node.id]
        entries = _entries(node)
        if entries is None:
            try:
                return constant(self.module, node)
            except ConfigError:
                return Unknown(ast.unparse(node), WHOLE)
        values = {key: self._value(value, (*keys, key)) for key, value in entries.items()}
        self.places.update({(*keys, key): value.lineno for key, value in entries.items()})
        return list(values.values()) if isinstance(node, ast.List | ast.Tuple) else values


def _assignments(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.Name, ast.expr]]:
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name() as target], value=value):
                yield target, value
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                yield target, value


def _entries(node: ast.AST) -> dict[Any, ast.expr] | None:
    """Return the entries of a dict or a list, or None for other code and for entries without a plain name."""
    entries: dict[Any, ast.expr] | None = None
    match node:
        case ast.List(elts=values) | ast.Tuple(elts=values):
            return dict(enumerate(values))
        case ast.Call(func=ast.Name(id="dict"), args=[]):
            entries = {keyword.arg: keyword.value for keyword in node.keywords}
        case ast.Dict():
            entries = {getattr(key, "value", None): value for key, value in zip(node.keys, node.values, strict=True)}
    return entries if entries is not None and all(isinstance(key, str) for key in entries) else None


def _name_of(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.Constant(value=str(name)):
            return name
    return ""
