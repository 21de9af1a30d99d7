"""Detect parameter groups, as in `parameters=[{"params": ...}, ...]`. Paddle clips each group separately."""

from __future__ import annotations

from typing import cast

import libcst as cst

from ..source.module import Module
from ..source.syntax_tree import method_of
from ..to_config import UnsureError

MAX_DEPTH = 5
"""A chain of variables, such as groups = a; a = b, is followed up to this length."""

PARAMETERS = ("parameters", "trainable_parameters", "named_parameters")


def has_groups(module: Module, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Return whether a list of parameters contains groups, which are dicts. UnsureError: the file does not show it."""
    match node:
        case cst.List(elements=elements) | cst.Tuple(elements=elements):
            return any(_is_group(module, element, depth) for element in elements)
        case cst.ListComp(elt=item) | cst.GeneratorExp(elt=item):
            return _is_group(module, item, depth)
        case cst.BinaryOperation(left=left, right=right):
            return has_groups(module, left, depth) or has_groups(module, right, depth)
        case cst.Call(func=cst.Attribute(attr=cst.Name(value=name))) if name in PARAMETERS:
            return False
        case cst.Call(func=cst.Name(value="list" | "filter"), args=[*_, argument]):
            return has_groups(module, argument.value, depth)
    binding = module.binding(node if depth < MAX_DEPTH else None)
    if binding.key is not None and binding.values is not None and len(binding.values) == 1:
        adds_group = [_adds_group(module, read, depth + 1) for read in binding.reads]
        return has_groups(module, binding.values[0], depth + 1) or any(adds_group)
    raise _unknown(module, node)


def _is_group(module: Module, node: cst.CSTNode, depth: int) -> bool:
    """Return whether an element of a list of parameters is one or several groups. UnsureError: the file does not show
    that.
    """
    match node:
        case cst.StarredElement(value=inner):
            return has_groups(module, inner, depth)
        case cst.Element(value=inner):
            return _is_group(module, inner, depth)
        case cst.Dict():
            return True
        case cst.Call(func=func):
            name = module.code(func)
            if name != "dict" and not name.endswith("create_parameter"):
                raise _unknown(module, node)
            return name == "dict"
    binding = module.binding(node if depth < MAX_DEPTH else None)
    if binding.key is None and isinstance(node, cst.Attribute):
        return False  # a parameter of a layer
    if binding.key is None or any(bound.value is None for bound in binding.bounds):
        raise _unknown(module, node)
    values = [(cast(cst.BaseExpression, bound.value), bound.path) for bound in binding.bounds]
    judged = [(has_groups if path else _is_group)(module, value, depth + 1) for value, path in values]
    return any(judged)


def _adds_group(module: Module, read: cst.CSTNode, depth: int) -> bool:
    """Return whether the place where a list is read adds a group to it, as in groups.append({...})."""
    call = module.method_call(read)
    if call is None or not call.args:
        return False
    if method_of(call) in ("append", "insert"):
        return _is_group(module, call.args[-1].value, depth)
    return method_of(call) == "extend" and has_groups(module, call.args[-1].value, depth)


def _unknown(module: Module, node: cst.CSTNode) -> UnsureError:
    return UnsureError(f"{module.code(node)} may contain parameter groups, each with its own norm. Clip them by hand.")
