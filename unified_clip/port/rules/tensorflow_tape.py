"""A step of TensorFlow, from the gradient to `apply_gradients`, on its way to PyTorch's backward() and step()."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import libcst as cst

from ..catalog import native
from ..source.edits import Edits
from ..source.gradient_flow import SOURCES, Gradients
from ..source.module import Binding, Module
from ..source.syntax_tree import Target
from ..to_config import UnsureError

SEVERAL_LOSSES = (cst.List, cst.Tuple, cst.Dict, cst.ListComp)
CHANGES = ("append", "pop", "insert", "extend", "remove", "clear", "sort", "reverse")
"""Methods that change a list."""

GRAPH = "it is built once, to be run by a session, and PyTorch's step is run each time"
SCALED = ("get_scaled_loss", "get_unscaled_gradients", "scale_loss")
APART = "the gradients and apply_gradients() are not in one function"
SEVERAL = "there are several gradients here before they are applied, which backward() would add to each other"
DISTRIBUTED = ("tensorflow.distribute.", "tensorflow.compat.v1.distribute.")
HOROVOD = "Horovod adds up the gradients of all processes in its own way; see what its PyTorch clips"
REPLICAS = (
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "TPUStrategy",
    "Strategy",
    "get_strategy",
    "get_replica_context",
)
METHODS = ("gradient", "compute_gradients", "get_gradients")
APPLIES = ("apply_gradients", "apply")


@dataclass(frozen=True, eq=False)
class TapeStep:
    """A step in one block: where the gradients come from, and where they are applied."""

    source: cst.Call
    source_statement: cst.BaseSmallStatement
    loss: cst.BaseExpression
    variables: str
    optimizer: str
    apply: cst.Call
    apply_statement: cst.BaseSmallStatement


@dataclass(frozen=True, eq=False)
class Part:
    """What may be a step, and begins and ends in these lines."""

    first: int
    last: int
    step: TapeStep | None
    reason: str = ""
    """Why it cannot be ported."""


class Steps:
    """The steps of a file."""

    def __init__(self, module: Module, gradients: Gradients) -> None:
        self._module, self._gradients = module, gradients
        self._parts: dict[cst.CSTNode, list[Part]] = {}
        self._calls: dict[cst.CSTNode, list[cst.Call]] = {}
        for node in module.nodes:
            if isinstance(node, cst.Call):
                self._calls.setdefault(self._body(node), []).append(node)

    def part(self, node: cst.CSTNode) -> Part | None:
        """The step that a clip is in; None where there is none around it."""
        body, line = self._body(node), self._module.position(node)[0]
        parts = self._parts_of(body)
        return next((each for each in parts if each.first <= line <= each.last), None)

    def all(self) -> list[TapeStep]:
        """Those in the file that could be ported, with clips and without."""
        parts = [part for body in self._calls for part in self._parts_of(body)]
        return [part.step for part in parts if part.step is not None]

    def applied_by(self, optimizer: Binding) -> list[Part]:
        """Where an optimizer applies gradients."""
        calls = [call for calls in self._calls.values() for call in calls if self._is_apply(call)]
        bindings = [self._module.binding(cast(cst.Attribute, call.func).value) for call in calls]
        mine = [call for call, each in zip(calls, bindings, strict=True) if each and each.key == optimizer.key]
        return [part for call in mine if (part := self.part(call)) is not None]

    def _body(self, node: cst.CSTNode) -> cst.CSTNode:
        """The function that a node is in, or the file."""
        return self._module.enclosing(node, cst.FunctionDef) or self._module.tree

    def _parts_of(self, body: cst.CSTNode) -> list[Part]:
        if body not in self._parts:
            self._parts[body] = list(self._find(self._calls.get(body, [])))
        return self._parts[body]

    def _find(self, calls: Sequence[cst.Call]) -> Iterator[Part]:
        """Each gradient with the call that applies it, where one comes after the other."""
        sources = [call for call in calls if self._is_source(call)]
        applies = [call for call in calls if self._is_apply(call)]
        lines = [self._module.position(call)[0] for call in [*sources, *applies]]
        if not lines:
            return
        pairs = self._paired(sources, applies)
        if pairs is None:
            last = self._last_line([*sources, *applies])
            yield Part(min(lines), last, None, APART if not (sources and applies) else SEVERAL)
            return
        for source, apply in pairs:
            first, last = self._module.position(source)[0], self._last_line([apply])
            try:
                yield Part(first, last, self._step(source, apply, calls))
            except UnsureError as unsure:
                yield Part(first, last, None, str(unsure))

    def _paired(
        self, sources: Sequence[cst.Call], applies: Sequence[cst.Call]
    ) -> list[tuple[cst.Call, cst.Call]] | None:
        """None unless gradients and what applies them take turns: backward() would add one to the other."""
        marked = [(self._order(call), call, True) for call in sources]
        marked += [(self._order(call), call, False) for call in applies]
        marked.sort(key=lambda each: each[0])
        kinds = [is_source for _, _, is_source in marked]
        if len(sources) != len(applies) or kinds != [True, False] * len(sources):
            return None
        return [(marked[i][1], marked[i + 1][1]) for i in range(0, len(marked), 2)]

    def _order(self, call: cst.Call) -> tuple[tuple[int, int], int]:
        """In a step of one expression, the gradient comes before what applies it."""
        statement = self._module.small_statement(call) or call
        return self._module.position(statement), 0 if self._is_source(call) else 1

    def _last_line(self, calls: Sequence[cst.Call]) -> int:
        return max(self._module.end(call) for call in calls)

    def _step(self, source: cst.Call, apply: cst.Call, calls: Sequence[cst.Call]) -> TapeStep:
        if any(self._method(call) in SCALED for call in calls):
            raise UnsureError("the loss is scaled; PyTorch's GradScaler has to be unscaled before the clip")
        if self._is_distributed:
            raise UnsureError("each replica clips before gradients are added up; PyTorch's are averaged by backward()")
        if any(name.startswith("horovod.") for name in self._module.used_names):
            raise UnsureError(HOROVOD)
        if any(self._is_persistent(call) for call in calls if self._method(call) == "GradientTape"):
            raise UnsureError(SEVERAL)
        return self._of(source, apply)

    @cached_property
    def _is_distributed(self) -> bool:
        """Whether a file is about several replicas."""
        found = [name for name in self._module.used_names if name.startswith(DISTRIBUTED)]
        return any(name.rpartition(".")[2] in REPLICAS for name in found)

    def _is_persistent(self, tape: cst.Call) -> bool:
        """Whether a tape gives gradients more than once."""
        first = [each for each in tape.args if each.keyword is None or each.keyword.value == "persistent"]
        return any(self._module.code(each.value) != "False" for each in first)

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
        if first is None or last is None or not all(self._module.has_own_line(each) for each in (first, last)):
            raise UnsureError("the gradient and apply_gradients() need lines of their own")
        if not isinstance(last, cst.Expr) or last.value is not apply:
            raise UnsureError(f"what apply_gradients() returns is kept: {GRAPH}")
        if self._block(first) is not self._block(last):
            raise UnsureError("the gradient and apply_gradients() are not in one block")
        loss, variables = self._arguments(source)
        self._check_optimizer(source, apply)
        binding = self._module.binding(loss)
        if any(isinstance(each.value, SEVERAL_LOSSES) for each in (binding.bounds if binding is not None else ())):
            raise UnsureError("there are several losses, which the tape adds up, and backward() takes one")
        if isinstance(loss, SEVERAL_LOSSES):
            raise UnsureError("there are several losses, which the tape adds up, and backward() takes one")
        self._check_apply(apply)
        self._check_list(source)
        if not Whole(self._module, source, variables).is_applied(apply):
            raise UnsureError("what is applied is not, in sight, all gradients to the variables that they are of")
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
        if isinstance(given["sources"], cst.Dict):
            raise UnsureError("the variables are a dict")
        return given["target"], self._module.code(given["sources"])

    def _check_apply(self, apply: cst.Call) -> None:
        limit = 1 if self._method(apply) == "apply_gradients" else 2
        extra = [a for a in apply.args if a.star or (a.keyword is not None and a.keyword.value != "grads_and_vars")]
        if extra or len(apply.args) > limit:
            raise UnsureError(f"{self._method(apply)}() is given more than gradients and variables")

    def _check_optimizer(self, source: cst.Call, apply: cst.Call) -> None:
        """It is zeroed before the gradient, and steps after: it has to be the same, and has no other name."""
        optimizer = cast(cst.Attribute, apply.func).value
        if not isinstance(optimizer, Target):
            raise UnsureError("the optimizer has no name here")
        binding = self._module.binding(optimizer)
        first, last = self._module.position(source)[0], self._module.end(apply)
        nodes = [bound.node for bound in binding.bounds if bound.node is not None] if binding is not None else []
        if any(first <= self._module.position(node)[0] <= last for node in nodes):
            raise UnsureError("the optimizer is chosen after the gradient")

    def _check_list(self, source: cst.Call) -> None:
        """Of one variable the gradient is one tensor, and of a list a list."""
        parent = self._module.parents[source]
        if isinstance(parent, cst.Assign) and isinstance(parent.targets[0].target, cst.Name | cst.Attribute):
            binding = self._module.binding(parent.targets[0].target)
            for read in binding.reads if binding is not None else ():
                outer = self._module.parents[read]
                if isinstance(outer, cst.Element) and isinstance(self._module.parents[outer], cst.List):
                    raise UnsureError("the gradient of one variable is one tensor; write backward() and its .grad")


class Whole:
    """Whether lists hold all gradients of a source, in order, each with its variable."""

    def __init__(self, module: Module, source: cst.Call, variables: str) -> None:
        self._module, self._source, self._variables = module, source, variables
        self._open: set[object] = set()

    def is_applied(self, apply: cst.Call) -> bool:
        """Whether all are applied, and to the variables that they are of."""
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
        """Whether it is clip_by_global_norm of all."""
        found = native(self._module.full_name(node.func)) if isinstance(node, cst.Call) else None
        return (
            found is not None
            and found.ours == "clip_by_global_norm"
            and self._is_list(cast(cst.Call, node).args[0].value)
        )

    def _is_changed(self, binding: Binding) -> bool:
        """Whether elements of a list are assigned, or come and go."""
        for read in binding.reads:
            outer = self._module.parents[read]
            if isinstance(outer, cst.Attribute) and outer.attr.value in CHANGES:
                return True
            inner = self._module.parents[outer] if isinstance(outer, cst.Subscript) else None
            if isinstance(inner, cst.AssignTarget | cst.AugAssign | cst.Del):
                return True
        return False

    def _all_values(self, node: cst.Name, judge: Callable[[cst.BaseExpression], bool]) -> bool:
        """Whether all that a name is given is so; what it is given from itself is."""
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


def write(edits: Edits, module: Module, step: TapeStep, clips: Sequence[str] = ()) -> None:
    """The changes. `clips`: lines before the step."""
    body = module.enclosing(step.source, cst.FunctionDef) or module.tree
    variable, grad = module.unused_name("variable", body), module.unused_name("grad", body)
    loss = _in_brackets(module, step.loss)
    edits.insert(step.source_statement, [f"{step.optimizer}.zero_grad()", f"{loss}.backward()"])
    edits.replace(step.source, f"[{variable}.grad for {variable} in {step.variables}]")

    def applied(updated: Any) -> Sequence[str]:
        call = cast(cst.Call, updated.value)
        code = [module.tree.code_for_node(argument.value) for argument in call.args]
        pairs = code[0] if len(code) == 1 else f"zip({', '.join(code)})"
        if isinstance(call.args[0].value, cst.GeneratorExp) and not call.args[0].value.lpar:
            pairs = f"({pairs})"
        loop = f"for {grad}, {variable} in {pairs}:\n    {variable}.grad = {grad}"
        return [loop, *clips, f"{step.optimizer}.step()"]

    edits.rewrite(step.apply_statement, applied)


def _in_brackets(module: Module, node: cst.BaseExpression) -> str:
    code = module.code(node)
    return code if isinstance(node, Target | cst.Call | cst.Subscript) or node.lpar else f"({code})"
