"""Check that a TensorFlow training step applies all its gradients, each to its own variable."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ..catalog import clip_function
from ..source.module import Binding, Module

LIST_CHANGING_METHODS = ("append", "pop", "insert", "extend", "remove", "clear", "sort", "reverse")


class AppliedGradients:
    """Decides whether a training step applies the gradients that the call `source` returns."""

    def __init__(self, module: Module, source: cst.Call, variables: str) -> None:
        self._module, self._source, self._variables = module, source, variables
        self._in_progress: set[object] = set()

    def is_applied(self, apply: cst.Call) -> bool:
        arguments = [argument.value for argument in apply.args]
        if len(arguments) == 2:
            return self._is_list(arguments[0]) and self._module.code(arguments[1]) == self._variables
        return self._are_pairs(arguments[0])

    def _are_pairs(self, node: cst.BaseExpression) -> bool:
        match node:
            case cst.Name():
                return self._all_values(node, self._are_pairs)
            case (
                cst.ListComp(elt=cst.Tuple(elements=[_, variable]), for_in=loop)
                | cst.GeneratorExp(elt=cst.Tuple(elements=[_, variable]), for_in=loop)
            ):
                is_kept = isinstance(loop.target, cst.Tuple) and (
                    self._module.code(variable.value) == self._module.code(loop.target.elements[-1].value)
                )
                return is_kept and _is_plain(loop) and self._are_pairs(loop.iter)
            case cst.Call(func=cst.Name(value="list"), args=[argument]):
                return self._are_pairs(argument.value)
            case cst.Call(func=cst.Name(value="zip"), args=[gradients, variables]):
                return self._is_list(gradients.value) and self._module.code(variables.value) == self._variables
        return False

    def _is_list(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is a list of all gradients, in the order of the variables."""
        match node:
            case cst.Call() if node is self._source:
                return True
            case cst.Name():
                return self._all_values(node, self._is_list)
            case cst.ListComp(for_in=loop):
                return _is_plain(loop) and self._is_list(loop.iter)
            case cst.Subscript(value=inner):
                return self._module.code(node).endswith("[0]") and self._is_clipped(inner)
            case cst.Call(func=cst.Name(value="list"), args=[argument]):
                return self._is_list(argument.value)
        return False

    def _is_clipped(self, node: cst.BaseExpression) -> bool:
        if not isinstance(node, cst.Call):
            return False
        function = clip_function(self._module.full_name(node.func))
        is_clip = function is not None and function.replacement == "clip_by_global_norm"
        return is_clip and self._is_list(node.args[0].value)

    def _is_changed(self, binding: Binding) -> bool:
        for parent in (self._module.parents[read] for read in binding.reads):
            place = self._module.parents[parent] if isinstance(parent, cst.Subscript) else None
            is_method = isinstance(parent, cst.Attribute) and parent.attr.value in LIST_CHANGING_METHODS
            if is_method or isinstance(place, cst.AssignTarget | cst.AugAssign | cst.Del):
                return True
        return False

    def _all_values(self, node: cst.Name, judge: Callable[[cst.BaseExpression], bool]) -> bool:
        binding = self._module.binding(node)
        if binding.key is None or self._is_changed(binding):
            return False
        if binding.key in self._in_progress:
            return True
        self._in_progress.add(binding.key)
        accepted = [
            bound.value is not None
            and (judge(bound.value) if not bound.path else list(bound.path) == [0] and self._is_clipped(bound.value))
            for bound in binding.bounds
        ]
        self._in_progress.discard(binding.key)
        return all(accepted)


def _is_plain(loop: cst.CompFor) -> bool:
    return not loop.ifs and loop.inner_for_in is None
