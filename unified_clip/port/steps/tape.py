"""Find training steps of TensorFlow, from the gradient to `apply_gradients`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import libcst as cst

from ..source.gradient_flow import SOURCES, Gradients
from ..source.module import Binding, Module
from ..source.syntax_tree import Target
from ..to_config import UnsureError
from .applied_gradients import AppliedGradients

SEVERAL_LOSSES = (cst.List, cst.Tuple, cst.Dict, cst.ListComp)
GRAPH = "A session runs it later. PyTorch runs each step at once."
SCALED = ("get_scaled_loss", "get_unscaled_gradients", "scale_loss")
APART = "The gradients and apply_gradients() are not in one function."
SEVERAL = "Several gradients are computed before they are applied. backward() would add them up."
DISTRIBUTED = ("tensorflow.distribute.", "tensorflow.compat.v1.distribute.")
HOROVOD = "Horovod averages the gradients of all processes. Check what its optimizer for PyTorch clips."
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
    """A step in one block of lines, from the gradients to the call that applies them."""

    source: cst.Call
    source_statement: cst.BaseSmallStatement
    loss: cst.BaseExpression
    variables: str
    optimizer: str
    apply: cst.Call
    apply_statement: cst.BaseSmallStatement


@dataclass(frozen=True, eq=False)
class StepRange:
    """The lines of a possible step."""

    first: int
    last: int
    step: TapeStep | None
    reason: str = ""
    """Why it cannot be ported; '' if it can."""


class TapeSteps:
    """The steps of a file."""

    def __init__(self, module: Module, gradients: Gradients) -> None:
        self._module, self._gradients = module, gradients
        self._ranges: dict[cst.CSTNode, list[StepRange]] = {}
        self._calls: dict[cst.CSTNode, list[cst.Call]] = {}
        for node in module.nodes:
            if isinstance(node, cst.Call):
                self._calls.setdefault(self._body(node), []).append(node)

    def range_of(self, node: cst.CSTNode) -> StepRange | None:
        """Return the step around a clip; None if there is none."""
        body, line = self._body(node), self._module.position(node)[0]
        ranges = self._ranges_of(body)
        return next((each for each in ranges if each.first <= line <= each.last), None)

    def all(self) -> list[TapeStep]:
        """Return all steps that can be ported, with clips and without."""
        ranges = [part for body in self._calls for part in self._ranges_of(body)]
        return [part.step for part in ranges if part.step is not None]

    def applied_by(self, optimizer: Binding) -> list[StepRange]:
        """Return the steps in which an optimizer applies gradients."""
        calls = [call for calls in self._calls.values() for call in calls if self._is_apply(call)]
        bindings = [self._module.binding(cast(cst.Attribute, call.func).value) for call in calls]
        mine = [call for call, each in zip(calls, bindings, strict=True) if each and each.key == optimizer.key]
        return [part for call in mine if (part := self.range_of(call)) is not None]

    def _body(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the function around a node, or the file."""
        return self._module.enclosing(node, cst.FunctionDef) or self._module.tree

    def _ranges_of(self, body: cst.CSTNode) -> list[StepRange]:
        if body not in self._ranges:
            self._ranges[body] = list(self._find(self._calls.get(body, [])))
        return self._ranges[body]

    def _find(self, calls: Sequence[cst.Call]) -> Iterator[StepRange]:
        """Yield each gradient with the call that applies it."""
        sources = [call for call in calls if self._is_source(call)]
        applies = [call for call in calls if self._is_apply(call)]
        lines = [self._module.position(call)[0] for call in [*sources, *applies]]
        if not lines:
            return
        pairs = self._paired(sources, applies)
        if pairs is None:
            last = self._last_line([*sources, *applies])
            yield StepRange(min(lines), last, None, APART if not (sources and applies) else SEVERAL)
            return
        for source, apply in pairs:
            first, last = self._module.position(source)[0], self._last_line([apply])
            try:
                yield StepRange(first, last, self._step(source, apply, calls))
            except UnsureError as unsure:
                yield StepRange(first, last, None, str(unsure))

    def _paired(
        self, sources: Sequence[cst.Call], applies: Sequence[cst.Call]
    ) -> list[tuple[cst.Call, cst.Call]] | None:
        """Pair gradients with calls that apply them; None if they do not alternate, as backward() adds gradients up."""
        marked = [(self._order(call), call, True) for call in sources]
        marked += [(self._order(call), call, False) for call in applies]
        marked.sort(key=lambda each: each[0])
        kinds = [is_source for _, _, is_source in marked]
        if len(sources) != len(applies) or kinds != [True, False] * len(sources):
            return None
        return [(marked[i][1], marked[i + 1][1]) for i in range(0, len(marked), 2)]

    def _order(self, call: cst.Call) -> tuple[tuple[int, int], int]:
        """Return a sort key. In a step of one expression, the gradient comes first."""
        statement = self._module.small_statement(call) or call
        return self._module.position(statement), 0 if self._is_source(call) else 1

    def _last_line(self, calls: Sequence[cst.Call]) -> int:
        return max(self._module.end(call) for call in calls)

    def _step(self, source: cst.Call, apply: cst.Call, calls: Sequence[cst.Call]) -> TapeStep:
        if any(self._method(call) in SCALED for call in calls):
            raise UnsureError("The loss is scaled. In PyTorch, unscale the gradients with GradScaler before the clip.")
        if self._is_distributed:
            raise UnsureError("Each replica clips before gradients are added up. In PyTorch, backward() averages them.")
        if any(name.startswith("horovod.") for name in self._module.used_names):
            raise UnsureError(HOROVOD)
        if any(self._is_persistent(call) for call in calls if self._method(call) == "GradientTape"):
            raise UnsureError(SEVERAL)
        return self._of(source, apply)

    @cached_property
    def _is_distributed(self) -> bool:
        """Whether the file uses several replicas."""
        found = [name for name in self._module.used_names if name.startswith(DISTRIBUTED)]
        return any(name.rpartition(".")[2] in REPLICAS for name in found)

    def _is_persistent(self, tape: cst.Call) -> bool:
        """Return whether a tape can compute gradients more than once."""
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
        return method == "apply_gradients" or self._gradients.is_gradient(call.args[0].value)

    def _of(self, source: cst.Call, apply: cst.Call) -> TapeStep:
        if self._method(source) != "gradient":
            raise UnsureError(GRAPH)
        statements = [self._module.small_statement(each) for each in (source, apply)]
        first, last = statements
        if first is None or last is None or not all(self._module.has_own_line(each) for each in (first, last)):
            raise UnsureError("The gradient and apply_gradients() need lines of their own.")
        if not isinstance(last, cst.Expr) or last.value is not apply:
            raise UnsureError(f"The result of apply_gradients() is used. {GRAPH}")
        if self._block(first) is not self._block(last):
            raise UnsureError("The gradient and apply_gradients() are not in one block.")
        loss, variables = self._arguments(source)
        self._check_optimizer(source, apply)
        binding = self._module.binding(loss)
        if any(isinstance(each.value, SEVERAL_LOSSES) for each in (binding.bounds if binding is not None else ())):
            raise UnsureError("There are several losses. A tape adds them up, but backward() takes one.")
        if isinstance(loss, SEVERAL_LOSSES):
            raise UnsureError("There are several losses. A tape adds them up, but backward() takes one.")
        self._check_apply(apply)
        self._check_list(source)
        if not AppliedGradients(self._module, source, variables).is_applied(apply):
            raise UnsureError("The step may not apply all gradients, each to its own variable.")
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
            raise UnsureError("The gradient has more arguments than the loss and the variables.")
        if isinstance(given["sources"], cst.Dict):
            raise UnsureError("The variables are a dict.")
        return given["target"], self._module.code(given["sources"])

    def _check_apply(self, apply: cst.Call) -> None:
        limit = 1 if self._method(apply) == "apply_gradients" else 2
        extra = [a for a in apply.args if a.star or (a.keyword is not None and a.keyword.value != "grads_and_vars")]
        if extra or len(apply.args) > limit:
            raise UnsureError(f"{self._method(apply)}() takes more than gradients and variables.")

    def _check_optimizer(self, source: cst.Call, apply: cst.Call) -> None:
        """Raise UnsureError unless the same optimizer is zeroed before the gradient and steps after it."""
        optimizer = cast(cst.Attribute, apply.func).value
        if not isinstance(optimizer, Target):
            raise UnsureError("The optimizer has no name here.")
        binding = self._module.binding(optimizer)
        first, last = self._module.position(source)[0], self._module.end(apply)
        nodes = [bound.node for bound in binding.bounds if bound.node is not None] if binding is not None else []
        if any(first <= self._module.position(node)[0] <= last for node in nodes):
            raise UnsureError("The optimizer is chosen after the gradient.")

    def _check_list(self, source: cst.Call) -> None:
        """Raise UnsureError if the gradient is of one variable, not of a list."""
        parent = self._module.parents[source]
        if isinstance(parent, cst.Assign) and isinstance(parent.targets[0].target, cst.Name | cst.Attribute):
            binding = self._module.binding(parent.targets[0].target)
            for read in binding.reads if binding is not None else ():
                outer = self._module.parents[read]
                if isinstance(outer, cst.Element) and isinstance(self._module.parents[outer], cst.List):
                    raise UnsureError("The gradient is of one variable. Write backward(), and use its .grad.")
