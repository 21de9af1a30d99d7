"""Detect parameter groups: `parameters=[{"params": ...}, ...]`, of which Paddle clips each by itself."""

from __future__ import annotations

from typing import cast

import libcst as cst

from ..source.module import Module
from ..source.syntax_tree import method_of
from ..to_config import UnsureError

MAX_DEPTH = 5
"""How many names that stand for other names are followed."""

PARAMETERS = ("parameters", "trainable_parameters", "named_parameters")


class ParameterGroups:
    """Parameter groups in the arguments of optimizers."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def are_in(self, node: cst.BaseExpression, depth: int = 0) -> bool:
        """Return whether a list of parameters contains dicts. Raises UnsureError if that cannot be seen."""
        match node:
            case cst.List(elements=elements) | cst.Tuple(elements=elements):
                return any(self._is_group(element, depth) for element in elements)
            case cst.ListComp(elt=item) | cst.GeneratorExp(elt=item):
                return self._is_group(item, depth)
            case cst.BinaryOperation(left=left, right=right):
                return self.are_in(left, depth) or self.are_in(right, depth)
            case cst.Call(func=cst.Attribute(attr=cst.Name(value=name))) if name in PARAMETERS:
                return False
            case cst.Call(func=cst.Name(value="list" | "filter"), args=[*_, argument]):
                return self.are_in(argument.value, depth)
        binding = self._module.binding(node if depth < MAX_DEPTH else None)
        if binding.key is not None and binding.values is not None and len(binding.values) == 1:
            adds_group = [self._adds_group(read, depth + 1) for read in binding.reads]
            return self.are_in(binding.values[0], depth + 1) or any(adds_group)
        raise self._unknown(node)

    def _is_group(self, node: cst.CSTNode, depth: int) -> bool:
        """Return whether an element of a list of parameters is a dict, or contains dicts."""
        match node:
            case cst.StarredElement(value=inner):
                return self.are_in(inner, depth)
            case cst.Element(value=inner):
                return self._is_group(inner, depth)
            case cst.Dict():
                return True
            case cst.Call(func=func):
                name = self._module.code(func)
                if name != "dict" and not name.endswith("create_parameter"):
                    raise self._unknown(node)
                return name == "dict"
        binding = self._module.binding(node if depth < MAX_DEPTH else None)
        if binding.key is None and isinstance(node, cst.Attribute):
            return False  # a parameter of a layer
        if binding.key is None or any(bound.value is None for bound in binding.bounds):
            raise self._unknown(node)
        values = [(cast(cst.BaseExpression, bound.value), bound.path) for bound in binding.bounds]
        judged = [(self.are_in if path else self._is_group)(value, depth + 1) for value, path in values]
        return any(judged)

    def _adds_group(self, read: cst.CSTNode, depth: int) -> bool:
        """Return whether a list is extended by dicts where it is read: groups.append({...})."""
        call = self._module.method_call(read)
        if call is None or not call.args:
            return False
        if method_of(call) in ("append", "insert"):
            return self._is_group(call.args[-1].value, depth)
        return method_of(call) == "extend" and self.are_in(call.args[-1].value, depth)

    def _unknown(self, node: cst.CSTNode) -> UnsureError:
        code = self._module.code(node)
        return UnsureError(f"{code} may contain parameter groups, each with a norm of its own.")
