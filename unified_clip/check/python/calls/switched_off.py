"""Find clips inside `if limit is not None`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from ....config.formats.python_source import FUNCTIONS, Source
from ...notebooks.cells import python_source, source_of
from ..steps.gradient_events import Place, passed


def is_off(source: Source, place: Place, paths: Sequence[Path]) -> bool:
    """Return whether a clip inside `if P is not None` never runs, because every caller passes None for P.

    Return False if no file calls the function, or if code passes the function as an argument.
    """
    clip = next((call for call in source.calls if (call.lineno, call.col_offset) == place), None)
    function = source.function(clip) if clip is not None else None
    if clip is None or not isinstance(function, FUNCTIONS[:2]):
        return False
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    stores = [node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    switches = {each.arg for each in arguments} & {*_switches(source, clip)}
    switches -= {store.id for store in stores if store.id not in _switches(source, store)}
    calls = _calls(function.name, paths) if switches else []
    return bool(calls) and any(all(_is_none(passed(function, call).get(name)) for call in calls) for name in switches)


def _switches(source: Source, node: ast.AST) -> Iterator[str]:
    """Yield each variable that switches the node on, such as `limit` in `if limit is not None`."""
    inner = node
    for outer in source.around(node):
        if isinstance(outer, FUNCTIONS):
            return
        if isinstance(outer, ast.If) and inner in outer.body:
            test = outer.test
            for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
                match part:
                    case (
                        ast.Name(id=name)
                        | ast.Compare(left=ast.Name(id=name), ops=[ast.IsNot()], comparators=[ast.Constant(value=None)])
                    ):
                        yield name
        inner = outer


def _calls(name: str, paths: Sequence[Path]) -> list[ast.Call]:
    """Return the calls of the function `name` in all files. If code passes the function as an argument, return []."""
    calls: list[ast.Call] = []
    for path in paths:
        if name.encode() not in python_source(path):
            continue
        if (source := source_of(path)) is None:
            return []
        for node in source.nodes:
            match node:
                case ast.alias(name=imported, asname=str()) if imported == name:
                    return []
                case ast.Name(id=used) | ast.Attribute(attr=used) | ast.Constant(value=used) if used == name:
                    parent = source.parents[node]
                    if isinstance(parent, ast.Call) and parent.func is node:
                        calls.append(parent)
                    elif isinstance(parent, ast.Call) or not isinstance(node, ast.Constant):  # as getattr(module, name)
                        return []
    return calls


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
