"""PyTorch's own functions: `--native`. Steps of Paddle and TensorFlow take theirs from here, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst

from ..clip_call import Arguments, FoundClip
from ..file_rewrite import FileRewrite
from ..source.edits import Edits
from ..source.module import Module
from ..steps.paddle import ClipSource
from ..steps.tape import TapeStep
from ..to_config import UnsureError
from .function import is_function
from .registry import Stage, register

TORCH = "torch.nn.utils"
CHANGED = "PyTorch's functions clip the gradients of backward(), and these are changed before or after the clip."
READ_BEFORE = "Line {} reads the gradients before the clip, and PyTorch's functions clip them in place."
NO_FUNCTION = "PyTorch has no function that returns clipped gradients: clip the parameters before the step."

WriteClip = Callable[[str, str], list[str]]
"""Return the lines that clip, given the names of the clip and of the parameters."""


@register(Stage.CALLS, matches=is_function, target="torch", native=True)
def replace(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    """Replace a function by PyTorch's, if that takes the same arguments."""
    for clip in clips:
        assert clip.function is not None
        name = f"{TORCH}.{clip.function.replacement}"
        if clip.function.name == name:
            file.leave(clip, "It is PyTorch's own.")
        elif clip.function.kind == "in place":
            file.edits.replace(clip.node, name)  # type: ignore[arg-type]
            file.edits.needs_import("torch")
            file.rewrite(clip, name, family="pytorch")
        else:
            file.flag(clip, NO_FUNCTION)


@dataclass(frozen=True)
class Statement:
    """A statement that clips the gradients of a step, and the lines that clip the variables instead."""

    statement: cst.BaseSmallStatement
    function: str
    lines: list[str]

    def write(self, edits: Edits) -> str:
        """Record the change, and return the name of the function."""
        edits.rewrite(self.statement, lambda _: self.lines)
        edits.needs_import("torch")
        return self.function


def torch_function(rule: str) -> str:
    """Return PyTorch's function for a rule. For the rule `norm`, call it for each tensor."""
    return f"{TORCH}.clip_grad_{'value' if rule == 'value' else 'norm'}_"


def in_step(module: Module, found: FoundClip, step: TapeStep) -> Statement:
    """Return the lines that replace a clip in a step of TensorFlow. Raises UnsureError."""
    known, call = found.function, found.call
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
    called = torch_function(known.rule)
    if known.rule == "norm":
        variable = module.unused_name("variable")
        line = f"for {variable} in {step.variables}:\n    {called}({variable}, {limit})"
    else:
        line = f"{norm}{called}({step.variables}, {limit})"
    return Statement(statement, called, [line])


def _outermost(module: Module, found: FoundClip) -> cst.CSTNode:
    """Return the comprehension around a call, or the call."""
    outer = module.enclosing(found.node, cst.ListComp)
    return outer or found.node


def _parts(
    module: Module, value: cst.BaseExpression, target: cst.BaseAssignTargetExpression, call: cst.Call
) -> tuple[str, str, str]:
    """Return the name of the list that is clipped, that of the result, and the assignment of the norm."""
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


def _limit(module: Module, found: FoundClip) -> cst.BaseExpression:
    """Return the expression of the threshold. Raises UnsureError if there are other arguments."""
    assert found.function is not None
    assert found.call is not None
    given = Arguments(found.call, found.function.parameters)
    values = [given.value(name) for name in found.function.limits]
    if (
        not values
        or values[0] is None
        or set(given.given) - {found.function.parameters[0], *found.function.limits, "name"}
    ):
        raise UnsureError(NO_FUNCTION)
    if len(values) == 2:
        numbers = [None if each is None else module.number(each) for each in values]
        if numbers[0] is None or (values[1] is not None and numbers[1] != -numbers[0]):
            raise UnsureError("PyTorch's clip_grad_value_ takes one bound, for both signs.")
    return values[0]


def of_class(module: Module, source: ClipSource) -> WriteClip:
    """Return the writer of lines that replace a clip of Paddle. Raises UnsureError."""
    if source.may_be_none or len(source.makers) != 1:
        raise UnsureError("It may be None, or one of several clips.")
    (maker,) = source.makers
    known = maker.function
    assert known is not None
    statement = module.small_statement(maker.node)
    if source.binding is not None and (statement is None or not module.has_own_line(statement)):
        raise UnsureError("The clip has no line of its own.")
    node = _limit(module, maker)
    if module.number(node) is None:
        raise UnsureError("Its threshold is only known at run time, and PyTorch's functions take it at the step.")

    if source.binding is not None:
        others = [each for each in source.binding.reads if module.parents[each] not in source.uses]
        if others:
            raise UnsureError("The clip is read elsewhere, too.")
    limit = module.code(node) if isinstance(node, cst.Integer | cst.Float) else repr(module.number(node))
    limit = 'float("inf")' if limit == "inf" else limit
    parameter = module.unused_name("parameter")

    def write(_: str, parameters: str) -> list[str]:
        if known.rule == "norm":
            return [f"for {parameter} in {parameters}:\n    {torch_function(known.rule)}({parameter}, {limit})"]
        return [f"{torch_function(known.rule)}({parameters}, {limit})"]

    return write


def remove(module: Module, edits: Edits, source: ClipSource, maker: FoundClip) -> str:
    """Remove the statement that makes a clip, and return the name of the function that replaces it."""
    assert maker.function is not None
    if source.binding is not None:
        statement = module.small_statement(maker.node)
        assert statement is not None
        edits.rewrite(statement, lambda _: ())
    edits.needs_import("torch")
    return torch_function(maker.function.rule)
