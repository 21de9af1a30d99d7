"""Find the gradients in a file."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Literal

from ..source.module import SELF, Binding, Module
from ..source.tree import Function, arguments_of, last_name, method_of, sorted_nodes
from .catalog import HOOK, clip_function, is_like_gradient, names


@dataclass(frozen=True)
class ListOf:
    item: Kind


@dataclass(frozen=True)
class TupleOf:
    parts: tuple[Kind, ...]


Kind = ListOf | TupleOf | Literal["gradient"] | None

APPLY_METHODS = ("apply_gradients", "apply")
PARAMETER_NAME = re.compile(r"(?i)var|weight|param|theta|trainable|kernel|bias|\b[pwvb]s?\b")

PAIRS = ListOf(TupleOf(("gradient", None)))


class Gradients:
    def __init__(self, module: Module) -> None:
        self._module = module
        self._kinds: dict[object, Kind] = {}
        self._in_progress: set[object] = set()

    def is_gradient(self, node: ast.expr) -> bool:
        kind = self.kind(node)
        while isinstance(kind, ListOf):
            kind = kind.item
        return kind == "gradient"

    def may_be_gradient(self, node: ast.expr) -> bool:
        """Return whether an expression is a gradient, or contains a name that is typical of gradients, such as `grads`.

        A name such as `g` is typical only if it iterates over such a name, or if a call passes such a name for it.
        """
        return self.is_gradient(node) or self._has_gradient_name(node)

    def _has_gradient_name(self, node: ast.expr) -> bool:
        match node:
            case ast.Attribute(value=inner, attr=attribute):
                return is_like_gradient(attribute) or self._has_gradient_name(inner)
            case ast.Subscript(value=inner) | ast.Call(func=inner):
                return self._has_gradient_name(inner)
            case ast.Name():
                iterated = [bound.value for bound in self._module.binding(node).bounds if bound.path]
                nodes = [node, *(inner for value in iterated if value is not None for inner in sorted_nodes(value))]
                nodes += self._arguments_of_parameter(node)
                is_like = any(isinstance(inner, ast.Name) and is_like_gradient(inner.id) for inner in nodes)
                return is_like or self._is_hook_parameter(node)
        return False

    def _is_hook_parameter(self, name: ast.Name) -> bool:
        *_, last = ["", *_parameters(self._module.enclosing_function(name))]
        return name.id == last and any(
            self._module.code(call.func).endswith(f".{HOOK}") for call, _ in self._calls_around(name)
        )

    def contains_gradient(self, node: ast.AST, visited: set[object] | None = None) -> bool:
        visited = set() if visited is None else visited
        return any(
            (isinstance(inner, ast.Name | ast.Attribute | ast.Call) and has_gradient(self.kind(inner)))
            or (isinstance(inner, ast.Name) and self._is_bound_to_gradient(inner, visited))
            or (isinstance(inner, ast.Call) and self._returns_gradient(inner))
            for inner in sorted_nodes(node)
        )

    def _returns_gradient(self, call: ast.Call) -> bool:
        name = self._module.code(call.func).rpartition(".")[2]
        return any(has_gradient(self.kind(value)) for value in self._returned.get(name, ()))

    @cached_property
    def _returned(self) -> dict[str, list[ast.expr]]:
        values: defaultdict[str, list[ast.expr]] = defaultdict(list)
        for node in self._module.nodes:
            if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value is not None:
                function = self._module.enclosing_definition(node)
                values[function.name if function is not None else ""].append(node.value)
        return values

    def _is_bound_to_gradient(self, name: ast.Name, visited: set[object]) -> bool:
        binding = self._module.binding(name)
        if binding.key is None or binding.key in visited:
            return False
        visited.add(binding.key)
        values = [*(bound.value for bound in binding.bounds), *self._arguments_of_parameter(name)]
        return any(self.contains_gradient(value, visited) for value in values if value is not None)

    def _arguments_of_parameter(self, name: ast.Name) -> list[ast.expr]:
        """Return what code passes for a parameter, in calls of its function or in calls such as map(function, ...)."""
        names = _parameters(self._module.enclosing_function(name))
        place = names.index(name.id) if name.id in names else None
        return [] if place is None else [passed[place] for _, passed in self._calls_around(name) if place < len(passed)]

    def _calls_around(self, name: ast.Name) -> Iterator[tuple[ast.Call, list[ast.expr]]]:
        """Yield the calls with the function of a name, and their other arguments."""
        function = self._module.enclosing_function(name)
        key = function.name if isinstance(function, Function) else function
        for call in self._calls_with.get(key, ()):
            yield call, [each.value for each in arguments_of(call) if _name_or_node(each.value) != key]

    @cached_property
    def _calls_with(self) -> dict[object, list[ast.Call]]:
        """The calls of a function and the calls that get it as an argument, by its name or by its lambda node."""
        calls: defaultdict[object, list[ast.Call]] = defaultdict(list)
        for call in self._module.calls:
            values = [call.func, *(argument.value for argument in arguments_of(call))]
            for key in dict.fromkeys(map(_name_or_node, values)):
                calls[key].append(call)
        return calls

    def other_variable(self, clipped: ast.expr, clip: ast.Call) -> str:
        """Return the code of an input, such as an action, if `clipped` is its gradient. Return '' for a parameter."""
        sources = [inner for inner in self._reached(clipped) if isinstance(inner, ast.Call) and self._of_inputs(inner)]
        inputs = [argument.value for call in sources for argument in arguments_of(call)[1:2]]
        codes = [self._module.code(each) for node in inputs for each in self._values(node)]
        if not inputs or any(map(PARAMETER_NAME.search, codes)):
            return ""
        applied = [
            argument.value
            for call in self._module.calls
            if method_of(call) in APPLY_METHODS
            for argument in arguments_of(call)
        ]
        return (
            "" if any(clip in self._reached(value) for value in applied) else self._module.code(inputs[0]).strip("[]")
        )

    def _of_inputs(self, call: ast.Call) -> bool:
        is_tape = method_of(call) == "gradient" and self._is_tape(call.func)
        return is_tape or self._module.full_name(call.func) in names("gradient_sources")

    def _values(self, node: ast.expr) -> list[ast.AST]:
        """Return an expression, and the values of the variable. Of a call, return the function."""
        values = [node, *(bound.value for bound in self._module.binding(node).bounds if bound.value is not None)]
        return [value.func if isinstance(value, ast.Call) else value for value in values]

    def _reached(self, node: ast.expr) -> list[ast.AST]:
        """Return all nodes of an expression, and of the values of its variables."""
        reached, waiting, visited = [], [node], set()
        while waiting:
            for inner in sorted_nodes(waiting.pop()):
                reached.append(inner)
                binding = self._module.binding(inner if isinstance(inner, ast.Name | ast.Attribute) else None)
                if binding.key not in visited:
                    visited.add(binding.key)
                    waiting += [bound.value for bound in binding.bounds if bound.value is not None]
        return reached

    def kind(self, node: ast.expr | None) -> Kind:
        """Return the kind of an expression: "gradient", a list or tuple of kinds, or None."""
        match node:
            case ast.Attribute(attr="grad"):  # of a parameter, not jax.grad
                return None if self._module.full_name(node) in names("gradient_sources") else "gradient"
            case ast.Attribute(value=inner, attr="data") | ast.NamedExpr(value=inner):
                return self.kind(inner)
            case ast.Name() | ast.Attribute():
                return self._of_binding(self._module.binding(node))
            case ast.Call():
                return self._of_call(node)
            case ast.ListComp(elt=inner) | ast.GeneratorExp(elt=inner) | ast.SetComp(elt=inner):
                return ListOf(self.kind(inner))
            case ast.Tuple(elts=elements):
                return TupleOf(tuple(map(self.kind, elements)))
            case ast.List(elts=elements):
                return ListOf(next(filter(None, map(self.kind, elements)), None))
            case ast.Subscript(value=inner, slice=ast.Constant(value=int(index))):
                return element(self.kind(inner), index)
            case ast.Subscript(value=inner):
                return element(self.kind(inner), None)
            case ast.IfExp(body=left, orelse=right):
                return self.kind(left) or self.kind(right)
            case ast.BinOp(left=left, right=right, op=ast.Mult() | ast.Div()):
                return self.kind(left) or self.kind(right)
            case ast.BinOp(left=left, right=right, op=ast.Add()):
                both = self.kind(left), self.kind(right)
                return both[0] if all(isinstance(kind, ListOf) for kind in both) else None
        return None

    def _of_binding(self, binding: Binding) -> Kind:
        if binding.key is None or binding.key in self._in_progress:
            return None
        if binding.key not in self._kinds:
            self._in_progress.add(binding.key)
            kinds = [reduce(element, bound.path, self.kind(bound.value)) for bound in binding.bounds]
            calls = [call for read in binding.reads if (call := self._module.method_call(read)) is not None]
            added = [
                argument.value for call in calls if method_of(call) == "append" for argument in arguments_of(call)[:1]
            ]
            kinds += [ListOf(self.kind(value)) for value in added]
            self._in_progress.discard(binding.key)
            kind = next(filter(has_gradient, kinds), None)
            # unknown only because another binding is being examined: do not cache None
            if kind is None and self._in_progress:
                return None
            self._kinds[binding.key] = kind
        return self._kinds[binding.key]

    def _of_call(self, node: ast.Call) -> Kind:
        if isinstance(node.func, ast.Call) and self._module.full_name(node.func.func) == "jax.grad":
            return "gradient"
        name, method = self._module.full_name(node.func) or self._module.code(node.func), method_of(node)
        arguments = [argument.value for argument in arguments_of(node) if not argument.star]
        if name in names("gradient_sources"):
            return ListOf("gradient") if name != "jax.grad" else None
        if method == "compute_gradients":
            return PAIRS
        if method in names("gradient_methods") and (method != "gradient" or self._is_tape(node.func)):
            return "gradient"
        if name in ("zip", "itertools.zip_longest"):
            return self._of_zip(node, arguments)
        if not arguments:
            return None
        if name == "enumerate":
            return ListOf(TupleOf((None, element(self.kind(arguments[0]), None))))
        if name == "next":
            return element(self.kind(arguments[0]), None)
        function = clip_function(name)
        if function is not None and function.kind in ("functional", "any tensor"):
            inner = self.kind(arguments[0])
            return TupleOf((inner, None)) if function.replacement == "clip_by_global_norm" else inner
        return next(filter(None, map(self.kind, arguments)), None) if name in names("gradient_passed_on") else None

    def _of_zip(self, node: ast.Call, arguments: Sequence[ast.expr]) -> Kind:
        passed = arguments_of(node)
        if len(passed) == 1 and passed[0].star == "*":
            inner = element(self.kind(passed[0].value), None)
            return TupleOf(tuple(ListOf(part) for part in inner.parts)) if isinstance(inner, TupleOf) else None
        if len(arguments) != len(passed):
            return None
        return ListOf(TupleOf(tuple(element(self.kind(argument), None) for argument in arguments)))

    def _is_tape(self, method: ast.expr) -> bool:
        owner = method.value if isinstance(method, ast.Attribute) else method
        is_named = isinstance(owner, ast.Name | ast.Attribute)
        values = [bound.value for bound in self._module.binding(owner).bounds] if is_named else [owner]
        functions = [self._module.full_name(value.func) for value in values if isinstance(value, ast.Call)]
        is_created = any(name.rpartition(".")[2] == "GradientTape" for name in functions)
        return is_created or (is_named and "tape" in self._module.code(owner).lower())


def _parameters(function: Function | ast.Lambda | None) -> list[str]:
    parameters = [] if function is None else [*function.args.posonlyargs, *function.args.args]
    return [each.arg for each in parameters if each.arg not in SELF]


def element(kind: Kind, place: int | None) -> Kind:
    if isinstance(kind, TupleOf):
        if place is None:
            return kind.parts[0] if kind.parts and all(part == kind.parts[0] for part in kind.parts) else None
        return kind.parts[place] if -len(kind.parts) <= place < len(kind.parts) else None
    return kind.item if isinstance(kind, ListOf) else kind


def has_gradient(kind: Kind) -> bool:
    if isinstance(kind, ListOf):
        return has_gradient(kind.item)
    return any(map(has_gradient, kind.parts)) if isinstance(kind, TupleOf) else kind == "gradient"


def _name_or_node(node: ast.expr) -> object:
    return last_name(node) or node
