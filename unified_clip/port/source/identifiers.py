from __future__ import annotations

import ast
from collections.abc import Sequence

from ..._kit.parse import TOO_DEEP, UnreadableSourceError, parsed_nodes

MAX_CHAIN = 1000

MAX_TEXT = 100


def identifiers(content: bytes) -> set[str]:
    """Return the names and short strings of a source file. Omit `getattr` if no call of getattr can return a clip."""
    nodes = parsed_nodes(content)
    names = {name for node in nodes for name in _names_in(node)}
    return names if "getattr" not in names or _looks_up_attributes(nodes) else names - {"getattr"}


def _looks_up_attributes(nodes: Sequence[ast.AST]) -> bool:
    modules: set[str] = set()
    owners: set[str] = set()
    for node in nodes:
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                modules |= {(alias.asname or alias.name).partition(".")[0] for alias in names}
            case ast.Assign(targets=targets, value=ast.Attribute() | ast.Name()):
                modules |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, name, *_]) if not isinstance(name, ast.Constant):
                while isinstance(owner, ast.Attribute):
                    owner = owner.value
                owners |= {owner.id} if isinstance(owner, ast.Name) else set()
    return bool(modules & owners)


def _names_in(node: ast.AST) -> Sequence[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
            return [name]
        case ast.alias(name=name) | ast.ImportFrom(module=str(name)):
            return name.split(".")
        case ast.Constant(value=str(text)) if len(text) < MAX_TEXT:
            return [text]
        case ast.BoolOp(values=values) if len(values) > MAX_CHAIN:
            raise UnreadableSourceError(TOO_DEEP)
    return ()
