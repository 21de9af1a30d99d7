"""Trace gradients through a file: from the call that computes them, over assignments, loops and pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal

import libcst as cst

from ..catalog import HOOK, clip_function, is_like_gradient
from .module import Binding, BoundValue, Module
from .syntax_tree import method_of, sorted_nodes

SOURCES = {
    "tensorflow.gradients",
    "tensorflow.compat.v1.gradients",
    "torch.autograd.grad",
    "keras.backend.gradients",
    "tensorflow.keras.backend.gradients",
    "jax.grad",
    "paddle.grad",
    "paddle.autograd.grad",
    "paddle.fluid.dygraph.grad",
    "paddle.fluid.gradients",
    "paddle.static.gradients",
}
"""Functions that compute gradients."""

METHODS = {"gradient", "get_gradients", "get_unscaled_gradients", "aggregate_gradients"}
"""Methods that return gradients."""

SAME = {
    "tensorflow.convert_to_tensor",
    "tensorflow.identity",
    "tensorflow.cast",
    "tensorflow.stop_gradient",
    "tensorflow.check_numerics",
    "tensorflow.debugging.check_numerics",
    "tensorflow.compat.v1.check_numerics",
    "tensorflow.multiply",
    "tensorflow.divide",
    "tensorflow.scalar_mul",
    "horovod.tensorflow.allreduce",
    "list",
    "tuple",
    "reversed",
    "sorted",
}
"""Functions that return gradients if an argument is, or contains, gradients."""


@dataclass(frozen=True)
class ListOf:
    """A list, or another iterable, whose elements are of one kind."""

    each: Kind


@dataclass(frozen=True)
class TupleOf:
    """A tuple."""

    parts: tuple[Kind, ...]


Kind = ListOf | TupleOf | Literal["gradient"] | None

PAIRS = ListOf(TupleOf(("gradient", None)))


class Gradients:
    """The gradients in a file."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[object, Kind] = {}
        self._open: set[object] = set()

    def is_gradient(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is a gradient, or a list of them."""
        kind = self.kind(node)
        while isinstance(kind, ListOf):
            kind = kind.each
        return kind == "gradient"

    def has_gradient_name(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression has the name of a gradient."""
        while isinstance(node, cst.Subscript | cst.Call | cst.Attribute):
            if isinstance(node, cst.Attribute):
                if is_like_gradient(node.attr.value):
                    return True
                node = node.value
            else:
                node = node.value if isinstance(node, cst.Subscript) else node.func
        if not isinstance(node, cst.Name):
            return False
        return is_like_gradient(node.value) or self._comes_from_gradient_name(node)

    def _comes_from_gradient_name(self, node: cst.Name) -> bool:
        """Return whether a name comes, in a loop or a hook, from something with the name of gradients."""
        if self._is_hook_parameter(node):
            return True
        iterated = [bound.value for bound in self._module.binding(node).bounds if bound.path]
        nodes = [inner for value in iterated if value is not None for inner in sorted_nodes(value)]
        return any(isinstance(inner, cst.Name) and is_like_gradient(inner.value) for inner in nodes)

    def _is_hook_parameter(self, node: cst.Name) -> bool:
        """Return whether a name is the parameter of a hook: p.register_hook(lambda x: ...)."""
        function = self._module.enclosing_function(node)
        if not isinstance(function, cst.FunctionDef | cst.Lambda):
            return False
        parameters = [*function.params.posonly_params, *function.params.params]
        if node.value not in [each.name.value for each in parameters[-1:]]:
            return False
        given = self._hooks
        return function in given or (isinstance(function, cst.FunctionDef) and function.name.value in given)

    @cached_property
    def _hooks(self) -> list[object]:
        """Lambdas and names of functions that are registered as hooks of tensors."""
        calls = [call for call in self._module.calls if self._module.code(call.func).endswith(f".{HOOK}")]
        values = [argument.value for call in calls for argument in call.args[:1]]
        return [each.attr.value if isinstance(each, cst.Attribute) else getattr(each, "value", each) for each in values]

    def contains_gradient(self, node: cst.CSTNode, seen: set[object] | None = None) -> bool:
        """Return whether an expression, or a value of a name in it, contains a gradient.

        `seen`: the names that are done.
        """
        seen = set() if seen is None else seen
        return any(
            (isinstance(each, cst.Name | cst.Attribute | cst.Call) and has_gradient(self.kind(each)))
            or (isinstance(each, cst.Name) and self._is_bound_to_gradient(each, seen))
            or (isinstance(each, cst.Call) and self._returns_gradient(each))
            for each in sorted_nodes(node)
        )

    def _returns_gradient(self, call: cst.Call) -> bool:
        """Return whether a function of the file, or a method of that name, returns gradients."""
        name = self._module.code(call.func).rpartition(".")[2]
        return any(has_gradient(self.kind(value)) for value in self._returned.get(name, ()))

    @cached_property
    def _returned(self) -> dict[str, list[cst.BaseExpression]]:
        """Values that functions return and yield, by name of the function."""
        found: dict[str, list[cst.BaseExpression]] = {}
        for node in self._module.nodes:
            if isinstance(node, cst.Return | cst.Yield) and isinstance(node.value, cst.BaseExpression):
                function = self._module.enclosing(node, cst.FunctionDef)
                name = function.name.value if isinstance(function, cst.FunctionDef) else ""
                found.setdefault(name, []).append(node.value)
        return found

    def _is_bound_to_gradient(self, name: cst.Name, seen: set[object]) -> bool:
        binding = self._module.binding(name)
        if binding.key is None or binding.key in seen:
            return False
        seen.add(binding.key)
        values = [bound.value for bound in binding.bounds]
        if None in values:
            values += self._arguments_of_parameter(name)
        return any(self.contains_gradient(value, seen) for value in values if value is not None)

    def _arguments_of_parameter(self, name: cst.Name) -> list[cst.BaseExpression | None]:
        """Return the arguments of calls of a function, or the arguments beside a lambda."""
        function = self._module.enclosing_function(name)
        if isinstance(function, cst.FunctionDef):
            calls = [call for call in self._module.calls if self._module.code(call.func) == function.name.value]
        else:
            around = islice(self._module.ancestors(function), 2) if function is not None else ()
            calls = [each for each in around if isinstance(each, cst.Call)]
        values = [argument.value for call in calls for argument in call.args]
        return [value for value in values if value is not function]

    def kind(self, node: cst.BaseExpression | None) -> Kind:
        """Return what an expression contains."""
        if isinstance(node, cst.Name):
            return self._of_binding(self._module.binding(node))
        if isinstance(node, cst.Attribute):
            return self._of_attribute(node)
        if isinstance(node, cst.Call):
            return self._of_call(node)
        if isinstance(node, cst.ListComp | cst.GeneratorExp | cst.SetComp):
            return ListOf(self.kind(node.elt))
        if isinstance(node, cst.List | cst.Tuple):
            return self._of_elements(node)
        if isinstance(node, cst.Subscript):
            return element(self.kind(node.value), _index(node))
        if isinstance(node, cst.IfExp):
            return self.kind(node.body) or self.kind(node.orelse)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply | cst.Divide):
            return self.kind(node.left) or self.kind(node.right)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
            both = self.kind(node.left), self.kind(node.right)
            return both[0] if all(isinstance(each, ListOf) for each in both) else None
        return self.kind(node.value) if isinstance(node, cst.NamedExpr) else None

    def _of_attribute(self, node: cst.Attribute) -> Kind:
        if node.attr.value == "grad":  # the attribute of a parameter, not jax.grad
            return None if self._module.full_name(node) in SOURCES else "gradient"
        if node.attr.value == "data":
            return self.kind(node.value)
        return self._of_binding(self._module.binding(node))

    def _of_elements(self, node: cst.List | cst.Tuple) -> Kind:
        kinds = tuple(self.kind(each.value) for each in node.elements)
        if isinstance(node, cst.Tuple):
            return TupleOf(kinds)
        return ListOf(next((kind for kind in kinds if kind), None))

    def _of_binding(self, binding: Binding) -> Kind:
        if binding.key is None or binding.key in self._open:
            return None
        if binding.key not in self._known:
            self._open.add(binding.key)
            found = [self._of_bound(bound) for bound in binding.bounds]
            found += [ListOf(self.kind(value)) for value in self._appended(binding)]
            self._open.discard(binding.key)
            kind = next((kind for kind in found if has_gradient(kind)), None)
            if kind is None and self._open:  # it may depend on a binding that is open: ask again later
                return None
            self._known[binding.key] = kind
        return self._known[binding.key]

    def _of_bound(self, bound: BoundValue) -> Kind:
        kind = self.kind(bound.value)
        for place in bound.path:
            kind = element(kind, place)
        return kind

    def _appended(self, binding: Binding) -> list[cst.BaseExpression]:
        """Return the values that are appended to a list."""
        calls = [call for read in binding.reads if (call := self._module.method_call(read)) is not None]
        return [argument.value for call in calls if method_of(call) == "append" for argument in call.args[:1]]

    def _of_call(self, node: cst.Call) -> Kind:
        if isinstance(node.func, cst.Call) and self._module.full_name(node.func.func) == "jax.grad":
            return "gradient"
        name = self._module.full_name(node.func) or self._module.code(node.func)
        arguments = [argument.value for argument in node.args if not argument.star]
        if name in SOURCES:
            return ListOf("gradient") if name != "jax.grad" else None
        if isinstance(node.func, cst.Attribute):
            method = node.func.attr.value
            if method == "compute_gradients":
                return PAIRS
            if method in METHODS and (method != "gradient" or self._is_tape(node.func.value)):
                return "gradient"
        if name in ("zip", "itertools.zip_longest"):
            return self._of_zip(node, arguments)
        if name == "enumerate" and arguments:
            return ListOf(TupleOf((None, element(self.kind(arguments[0]), None))))
        if name == "next" and arguments:
            return element(self.kind(arguments[0]), None)
        function = clip_function(name)
        if function is not None and function.kind in ("functional", "any tensor") and arguments:
            inner = self.kind(arguments[0])
            return TupleOf((inner, None)) if function.replacement == "clip_by_global_norm" else inner
        if name in SAME:
            return next((kind for kind in map(self.kind, arguments) if kind), None)
        return None

    def _of_zip(self, node: cst.Call, arguments: Sequence[cst.BaseExpression]) -> Kind:
        if len(node.args) == 1 and node.args[0].star == "*":
            inner = element(self.kind(node.args[0].value), None)
            return TupleOf(tuple(ListOf(part) for part in inner.parts)) if isinstance(inner, TupleOf) else None
        if len(arguments) != len(node.args):
            return None
        return ListOf(TupleOf(tuple(element(self.kind(each), None) for each in arguments)))

    def _is_tape(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is a gradient tape."""
        if isinstance(node, cst.Name | cst.Attribute):
            values = [bound.value for bound in self._module.binding(node).bounds]
            return any(map(self._makes_tape, values)) or "tape" in self._module.code(node).lower()
        return self._makes_tape(node)

    def _makes_tape(self, node: cst.BaseExpression | None) -> bool:
        return isinstance(node, cst.Call) and self._module.full_name(node.func).rpartition(".")[2] == "GradientTape"


def element(kind: Kind, place: int | None) -> Kind:
    """Return the kind of an element: of a tuple the one at a position, else any."""
    if isinstance(kind, TupleOf):
        if place is None:
            return kind.parts[0] if kind.parts and all(part == kind.parts[0] for part in kind.parts) else None
        return kind.parts[place] if -len(kind.parts) <= place < len(kind.parts) else None
    return kind.each if isinstance(kind, ListOf) else kind


def has_gradient(kind: Kind) -> bool:
    if isinstance(kind, ListOf):
        return has_gradient(kind.each)
    return any(map(has_gradient, kind.parts)) if isinstance(kind, TupleOf) else kind == "gradient"


def _index(node: cst.Subscript) -> int | None:
    """Return the number in brackets; None for anything else."""
    if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        value = node.slice[0].slice.value
        if isinstance(value, cst.Integer):
            return value.evaluated_value
    return None
