"""Check that a TensorFlow training step applies all its gradients, each to its own variable."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...source.module import Binding, Module
from ...source.tree import arguments_of
from ..catalog import clip_function

LIST_CHANGING_METHODS = ("append", "pop", "insert", "extend", "remove", "clear", "sort", "reverse")


class AppliedGradients:
    """Decides whether a training step applies the gradients that the call `source` returns."""

    def __init__(self, module: Module, source: ast.Call, variables: str) -> None:
        self._module, self._source, self._variables = module, source, variables
        self._in_progress: set[object] = set()

    def is_applied(self, apply: ast.Call) -> bool:
        arguments = [argument.value for argument in arguments_of(apply)]
        if len(arguments) == 2:
            return self._is_list(arguments[0]) and self._module.code(arguments[1]) == self._variables
        return self._are_pairs(arguments[0])

    def _are_pairs(self, node: ast.expr) -> bool:
        match node:
            case ast.Name():
                return self._all_values(node, self._are_pairs)
            case (
                ast.ListComp(elt=ast.Tuple(elts=[_, variable]), generators=[loop])
                | ast.GeneratorExp(elt=ast.Tuple(elts=[_, variable]), generators=[loop])
            ):
                is_kept = isinstance(loop.target, ast.Tuple) and (
                    self._module.code(variable) == self._module.code(loop.target.elts[-1])
                )
                return is_kept and not loop.ifs and self._are_pairs(loop.iter)
            case ast.Call(func=ast.Name(id="list"), args=[argument], keywords=[]):
                return self._are_pairs(argument)
            case ast.Call(func=ast.Name(id="zip"), args=[gradients, variables], keywords=[]):
                return self._is_list(gradients) and self._module.code(variables) == self._variables
        return False

    def _is_list(self, node: ast.expr) -> bool:
        """Return whether an expression is a list of all gradients, in the order of the variables."""
        match node:
            case ast.Call() if node is self._source:
                return True
            case ast.Name():
                return self._all_values(node, self._is_list)
            case ast.ListComp(generators=[loop]):
                return not loop.ifs and self._is_list(loop.iter)
            case ast.Subscript(value=inner):
                return self._module.code(node).endswith("[0]") and self._is_clipped(inner)
            case ast.Call(func=ast.Name(id="list"), args=[argument], keywords=[]):
                return self._is_list(argument)
        return False

    def _is_clipped(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return False
        function = clip_function(self._module.full_name(node.func))
        is_clip = function is not None and function.replacement == "clip_by_global_norm"
        return is_clip and self._is_list(arguments_of(node)[0].value)

    def _is_changed(self, binding: Binding) -> bool:
        for parent in (self._module.parents[read] for read in binding.reads):
            is_set = isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load)
            is_method = isinstance(parent, ast.Attribute) and parent.attr in LIST_CHANGING_METHODS
            if is_method or is_set:
                return True
        return False

    def _all_values(self, node: ast.Name, judge: Callable[[ast.expr], bool]) -> bool:
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
