"""Find Paddle's optimizers that get a clip, as in `Adam(grad_clip=clip)`."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from ...source.module import Binding, Module
from ...source.tree import Argument, arguments_of, is_name, keywords_of, method_of, sorted_nodes
from ..to_config import UnsureError
from .paddle_steps import BY_HAND, OTHERWISE, PaddleStep, find_steps, minimize_step

OPTIMIZERS = re.compile(r"paddle\.(fluid\.|incubate\.)?optimizer\.")
SOMETHING_ELSE = (
    "In line {2}, the value of {0} might not be {1}. If the value is {1}, create the value in this line by a call of "
    "Paddle's class. Otherwise, assign the value to another name."
)
UNKNOWN_VALUE = (
    "{0} gets a value that cannot be inferred, for example from an argument, a loop or a tuple. If the file "
    f"creates this value, write {{0}} = ... in a separate line. {OTHERWISE}"
)

MAX_DEPTH = 5

PARAMETERS = ("parameters", "trainable_parameters", "named_parameters")

ADDS_GROUP = ("add_param_group", "_add_param_group")


@dataclass(frozen=True)
class Optimizer:
    binding: Binding
    arguments: Sequence[Argument]

    steps: Sequence[PaddleStep]
    parameters: ast.expr | None
    grouped: bool = False


class PaddleOptimizers:
    def __init__(self, module: Module) -> None:
        self._module = module
        self._by_binding: dict[object, Optimizer] = {}

    def optimizer_of(self, argument: Argument) -> Optimizer:
        call = cast(ast.Call, self._module.parents[argument.node])
        if isinstance(call.func, ast.Attribute) and method_of(call) == "minimize":
            line, binding = self._module.position(call)[0], self._module.binding(call.func.value)
            if binding.key is None:
                remedy = "Assign the optimizer first: optimizer = ..."
                raise UnsureError(f"minimize() in line {line} is not called on a variable. {remedy}")
            return Optimizer(binding, [argument], [minimize_step(self._module, call, line)], None)
        if not OPTIMIZERS.match(self._module.full_name(call.func)):
            raise UnsureError(
                f"{self._module.code(call.func)} gets the clip, but might not be an optimizer of Paddle. {BY_HAND}"
            )
        target = self._module.only_target(call)
        binding = self._module.binding(target)
        if binding.key is None:
            raise UnsureError(
                "No line assigns the optimizer to a variable, so the steps of the optimizer cannot be found. If this "
                f"file contains the steps, assign the optimizer to a variable, as in optimizer = Adam(...). {OTHERWISE}"
            )
        statement = self._module.simple_statement(call)
        if statement is None or not self._module.has_own_line(statement):
            raise UnsureError("The optimizer shares its line with other code. Give the optimizer a line of its own.")
        function = self._module.enclosing_definition(target) if isinstance(target, ast.Name) else None
        nodes = sorted_nodes(function) if function is not None else []
        if any(isinstance(node, ast.Global | ast.Nonlocal) and binding.text in node.names for node in nodes):
            raise UnsureError(
                f"{binding.text} is global or nonlocal here, so some steps cannot be found. If possible, create the "
                f"optimizer and make its steps in one function. {OTHERWISE}"
            )
        if binding.key not in self._by_binding:
            self._by_binding[binding.key] = self._optimizer(binding)
        return self._by_binding[binding.key]

    def _optimizer(self, binding: Binding) -> Optimizer:
        arguments, lists = [], []
        for value in known_values(binding):
            if is_name(value, "None"):
                continue
            if not isinstance(value, ast.Call) or not OPTIMIZERS.match(self._module.full_name(value.func)):
                line = self._module.position(value)[0]
                raise UnsureError(SOMETHING_ELSE.format(binding.text, "an optimizer of Paddle", line))
            passed = keywords_of(value)
            unnamed = (each for each in arguments_of(value) if not each.keyword)
            positional = next((each for each in unnamed if calls_parameters(each.value)), None)
            parameters = passed.get("parameters", passed.get("parameter_list", positional))
            if "grad_clip" not in passed:
                raise UnsureError(
                    f"One of the optimizers in {binding.text} is created without grad_clip=. Use another variable for "
                    f"this optimizer. {OTHERWISE}"
                )
            if parameters is None:
                raise UnsureError(
                    f"A call might create {binding.text} without parameters=. In each call that creates the optimizer, "
                    "pass parameters= as a keyword argument."
                )
            arguments.append(passed["grad_clip"])
            lists.append(parameters.value)
        clips = [argument.value for argument in arguments]
        for name, variable, values in (("grad_clip", "clip", clips), ("parameters", "params", lists)):
            if len(set(map(self._module.code, values))) > 1:
                raise UnsureError(
                    f"The calls that create {binding.text} pass different expressions for {name}=. Before each of "
                    f"these calls, write {variable} = ... in a separate line, and pass {name}={variable}. {OTHERWISE}"
                )
        methods = [self._module.parents[read] for read in binding.reads]
        adds_group = any(isinstance(method, ast.Attribute) and method.attr in ADDS_GROUP for method in methods)
        grouped = adds_group or may_have_groups(self._module, lists[0])
        return Optimizer(binding, arguments, find_steps(self._module, binding), lists[0], grouped)


def known_values(binding: Binding) -> list[ast.expr]:
    if binding.values is None:
        raise UnsureError(UNKNOWN_VALUE.format(binding.text))
    return binding.values


def calls_parameters(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and method_of(node) == "parameters"


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
