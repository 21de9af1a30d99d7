"""Check that a step of TensorFlow applies all its gradients, each to its own variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import libcst as cst

from ..catalog import clip_function
from ..source.module import Binding, Module

CHANGES = ("append", "pop", "insert", "extend", "remove", "clear", "sort", "reverse")
"""Methods that change a list."""


class AppliedGradients:
    """Judge whether expressions contain all gradients of a call, in order, each with its variable."""

    def __init__(self, module: Module, source: cst.Call, variables: str) -> None:
        self._module, self._source, self._variables = module, source, variables
        self._open: set[object] = set()

    def is_applied(self, apply: cst.Call) -> bool:
        """Return whether a call applies all gradients, each to its own variable."""
        arguments = [argument.value for argument in apply.args]
        if len(arguments) == 2:
            return self._is_list(arguments[0]) and self._module.code(arguments[1]) == self._variables
        return self._are_pairs(arguments[0])

    def _are_pairs(self, node: cst.BaseExpression) -> bool:
        if isinstance(node, cst.Name):
            return self._all_values(node, self._are_pairs)
        if isinstance(node, cst.ListComp | cst.GeneratorExp):
            loop, each = node.for_in, node.elt
            plain = not loop.ifs and loop.inner_for_in is None and isinstance(loop.target, cst.Tuple)
            if not plain or not isinstance(each, cst.Tuple) or len(each.elements) != 2:
                return False
            same = self._module.code(each.elements[1].value) == self._module.code(loop.target.elements[-1].value)  # type: ignore[attr-defined]
            return same and self._are_pairs(loop.iter)
        if not isinstance(node, cst.Call):
            return False
        name, arguments = self._module.code(node.func), [argument.value for argument in node.args]
        if name == "list" and len(arguments) == 1:
            return self._are_pairs(arguments[0])
        is_zip = name == "zip" and len(arguments) == 2
        return is_zip and self._is_list(arguments[0]) and self._module.code(arguments[1]) == self._variables

    def _is_list(self, node: cst.BaseExpression) -> bool:
        if node is self._source:
            return True
        if isinstance(node, cst.Name):
            return self._all_values(node, self._is_list)
        if isinstance(node, cst.ListComp):
            return not node.for_in.ifs and node.for_in.inner_for_in is None and self._is_list(node.for_in.iter)
        if isinstance(node, cst.Subscript):
            return self._module.code(node).endswith("[0]") and self._is_clipped(node.value)
        is_list = isinstance(node, cst.Call) and self._module.code(node.func) == "list" and len(node.args) == 1
        return is_list and self._is_list(cast(cst.Call, node).args[0].value)

    def _is_clipped(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is clip_by_global_norm of all gradients."""
        found = clip_function(self._module.full_name(node.func)) if isinstance(node, cst.Call) else None
        return (
            found is not None
            and found.replacement == "clip_by_global_norm"
            and self._is_list(cast(cst.Call, node).args[0].value)
        )

    def _is_changed(self, binding: Binding) -> bool:
        """Return whether elements of a list are assigned, added or removed."""
        for read in binding.reads:
            outer = self._module.parents[read]
            if isinstance(outer, cst.Attribute) and outer.attr.value in CHANGES:
                return True
            inner = self._module.parents[outer] if isinstance(outer, cst.Subscript) else None
            if isinstance(inner, cst.AssignTarget | cst.AugAssign | cst.Del):
                return True
        return False

    def _all_values(self, node: cst.Name, judge: Callable[[cst.BaseExpression], bool]) -> bool:
        """Return whether `judge` accepts all values of a name. A name that is open is accepted."""
        binding = self._module.binding(node)
        if binding is None or self._is_changed(binding):
            return False
        if binding.key in self._open:
            return True
        self._open.add(binding.key)
        found = [
            bound.value is not None
            and (judge(bound.value) if not bound.path else list(bound.path) == [0] and self._is_clipped(bound.value))
            for bound in binding.bounds
        ]
        self._open.discard(binding.key)
        return all(found)
