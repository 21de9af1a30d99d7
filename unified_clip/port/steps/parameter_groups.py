"""Detect parameter groups, as in `parameters=[{"params": ...}, ...]`. Paddle clips each group separately."""

from __future__ import annotations

import ast
from typing import cast

from ...source.module import Module
from ...source.tree import arguments_of, method_of

MAX_DEPTH = 5

PARAMETERS = ("parameters", "trainable_parameters", "named_parameters")


def may_have_groups(module: Module, node: ast.expr, depth: int = 0) -> bool:
    """Return whether an expression can contain dicts, which are parameter groups."""
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return any(_may_be_group(module, element, depth) for element in elements)
        case ast.ListComp(elt=item) | ast.GeneratorExp(elt=item):
            return _may_be_group(module, item, depth)
        case ast.BinOp(left=left, right=right):
            return may_have_groups(module, left, depth) or may_have_groups(module, right, depth)
        case ast.Call(func=ast.Attribute(attr=name)) if name in PARAMETERS:
            return False
        case ast.Call(func=ast.Name(id="list" | "filter"), args=[*_, argument], keywords=[]):
            return may_have_groups(module, argument, depth)
    binding = module.binding(node if depth < MAX_DEPTH else None)
    if binding.key is None or binding.values is None or len(binding.values) != 1:
        return True
    added = [addition for read in binding.reads if (addition := _added(module, read))]
    if not added and isinstance(values := binding.values[0], ast.List) and not values.elts:
        return True  # other code fills the list, such as a function to which it is passed
    may_add = [(may_have_groups if is_list else _may_be_group)(module, value, depth + 1) for value, is_list in added]
    return may_have_groups(module, binding.values[0], depth + 1) or any(may_add)


def _may_be_group(module: Module, node: ast.AST, depth: int) -> bool:
    match node:
        case ast.Starred(value=inner):
            return may_have_groups(module, inner, depth)
        case ast.Call(func=func):
            return not module.code(func).endswith("create_parameter")
    binding = module.binding(node if depth < MAX_DEPTH else None)
    if binding.key is None:
        return not isinstance(node, ast.Attribute)  # an attribute is a parameter of a layer
    values = [(cast(ast.expr, bound.value), bound.path) for bound in binding.bounds]
    return any(
        value is None or (may_have_groups if path else _may_be_group)(module, value, depth + 1)
        for value, path in values
    )


def _added(module: Module, read: ast.AST) -> tuple[ast.expr, bool] | None:
    call = module.method_call(read)
    if call is None or not arguments_of(call) or method_of(call) not in ("append", "insert", "extend"):
        return None
    return arguments_of(call)[-1].value, method_of(call) == "extend"
