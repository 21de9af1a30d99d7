"""PyTorch's own functions in the place of ours: `--native`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import libcst as cst

from ..clip_call import Arguments, Found
from ..source.edits import Edits
from ..source.module import Module
from ..to_config import UnsureError
from .paddle_optimizer import Source, Write
from .tensorflow_tape import TapeStep

TORCH = "torch.nn.utils"
CHANGED = "PyTorch's functions clip what backward() made, and these gradients are changed before or after"
READ_BEFORE = "the gradients are read in line {} before the clip, and PyTorch's functions clip them in place"
NO_FUNCTION = "PyTorch has no function that returns clipped gradients; clip parameters before the step"


def replace(module: Module, edits: Edits, found: Found, decision: Any) -> None:
    """A call of a function becomes PyTorch's, where that takes the same arguments."""
    known = found.native
    if known is None or (known.name == f"{TORCH}.{known.ours}"):
        decision.left, decision.reason = True, "it is PyTorch's own"
    elif known.kind == "in place":
        name = f"{TORCH}.{known.ours}"
        edits.replace(found.node, name)  # type: ignore[arg-type]
        edits.needs_import("torch")
        decision.becomes = name
    else:
        decision.reason = NO_FUNCTION


@dataclass(frozen=True)
class Statement:
    """A statement that clips the gradients of a step, and those that clip its variables in its place."""

    statement: cst.BaseSmallStatement
    function: str
    lines: list[str]

    def write(self, edits: Edits) -> str:
        """Hand the change over; the function's name."""
        edits.rewrite(self.statement, lambda _: self.lines)
        edits.needs_import("torch")
        return self.function


def function(rule: str) -> str:
    """PyTorch's function for a rule; of a rule for each tensor, to be called for each."""
    return f"{TORCH}.clip_grad_{'value' if rule == 'value' else 'norm'}_"


def in_step(module: Module, found: Found, step: TapeStep) -> Statement:
    """What PyTorch's function makes of a clip in a step of TensorFlow. Raises UnsureError."""
    known, call = found.native, found.call
    statement = module.small_statement(_outermost(module, found))
    source = module.parents[step.source]
    if known is None or call is None or not isinstance(statement, cst.Assign) or not isinstance(source, cst.Assign):
        raise UnsureError(NO_FUNCTION)
    targets = statement.targets[0].target, source.targets[0].target
    limit = module.code(_limit(module, found))
    before, name, norm = _parts(module, statement.value, targets[0], call)
    if (
        len(statement.targets) + len(source.targets) != 2
        or not before == name == module.code(targets[1])
        or not module.has_own_line(statement)
    ):
        raise UnsureError(NO_FUNCTION)
    binding = module.binding(targets[1])
    if binding is None or {bound.node for bound in binding.bounds} != {statement, source}:
        raise UnsureError(CHANGED)
    between = range(module.end(source) + 1, module.position(statement)[0])
    read = [place for each in binding.reads if (place := module.position(each)[0]) in between]
    if read:
        raise UnsureError(READ_BEFORE.format(read[0]))
    called = function(known.rule)
    if known.rule == "norm":
        variable = module.unused_name("variable")
        line = f"for {variable} in {step.variables}:\n    {called}({variable}, {limit})"
    else:
        line = f"{norm}{called}({step.variables}, {limit})"
    return Statement(statement, called, [line])


def _outermost(module: Module, found: Found) -> cst.CSTNode:
    """The comprehension that a call is in, or the call."""
    outer = module.enclosing(found.node, cst.ListComp)
    return outer or found.node


def _parts(
    module: Module, value: cst.BaseExpression, target: cst.BaseAssignTargetExpression, call: cst.Call
) -> tuple[str, str, str]:
    """The list that is clipped, the list that comes of it, and where the norm goes."""
    if value is call and isinstance(target, cst.Tuple) and len(target.elements) == 2 and call.args:
        norm = module.code(target.elements[1].value)
        return (
            module.code(call.args[0].value),
            module.code(target.elements[0].value),
            "" if norm == "_" else f"{norm} = ",
        )
    if isinstance(value, cst.ListComp) and value.for_in.inner_for_in is None and not value.for_in.ifs and call.args:
        element = value.elt
        if isinstance(element, cst.IfExp):  # for gradients that are None
            if "None" not in (module.code(element.body), module.code(element.orelse)):
                raise UnsureError(NO_FUNCTION)
            if not module.code(element.test).endswith((" is None", " is not None")):
                raise UnsureError(NO_FUNCTION)
            element = element.orelse if module.code(element.body) == "None" else element.body
        if element is call and module.code(value.for_in.target) == module.code(call.args[0].value):
            return module.code(value.for_in.iter), module.code(target), ""
    raise UnsureError(NO_FUNCTION)


def _limit(module: Module, found: Found) -> cst.BaseExpression:
    """The one limit."""
    assert found.native is not None
    assert found.call is not None
    given = Arguments(found.call, found.native.parameters)
    values = [given.value(name) for name in found.native.limits]
    if not values or values[0] is None or set(given.given) - {found.native.parameters[0], *found.native.limits, "name"}:
        raise UnsureError(NO_FUNCTION)
    if len(values) == 2:
        numbers = [None if each is None else module.number(each) for each in values]
        if numbers[0] is None or (values[1] is not None and numbers[1] != -numbers[0]):
            raise UnsureError("PyTorch's clip_grad_value_ has one bound only, which is the same below and above")
    return values[0]


def of_class(module: Module, source: Source) -> Write:
    """What writes the lines that do the same as a clip of Paddle's. Raises UnsureError."""
    if source.may_be_none or len(source.makers) != 1:
        raise UnsureError("it may be None, or one of several")
    (maker,) = source.makers
    known = maker.native
    assert known is not None
    statement = module.small_statement(maker.node)
    if source.binding is not None and (statement is None or not module.has_own_line(statement)):
        raise UnsureError("the clip has no line of its own")
    node = _limit(module, maker)
    if module.number(node) is None:
        raise UnsureError("its limit is not known before it runs, and PyTorch's functions take it at the step")

    if source.binding is not None:
        others = [each for each in source.binding.reads if module.parents[each] not in source.uses]
        if others:
            raise UnsureError("the clip is looked at elsewhere, too")
    limit = module.code(node) if isinstance(node, cst.Integer | cst.Float) else repr(module.number(node))
    limit = 'float("inf")' if limit == "inf" else limit
    parameter = module.unused_name("parameter")

    def write(_: str, parameters: str) -> list[str]:
        if known.rule == "norm":
            return [f"for {parameter} in {parameters}:\n    {function(known.rule)}({parameter}, {limit})"]
        return [f"{function(known.rule)}({parameters}, {limit})"]

    return write


def remove(module: Module, edits: Edits, source: Source, maker: Found) -> str:
    """The clip's own statement goes; the name of what takes its place."""
    assert maker.native is not None
    if source.binding is not None:
        statement = module.small_statement(maker.node)
        assert statement is not None
        edits.rewrite(statement, lambda _: ())
    edits.needs_import("torch")
    return function(maker.native.rule)
