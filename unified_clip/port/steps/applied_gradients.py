"""Check that a step of TensorFlow applies all its gradients, each to its own variable."""

from __future__ import annotations

from collections.abc import Callable

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
            target = node.for_in.target
            if not _is_plain(node.for_in) or not isinstance(target, cst.Tuple):
                return False
            if not isinstance(node.elt, cst.Tuple) or len(node.elt.elements) != 2:
                return False
            last = [self._module.code(each.elements[-1].value) for each in (node.elt, target)]
            return last[0] == last[1] and self._are_pairs(node.for_in.iter)
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
            return _is_plain(node.for_in) and self._is_list(node.for_in.iter)
        if isinstance(node, cst.Subscript):
            return self._module.code(node).endswith("[0]") and self._is_clipped(node.value)
        if isinstance(node, cst.Call) and self._module.code(node.func) == "list" and len(node.args) == 1:
            return self._is_list(node.args[0].value)
        return False

    def _is_clipped(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is clip_by_global_norm of all gradients."""
        if not isinstance(node, cst.Call):
            return False
        function = clip_function(self._module.full_name(node.func))
        is_clip = function is not None and function.replacement == "clip_by_global_norm"
        return is_clip and self._is_list(node.args[0].value)

    def _is_changed(self, binding: Binding) -> bool:
        """Return whether elements of a list are assigned, added or removed."""
        parents = [self._module.parents[read] for read in binding.reads]
        places = [self._module.parents[parent] for parent in parents if isinstance(parent, cst.Subscript)]
        return any(isinstance(parent, cst.Attribute) and parent.attr.value in CHANGES for parent in parents) or any(
            isinstance(place, cst.AssignTarget | cst.AugAssign | cst.Del) for place in places
        )

    def _all_values(self, node: cst.Name, judge: Callable[[cst.BaseExpression], bool]) -> bool:
        """Return whether `judge` accepts all values of a name. A name that is open is accepted."""
        binding = self._module.binding(node)
        if binding.key is None or self._is_changed(binding):
            return False
        if binding.key in self._open:
            return True
        self._open.add(binding.key)
        accepted = [
            bound.value is not None
            and (judge(bound.value) if not bound.path else list(bound.path) == [0] and self._is_clipped(bound.value))
            for bound in binding.bounds
        ]
        self._open.discard(binding.key)
        return all(accepted)


def _is_plain(loop: cst.CompFor) -> bool:
    """Return whether a comprehension has one loop and no condition."""
    return not loop.ifs and loop.inner_for_in is None
