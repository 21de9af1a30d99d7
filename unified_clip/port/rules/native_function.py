"""Rules for `--native`: replace clips by PyTorch's own functions."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ..file_rewrite import FileRewrite
from ..found_clip import FoundClip
from ..source.module import Module
from ..steps.paddle_clips import ClipSource
from ..steps.tape import TapeStep
from ..to_config import UnsureError
from .function import is_function
from .registry import RuleOrder, register

TORCH = "torch.nn.utils"
WITHOUT = "Run unified-clip port without --native."
ONLY_IN_PLACE = (
    "PyTorch's functions clip gradients in place, and do not return them. Before optimizer.step(), write "
    "a call of PyTorch's function, and pass the parameters. Or run unified-clip port without --native."
)

WriteClip = Callable[[str, str], list[str]]
"""Takes the code of a clip and the code of the parameters, and returns the lines that clip."""


@register(RuleOrder.CALLS, matches=is_function, target="torch", native=True)
def replace(file: FileRewrite, clip: FoundClip) -> None:
    name = f"{TORCH}.{clip.function.replacement}"
    if clip.function.name == name:
        file.leave(clip, "This is already PyTorch's own function.")
    elif clip.kind == "in place":
        file.edits.replace(clip.node, name)  # type: ignore[arg-type]
        file.rename_arguments(clip)
        file.edits.needs_import("torch")
        file.rewrite(clip, name, family="pytorch")
    else:
        file.flag(clip, ONLY_IN_PLACE)


def torch_function(rule: str) -> str:
    return f"{TORCH}.clip_grad_{'value' if rule == 'value' else 'norm'}_"


def call_lines(module: Module, rule: str, variables: str, limit: str, name: str = "variable") -> str:
    if rule != "norm":
        return f"{torch_function(rule)}({variables}, {limit})"
    name = module.unused_name(name)
    return f"for {name} in {variables}:\n    {torch_function(rule)}({name}, {limit})"


def in_tape_step(module: Module, clip: FoundClip, step: TapeStep) -> tuple[cst.Assign, str, str]:
    """Return (statement that clips, full name of PyTorch's function, line to write in place of the statement)."""
    outermost = module.enclosing(clip.node, cst.ListComp) or clip.node
    statement, source = module.small_statement(outermost), module.parents[step.source]
    function, call = clip.function, clip.call
    if call is None or not isinstance(statement, cst.Assign) or not isinstance(source, cst.Assign):
        raise UnsureError(ONLY_IN_PLACE)
    target, gradients = statement.targets[0].target, source.targets[0].target
    limit = module.code(_limit(module, clip))
    before, name, norm = _parts(module, statement.value, target, call)
    is_simple = len(statement.targets) + len(source.targets) == 2 and module.has_own_line(statement)
    if not is_simple or not before == name == module.code(gradients):
        raise UnsureError(ONLY_IN_PLACE)
    binding = module.binding(gradients)
    if {bound.node for bound in binding.bounds} != {statement, source}:
        raise UnsureError(f"The gradients are changed before or after the clip. {WITHOUT}")
    between = range(module.end(source) + 1, module.position(statement)[0])
    if reads := [place for read in binding.reads if (place := module.position(read)[0]) in between]:
        raise UnsureError(
            f"Line {reads[0]} reads the gradients before the clip, and may need unclipped gradients. PyTorch's "
            "function clips in place. If this line can also read clipped gradients, move the line after the clip. "
            "Otherwise, run unified-clip port without --native."
        )
    line = call_lines(module, function.rule, step.variables, limit)
    return statement, torch_function(function.rule), line if function.rule == "norm" else f"{norm}{line}"


def _parts(
    module: Module, value: cst.BaseExpression, target: cst.BaseAssignTargetExpression, call: cst.Call
) -> tuple[str, str, str]:
    """Return (code of the list to clip, name of the clipped list, start of the new line: "norm = " or '')."""
    argument = module.code(call.args[0].value) if call.args else ""
    match target, value:
        case cst.Tuple(elements=[result, norm]), cst.Call() if value is call and call.args:
            name = module.code(norm.value)
            return argument, module.code(result.value), "" if name == "_" else f"{name} = "
        case _, cst.ListComp(elt=element, for_in=cst.CompFor(ifs=[], inner_for_in=None) as loop) if call.args:
            if isinstance(element, cst.IfExp):  # for gradients that are None
                branches = [branch for branch in (element.body, element.orelse) if module.code(branch) != "None"]
                if len(branches) == 2 or not module.code(element.test).endswith((" is None", " is not None")):
                    raise UnsureError(ONLY_IN_PLACE)
                element = branches[0] if branches else element
            if element is call and module.code(loop.target) == argument:
                return module.code(loop.iter), module.code(target), ""
    raise UnsureError(ONLY_IN_PLACE)


def _limit(module: Module, clip: FoundClip) -> cst.BaseExpression:
    function, limits = clip.function, clip.limits
    others = clip.arguments.passed.keys() - {function.clipped, *function.limits, "name"}
    if not limits or limits[0] is None:
        raise UnsureError(f"The call does not pass the threshold as a separate argument. {WITHOUT}")
    if others:
        names = ", ".join(f"{name}=" for name in sorted(others))
        raise UnsureError(f"This clip passes {names}, which PyTorch's function does not accept. {WITHOUT}")
    numbers = [module.number(limit) for limit in limits if limit is not None]
    if len(limits) == 2 and (numbers[0] is None or numbers[1:] not in ([], [-numbers[0]])):
        differ = "may differ" if None in numbers else "differ"
        problem = f"PyTorch's clip_grad_value_ uses one bound for both signs, but the two bounds of this clip {differ}"
        raise UnsureError(f"{problem}. {WITHOUT}")
    return limits[0]


def clip_writer(module: Module, source: ClipSource) -> WriteClip:
    if source.may_be_none:
        raise UnsureError(f"The clip may be None. {WITHOUT}")
    if len(source.clips) != 1:
        raise UnsureError(f"The optimizer might get one of several clips. {WITHOUT}")
    (clip,) = source.clips
    binding = source.binding
    statement = module.small_statement(clip.node)
    if binding is not None and (statement is None or not module.has_own_line(statement)):
        raise UnsureError("The clip shares its line with other code. Give the clip a line of its own.")
    node = _limit(module, clip)
    if (number := module.number(node)) is None:
        raise UnsureError(
            "With --native, the command writes the threshold as a number before optimizer.step(). This threshold is "
            f"only known at run time. {WITHOUT}"
        )
    reads = binding.reads if binding is not None else ()
    if others := [read for read in reads if module.parents[read] not in source.uses]:
        raise UnsureError(f"Line {module.position(others[0])[0]} uses the clip, but not as grad_clip=. {WITHOUT}")
    limit = module.code(node) if isinstance(node, cst.Integer | cst.Float) else repr(number)
    limit = 'float("inf")' if limit == "inf" else limit
    return lambda _, parameters: [call_lines(module, clip.function.rule, parameters, limit, "parameter")]


def remove(file: FileRewrite, source: ClipSource, clip: FoundClip) -> None:
    statement = file.module.small_statement(clip.node)
    if source.binding is not None and statement is not None:
        file.edits.rewrite(statement, ())
    file.edits.needs_import("torch")
    file.rewrite(clip, torch_function(clip.function.rule), family="pytorch")
