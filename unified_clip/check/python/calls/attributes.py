"""Find thresholds in attributes, such as `self.limit = limit` in `__init__`."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from ...._kit.static_values import is_number
from ....config.formats.python_source import Source, last_name
from ....errors import ConfigError
from ...notebooks.cells import python_source, source_of
from ..optimizers import COMPARING
from .parsed_arguments import SETTERS, with_derived

NAMING = (ast.AnnAssign, ast.Attribute, ast.BinOp, ast.ClassDef, ast.Compare, ast.FunctionDef, ast.Subscript, ast.arg)
"""Kinds of code that can name a class without creating an object, such as a type annotation."""


class Attribute(NamedTuple):
    """An attribute that a class sets in exactly one line."""

    owner: ast.ClassDef
    name: str
    value: ast.expr

    parameter: str = ""
    """The parameter of `__init__` that sets the attribute, or '' for a constant."""

    position: int = 0

    is_in_init: bool = True


def find(source: Source, clip: ast.Call | None, code: str, paths: Sequence[Path]) -> tuple[str, float] | None:
    """Return (option, value) for a threshold such as `self.limit`, or None if the threshold might change later.

    The option is a parameter of `__init__`, such as "Trainer.max_grad_norm". For a constant, the option is ''.
    """
    owner, _, name = code.partition(".")
    around = source.around(clip) if clip is not None and owner == "self" else ()
    outer = next((each for each in around if isinstance(each, ast.ClassDef)), None)
    attribute = _of_class(outer, name) if outer is not None and not outer.decorator_list else None
    if attribute is None or sum(_stores(node, name) for node in source.nodes) > attribute.is_in_init:
        return None
    number = None
    with contextlib.suppress(ConfigError, OverflowError):
        value = source.constant(attribute.value)
        number = float(value) if is_number(value) else None
    classes = with_derived(source, {attribute.owner.name})
    if number is None or _may_set(source, attribute, classes) or _is_set_in(paths, attribute, classes):
        return None
    return f"{attribute.owner.name}.{attribute.parameter}" if attribute.parameter else "", number


def _is_set_in(paths: Sequence[Path], attribute: Attribute, classes: Set[str]) -> bool:
    texts = {path: python_source(path) for path in paths}
    sources: dict[Path, Source] = {}
    before = 0
    while before < len(classes):
        before = len(classes)
        for path in paths:
            if path not in sources and any(name.encode() in texts[path] for name in classes):
                if (source := source_of(path)) is None:
                    return True
                sources[path] = source
            classes = with_derived(sources[path], classes) if path in sources else classes
    return any(_may_set(source, attribute, classes, is_other=True) for source in sources.values())


def _of_class(owner: ast.ClassDef, name: str) -> Attribute | None:
    init = next((each for each in owner.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
    inner = list(ast.walk(init)) if init is not None else []
    in_class, in_init = _values(owner.body, name), _values(inner, f"self.{name}")
    if len(in_class) + len(in_init) != 1:
        return None
    value = (in_class + in_init)[0]
    if init is None or in_class or not isinstance(value, ast.Name):
        return Attribute(owner, name, value, is_in_init=not in_class)
    names = [each.arg for each in (*init.args.posonlyargs, *init.args.args)]
    named = [each.arg for each in init.args.kwonlyargs]
    defaults = dict(zip(reversed(names), reversed(init.args.defaults), strict=False))
    defaults |= {each: default for each, default in zip(named, init.args.kw_defaults, strict=True) if default}
    if value.id not in (*names, *named):
        return Attribute(owner, name, value)
    if value.id not in defaults or _values(inner, value.id):
        return None
    position = names.index(value.id) - 1 if value.id in names else len(names)
    return Attribute(owner, name, defaults[value.id], value.id, position)


def _values(nodes: Iterable[ast.AST], target: str) -> list[ast.expr]:
    return [value for node in nodes for each, value in _assigned(node) if ast.unparse(each) == target]


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                match target, value:
                    case ast.Tuple(elts=names), ast.Tuple(elts=values) if len(names) == len(values):
                        yield from zip(names, values, strict=True)
                    case ast.Tuple(elts=names), _:
                        yield from ((name, value) for name in names)
                    case _:
                        yield target, value
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.AugAssign(target=target, value=value):
            yield target, value


def _stores(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)


def _may_set(source: Source, attribute: Attribute, classes: Set[str], *, is_other: bool = False) -> bool:
    named = {getattr(node, key, "") for node in source.nodes if is_other for key in ("id", "attr", "name")}
    if is_other and not named & classes:
        return False
    for node in source.nodes:
        match node:
            case ast.Attribute() if is_other and _stores(node, attribute.name):
                return True
            case ast.Call(func=function) if last_name(function) in (*SETTERS, "vars"):
                return True
            case ast.Attribute(attr="__dict__"):
                return True
            case ast.ClassDef(name=name) if name in classes and node is not attribute.owner:
                if _values(node.body, attribute.name):
                    return True
            case ast.alias(name=name, asname=str()) if name in classes:
                return True
            case ast.Call(func=function) if attribute.parameter:
                is_base = last_name(function) == "__init__" and attribute.owner in source.around(node)
                if last_name(function) in (*classes, "cls", "__init__") and not is_base and _passes(node, attribute):
                    return True
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()) if last_name(node) in classes:
                parent = source.parents[node]
                is_called = isinstance(parent, ast.Call) and (
                    parent.func is node or last_name(parent.func) in COMPARING
                )
                if attribute.parameter and not is_called and not isinstance(parent, NAMING):
                    return True
    return False


def _passes(call: ast.Call, attribute: Attribute) -> bool:
    is_positional = len(call.args) > attribute.position or any(isinstance(each, ast.Starred) for each in call.args)
    return is_positional or any(each.arg in (attribute.parameter, None) for each in call.keywords)
