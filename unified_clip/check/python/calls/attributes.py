"""Thresholds in attributes that one line of a class sets, such as `self.limit = limit` in `__init__`."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ...._static_values import is_number
from ....config.formats.python_source import Source, last_name
from ....errors import ConfigError
from ...notebooks.cells import python_source, source_of
from ..optimizers import COMPARING
from ..steps.flow import assigned
from .parsed import SETTERS, with_derived

NAMING = (ast.AnnAssign, ast.Attribute, ast.BinOp, ast.ClassDef, ast.Compare, ast.FunctionDef, ast.Subscript, ast.arg)
"""Code around the name of a class that creates no object of the class, such as a type."""


class Attribute(NamedTuple):
    """An attribute that one line of its class sets."""

    owner: ast.ClassDef
    name: str
    value: ast.expr
    """The constant, or the default of the parameter."""

    parameter: str = ""
    """The parameter of `__init__` whose value the attribute gets, or '' for a constant."""

    position: int = 0
    """The index of the parameter, without `self`."""

    is_in_init: bool = True
    """Whether `__init__` sets the attribute, not the body of the class."""


def find(source: Source, clip: ast.Call | None, code: str, paths: Sequence[Path]) -> tuple[str, float] | None:
    """Return (option, number) for a threshold in an attribute, or None if other code may set the threshold.

    The option is the parameter of `__init__` whose default is the number, such as "Trainer.max_grad_norm". It is '' if
    the attribute is a constant.

    code: The code of the threshold, such as "self.max_grad_norm". paths: The other checked Python files.
    """
    owner, _, name = code.partition(".")
    around = source.around(clip) if clip is not None and owner == "self" else ()
    outer = next((each for each in around if isinstance(each, ast.ClassDef)), None)
    attribute = _of_class(outer, name) if outer is not None and not outer.decorator_list else None
    stores = sum(_stores(node, name) for node in source.nodes)
    if attribute is None or stores > attribute.is_in_init or _may_set(source, attribute):
        return None
    for path in paths:
        if attribute.owner.name.encode() in python_source(path):
            other = source_of(path)
            if other is None or (_names(other, attribute.owner.name) and _may_set(other, attribute, is_other=True)):
                return None
    with contextlib.suppress(ConfigError, OverflowError):
        number = source.constant(attribute.value)
        option = f"{attribute.owner.name}.{attribute.parameter}" if attribute.parameter else ""
        return (option, float(number)) if is_number(number) else None
    return None


def _of_class(owner: ast.ClassDef, name: str) -> Attribute | None:
    """Return the attribute that the body of a class or its `__init__` sets, or None if not exactly one line does."""
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
    """Return the values that statements among `nodes` give to a target. `target`: its code."""
    return [value for node in nodes for each, value, _ in assigned(node) if ast.unparse(each) == target]


def _stores(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)


def _names(source: Source, name: str) -> bool:
    """Return whether the code of a file has a name, other than in strings and comments."""
    return any(
        name in (getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "name", "")) for node in source.nodes
    )


def _may_set(source: Source, attribute: Attribute, *, is_other: bool = False) -> bool:
    """Return whether code of a file may set the attribute, or may pass a value for the parameter of the class.

    is_other: Whether this is not the file of the class. Then code that sets an attribute of this name counts, too.
    """
    classes = with_derived(source, attribute.owner.name)
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
