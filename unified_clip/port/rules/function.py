"""Rules for functions such as `clip_grad_norm_`, `tf.clip_by_value` and `set_gradient_clip`."""

from __future__ import annotations

import ast

from ...source.tree import arguments_of
from ..catalog import HOOK, SHORT_NAME, takes_other_arguments
from ..clip_coefficients import is_coefficient
from ..file_rewrite import FileRewrite
from ..found_clip import FoundClip
from ..possible_clips import calls_of, words_around
from .paddle import ONLY_NAMED
from .registry import RuleOrder, register

LIKE_GRADIENT = "The name of the tensor suggests a gradient. If the tensor is a gradient, port this call by hand."
MADE_OF_GRADIENT = (
    "The clipped expression contains a gradient. If the result of the expression is a gradient, port this call by hand."
)
OF_INPUT = (
    "This call clips a gradient with respect to {}, which does not look like parameters. In PyTorch, compute this "
    "gradient with torch.autograd.grad, and clip the result. If these are parameters, clip before optimizer.step() "
    "instead."
)
OF_COEFFICIENT = "The call clamps a clip coefficient. Port the line that computes the coefficient."
NO_GRADIENT = "Nothing in the file shows that the clamped tensor is a gradient."
UNKNOWN_ARGUMENTS = "The call has unknown arguments: {}. Pass only documented arguments, by name."

ONE_BOUND = 'The call passes only one bound. Write the missing bound as min=-float("inf") or as max=float("inf").'

ONLY_NAMED_FUNCTION = (
    "This line does not call the function, and unified_clip's function has other parameters. First, port the code "
    "that calls the function. Then change the name here."
)

KINDS = ("in place", "functional", "any tensor", "unknown")


def is_function(clip: FoundClip) -> bool:
    return clip.kind in KINDS


@register(RuleOrder.OFF, matches=lambda clip: clip.returns)
def flag_unused(file: FileRewrite, clip: FoundClip) -> None:
    tensor = (clip.tensor or clip.arguments.value(clip.function.clipped)) if clip.kind == "any tensor" else None
    is_gradient = tensor is not None and file.gradients.may_be_gradient(tensor)
    if (clip.kind != "any tensor" or is_gradient) and (reason := file.why_unused(clip)):
        file.flag(clip, reason)


@register(RuleOrder.JUDGE, matches=lambda clip: clip.kind not in ("", "any tensor") and clip.argument is None)
def flag_if_unsupported(file: FileRewrite, clip: FoundClip) -> None:
    function, arguments = clip.function, clip.arguments
    unknown = [name for name in arguments.unknown if name.rstrip("=") not in function.renamed]
    if not function.replacement:
        file.flag(clip, function.why_not)
    elif [name for name in unknown if not name.startswith("*")] or (unknown and takes_other_arguments(function)):
        file.flag(clip, UNKNOWN_ARGUMENTS.format(", ".join(unknown)))
    elif (
        clip.call is not None
        and function.name == "paddle.clip"
        and any(limit is None or file.module.code(limit) == "None" for limit in clip.limits)
    ):
        file.flag(clip, ONE_BOUND)
    elif clip.call is None and clip.kind in KINDS and takes_other_arguments(function):
        file.flag(clip, ONLY_NAMED_FUNCTION)


@register(RuleOrder.JUDGE, matches=lambda clip: clip.kind == "any tensor")
def judge_tensor(file: FileRewrite, clip: FoundClip) -> None:
    """Decide whether a call such as torch.clamp clips gradients."""
    function = clip.function
    tensor = clip.tensor or clip.arguments.value(function.clipped)
    if clip.call is None:
        may_clip = not function.quiet or _may_get_gradient(file, clip.node)
        file.flag(clip, ONLY_NAMED) if may_clip else file.leave(clip, NO_GRADIENT)
    elif tensor is None:
        unknown = ", ".join(clip.arguments.unknown)
        file.flag(clip, UNKNOWN_ARGUMENTS.format(unknown)) if unknown else file.leave(clip, NO_GRADIENT)
    elif is_coefficient(file.module, tensor):
        file.leave(clip, OF_COEFFICIENT)
    elif function.quiet and (variable := file.gradients.other_variable(tensor, clip.call)):
        file.flag(clip, OF_INPUT.format(variable))
    elif file.gradients.is_gradient(tensor):
        flag_if_unsupported(file, clip)
    elif function.name != "paddle.clip" and (
        file.gradients.may_be_gradient(tensor)
        or (not function.quiet and SHORT_NAME.match(file.module.code(tensor)) is not None)
    ):
        file.flag(clip, LIKE_GRADIENT)
    elif file.gradients.contains_gradient(tensor):
        file.flag(clip, MADE_OF_GRADIENT)
    else:
        file.leave(clip, NO_GRADIENT)


def _may_get_gradient(file: FileRewrite, node: ast.AST) -> bool:
    module = file.module
    around = [outer for outer in module.ancestors(node) if isinstance(outer, ast.Call)]
    calls = [*around, *(call for value in (node, *around) for call in calls_of(module, value))]
    if any(module.code(call.func).endswith(HOOK) for call in calls) or "grad" in words_around(module, node).lower():
        return True
    values = [argument.value for call in calls for argument in arguments_of(call)]
    return any(
        file.gradients.may_be_gradient(each) or file.gradients.contains_gradient(each)
        for each in values
        if each is not node
    )


@register(RuleOrder.CALLS, matches=is_function, target="torch")
def rename(file: FileRewrite, clip: FoundClip) -> None:
    file.rename(clip, "torch")


@register(RuleOrder.CALLS, matches=lambda clip: clip.kind in (*KINDS, "program"), target="drop-in")
def rename_drop_in(file: FileRewrite, clip: FoundClip) -> None:
    file.rename(clip, clip.function.framework)


@register(RuleOrder.CALLS, matches=lambda clip: clip.kind == "program", target="torch")
def flag_program(file: FileRewrite, clip: FoundClip) -> None:
    passed = clip.arguments.value("clip")
    values = [passed, *(bound.value for bound in file.module.binding(passed).bounds)]
    if lines := [file.sites[other].line for other in file.clips if other.kind == "class" and other.call in values]:
        file.leave(clip, f"The call passes the clip of line {lines[0]}. Port that line.")
        return
    file.flag(
        clip,
        "This call belongs to a static program of Paddle. PyTorch has no static programs. Clip between backward() and "
        "step().",
    )
