"""A step of TensorFlow, from the gradient to `apply_gradients`, on its way to PyTorch's backward() and step()."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import libcst as cst

from .edits import Edits
from .gradients import SOURCES, Gradients
from .meaning import UnsureError
from .module import Module, Target, sorted_nodes

GRAPH = "it is built once, to be run by a session, and PyTorch's step is run each time"
SCALED = ("get_scaled_loss", "get_unscaled_gradients", "scale_loss")
REPLICAS = ("get_replica_context", "all_reduce", "experimental_run_v2", "MirroredStrategy", "TPUStrategy")
METHODS = ("gradient", "compute_gradients", "get_gradients")
APPLIES = ("apply_gradients", "apply")

Body = cst.FunctionDef | cst.Module


@dataclass(frozen=True)
class TapeStep:
    """A step in one block: where the gradients come from, and where they are applied."""

    source: cst.Call
    source_statement: cst.BaseSmallStatement
    loss: cst.BaseExpression
    variables: str
    optimizer: str
    apply: cst.Call
    apply_statement: cst.BaseSmallStatement


class Steps:
    """The steps of a file, by function."""

    def __init__(self, module: Module, gradients: Gradients) -> None:
        self._module, self._gradients = module, gradients
        self._calls: dict[cst.CSTNode, list[cst.Call]] = {}
        for node in module.nodes:
            if isinstance(node, cst.Call):
                self._calls.setdefault(self.body(node), []).append(node)

    def body(self, node: cst.CSTNode) -> cst.CSTNode:
        """The function that a node is in, or the file."""
        return self._module.enclosing(node, cst.FunctionDef) or self._module.tree

    def step(self, body: cst.CSTNode) -> TapeStep | None:
        """The step in a function; None where there is no part of one. Raises UnsureError where it cannot be ported."""
        calls = self._calls.get(body, [])
        sources = [call for call in calls if self._is_source(call)]
        applies = [call for call in calls if self._is_apply(call)]
        if not sources and not applies:
            return None
        if len(sources) > 1 or len(applies) > 1:
            raise UnsureError("there are several gradients in this function, which backward() would add to each other")
        if not sources or not applies:
            raise UnsureError("the gradients and apply_gradients() are not in one function")
        if any(self._method(call) in SCALED for call in calls):
            raise UnsureError("the loss is scaled; PyTorch's GradScaler has to be unscaled before the clip")
        if any(self._method(call) in REPLICAS for call in calls):
            raise UnsureError("each replica clips before gradients are added up; PyTorch's are averaged by backward()")
        return self._of(sources[0], applies[0])

    def applies_of(self, optimizer: str) -> list[cst.Call]:
        """Where an optimizer applies gradients, by what it is called."""
        return [
            call
            for calls in self._calls.values()
            for call in calls
            if self._is_apply(call) and self._module.code(cast(cst.Attribute, call.func).value) == optimizer
        ]

    def _method(self, call: cst.Call) -> str:
        return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""

    def _is_source(self, call: cst.Call) -> bool:
        name = self._module.full_name(call.func)
        return name in SOURCES or (self._method(call) in METHODS and self._gradients.kind(call) is not None)

    def _is_apply(self, call: cst.Call) -> bool:
        method = self._method(call)
        if method not in APPLIES or not call.args:
            return False
        return method == "apply_gradients" or self._gradients.is_one(call.args[0].value)

    def _of(self, source: cst.Call, apply: cst.Call) -> TapeStep:
        if self._method(source) != "gradient":
            raise UnsureError(GRAPH)
        statements = [self._module.small_statement(each) for each in (source, apply)]
        first, last = statements
        if first is None or last is None or not all(self._module.stands_alone(each) for each in (first, last)):
            raise UnsureError("the gradient and apply_gradients() need lines of their own")
        if not isinstance(last, cst.Expr) or last.value is not apply:
            raise UnsureError(f"what apply_gradients() returns is kept: {GRAPH}")
        if self._block(first) is not self._block(last):
            raise UnsureError("the gradient and apply_gradients() are not in one block")
        loss, variables = self._arguments(source)
        self._check_apply(apply)
        self._check_list(source)
        optimizer = self._module.code(cast(cst.Attribute, apply.func).value)
        return TapeStep(source, first, loss, variables, optimizer, apply, last)

    def _block(self, statement: cst.CSTNode) -> cst.CSTNode:
        return self._module.parents[self._module.parents[statement]]

    def _arguments(self, source: cst.Call) -> tuple[cst.BaseExpression, str]:
        given: dict[str, cst.BaseExpression] = {}
        for position, argument in enumerate(source.args):
            name = argument.keyword.value if argument.keyword else ("target", "sources", "more")[min(position, 2)]
            given[name] = argument.value
        if set(given) != {"target", "sources"} or any(argument.star for argument in source.args):
            raise UnsureError("the gradient has more arguments than the loss and the variables")
        return given["target"], self._module.code(given["sources"])

    def _check_apply(self, apply: cst.Call) -> None:
        limit = 1 if self._method(apply) == "apply_gradients" else 2
        extra = [a for a in apply.args if a.star or (a.keyword is not None and a.keyword.value != "grads_and_vars")]
        if extra or len(apply.args) > limit:
            raise UnsureError(f"{self._method(apply)}() is given more than gradients and variables")

    def _check_list(self, source: cst.Call) -> None:
        """Of one variable the gradient is one tensor, and of a list a list."""
        parent = self._module.parents[source]
        if isinstance(parent, cst.Assign) and isinstance(parent.targets[0].target, cst.Name | cst.Attribute):
            binding = self._module.binding(parent.targets[0].target)
            for read in binding.reads if binding is not None else ():
                outer = self._module.parents[read]
                if isinstance(outer, cst.List | cst.Element):
                    raise UnsureError("the gradient of one variable is one tensor; write backward() and its .grad")


def write(edits: Edits, module: Module, step: TapeStep, clips: Sequence[str] = ()) -> None:
    """The changes. `clips`: lines before the step."""
    variable, grad = _names(module, step)
    loss = _in_brackets(module, step.loss)
    edits.insert(step.source_statement, [f"{step.optimizer}.zero_grad()", f"{loss}.backward()"])
    edits.replace(step.source, f"[{variable}.grad for {variable} in {step.variables}]")

    def applied(updated: Any) -> Sequence[str]:
        call = cast(cst.Call, updated.value)
        code = [module.tree.code_for_node(argument.value) for argument in call.args]
        pairs = code[0] if len(code) == 1 else f"zip({', '.join(code)})"
        loop = f"for {grad}, {variable} in {pairs}:\n    {variable}.grad = {grad}"
        return [loop, *clips, f"{step.optimizer}.step()"]

    edits.rewrite(step.apply_statement, applied)


def _names(module: Module, step: TapeStep) -> tuple[str, str]:
    """For a variable and its gradient; not those that something else has here."""
    around = module.enclosing(step.source, cst.FunctionDef) or module.tree
    taken = {each.value for each in sorted_nodes(around) if isinstance(each, cst.Name)}
    names = []
    for name in ("variable", "grad"):
        while name in taken:
            name += "_"
        names.append(name)
    return names[0], names[1]


def _in_brackets(module: Module, node: cst.BaseExpression) -> str:
    code = module.code(node)
    return code if isinstance(node, Target | cst.Call | cst.Subscript) or node.lpar else f"({code})"
