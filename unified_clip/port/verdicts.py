"""Decide what to do about each clip: rename its function, flag the clip, or leave it unchanged."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import partial

from ..errors import ConfigError
from ..source import unused_result
from ..source.module import Module
from ..source.tree import arguments_of, keywords_of, method_of, text_of
from . import trainer_arguments
from .catalog import FRAMEWORKS, HOOK, SHORT_NAME, ClassCheck, class_checks, takes_other_arguments
from .clip_coefficients import is_coefficient
from .file_rewrite import FileRewrite, is_name_taken
from .found_clip import FoundClip
from .ported_clip import OFF, UNUSED
from .possible_clips import calls_of, words_around
from .suggested_code import SELECTING_ARGUMENTS, is_static, other_variable
from .to_config import UnsureError, has_several_limits, is_off_in_keras, is_standalone_clipnorm, meaning

NAME_IS_TAKEN = "This file uses the name unified_clip for another variable, function or import. Rename it."

VERSIONS_DIFFER = (
    "Standalone Keras up to 2.3.1 clips by the global norm. From 2.4 on, including Keras 3, Keras clips each tensor by "
    "its own norm. To print your version, run `python -c 'import keras; print(keras.__version__)'`. From 2.4 on, "
    'replace clipnorm= by ClipConfig(rule="norm", threshold={}, family="tensorflow").attach_to(optimizer). Up to '
    '2.3.1, write rule="global_norm" and family="paddle" in this call, because these versions clip by the same formula '
    "as Paddle."
)
OFF_IN_KERAS = (
    "A threshold of 0 or less switches clipping off in Keras up to 2.3.1, and in 2.11 and later. Between these "
    "versions, tf.keras sets all gradients to 0, or rejects the threshold. To clip nothing, remove this argument."
)
SEVERAL_LIMITS = (
    "The call passes several of clipnorm, clipvalue and global_clipnorm. Keras 3 rejects this. TensorFlow 2.11 to 2.15 "
    "ignores clipvalue here: remove clipvalue. Older versions and optimizers.legacy clip twice. Standalone Keras, and "
    "TensorFlow up to 2.3, clip by norm first. Later versions clip by value first. Clip twice by hand in this order."
)

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
ONLY_NAMED = (
    "This line uses the clip, but does not call it, so the arguments are unknown. First, port the code that calls "
    "the clip. Then change the name here."
)
ONLY_NAMED_FUNCTION = (
    "This line does not call the function, and unified_clip's function has other parameters. First, port the code "
    "that calls the function. Then change the name here."
)

NEW_STEP = (
    "This clip is part of a training step of {}. In the step that you write in PyTorch, clip between backward() and "
    "step()."
)
SCALED = "The file scales the loss. In PyTorch, call scaler.unscale_(optimizer) before the clip."
SCALER = re.compile(r"(?i)loss_?scale|scaler\.(scale|step|minimize|unscale_)\(")

STATIC = (
    "The file builds static programs, which PyTorch does not have. Write the training step in PyTorch by hand: call "
    "backward(), clip the gradients, and call step()."
)
PROGRAM = (
    "This call belongs to a static program of Paddle. PyTorch has no static programs. Clip between backward() and "
    "step()."
)
ATTACH = (
    "With this argument, the optimizer clips gradients. Remove the argument, and call "
    "ClipConfig(...).attach_to(optimizer)."
)
NEED_CLIP_LINE = (
    "Keep this line: unified_clip also reads need_clip from PyTorch's parameters. Check that the parameter in this "
    "line belongs to the PyTorch model."
)
NEED_CLIP_ARGUMENT = (
    "Remove this argument. Instead, set the attribute need_clip of the parameter to False, as in "
    "layer.bias.need_clip = False for bias_attr=. unified_clip reads this attribute."
)

FUNCTIONS = ("in place", "functional", "any tensor", "unknown")
"""The kinds of clips that are functions, and not classes of Paddle or calls of its static programs."""


def decide(file: FileRewrite) -> None:
    """Give each clip of a file a verdict. Each step decides about clips without a verdict."""
    taken = NAME_IS_TAKEN if is_name_taken(file.module) else ""
    reasons: dict[FoundClip, str] = {}
    for step in (
        _off,
        _unused,
        partial(_set_meaning, taken=taken, reasons=reasons),
        partial(_judge_tensor, reasons=reasons),
        partial(_flag_unsure, reasons=reasons),
        _judge,
        _replace,
    ):
        for clip in file.with_verdict(None):
            step(file, clip)


def _off(file: FileRewrite, clip: FoundClip) -> None:
    if clip.setting is not None and trainer_arguments.is_off(file.module, clip):
        file.leave(clip, f"A threshold of {clip.setting.off} switches clipping off.", OFF)


def _unused(file: FileRewrite, clip: FoundClip) -> None:
    """Flag a clip whose result no code uses."""
    if not clip.returns or clip.call is None:
        return
    tensor = (clip.tensor or clip.arguments.value(clip.function.clipped)) if clip.kind == "any tensor" else None
    if clip.kind != "any tensor" or (tensor is not None and file.gradients.may_be_gradient(tensor)):
        try:
            unused_result.check(file.module, clip.call)
        except ConfigError as error:
            file.flag(clip, str(error), UNUSED)


def _set_meaning(file: FileRewrite, clip: FoundClip, taken: str, reasons: dict[FoundClip, str]) -> None:
    """Add to `reasons` why the clip cannot be replaced as it is, or ''."""
    reasons[clip] = taken or clip.why_not
    try:
        file.sites[clip].meaning = meaning(file.module, clip)
    except UnsureError as error:
        reasons[clip] = reasons[clip] or str(error)


def _flag_unsure(file: FileRewrite, clip: FoundClip, reasons: Mapping[FoundClip, str]) -> None:
    if reasons[clip]:
        file.flag(clip, reasons[clip])


# -- what the arguments of a clip say


def _judge(file: FileRewrite, clip: FoundClip) -> None:
    if clip.argument is not None and not is_need_clip(clip):
        _judge_limit(file, clip)
    elif clip.kind and clip.kind != "any tensor":
        _flag_if_unsupported(file, clip)


def _judge_limit(file: FileRewrite, clip: FoundClip) -> None:
    assert clip.argument is not None
    if (threshold := file.module.code(clip.argument.value)) == "None":
        file.leave(clip, "A threshold of None switches clipping off.")
    elif is_off_in_keras(file.module, clip):
        file.flag(clip, OFF_IN_KERAS)
    elif has_several_limits(file.module, clip):
        file.flag(clip, SEVERAL_LIMITS)
    elif is_standalone_clipnorm(file.module, clip):
        file.flag(clip, VERSIONS_DIFFER.format(threshold))
    elif clip.function.name:
        _flag_if_unsupported(file, clip)


def _flag_if_unsupported(file: FileRewrite, clip: FoundClip) -> None:
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
    elif clip.call is None and clip.kind in FUNCTIONS and takes_other_arguments(function):
        file.flag(clip, ONLY_NAMED_FUNCTION)


def _judge_tensor(file: FileRewrite, clip: FoundClip, reasons: Mapping[FoundClip, str]) -> None:
    """Decide whether a call such as torch.clamp clips gradients.

    reasons: Why a clip is flagged in any case, if its tensor may be a gradient.
    """
    if clip.kind != "any tensor" or clip.argument is not None:
        return

    def flag(reason: str) -> None:
        file.flag(clip, reasons[clip] or reason)

    function = clip.function
    tensor = clip.tensor or clip.arguments.value(function.clipped)
    if clip.call is None:
        may_clip = not function.quiet or _may_get_gradient(file, clip.node)
        flag(ONLY_NAMED) if may_clip else file.leave(clip, NO_GRADIENT)
    elif tensor is None:
        unknown = ", ".join(clip.arguments.unknown)
        flag(UNKNOWN_ARGUMENTS.format(unknown)) if unknown else file.leave(clip, NO_GRADIENT)
    elif is_coefficient(file.module, tensor):
        file.leave(clip, OF_COEFFICIENT)
    elif function.quiet and (variable := file.gradients.other_variable(tensor, clip.call)):
        flag(OF_INPUT.format(variable))
    elif file.gradients.is_gradient(tensor):
        if not reasons[clip]:
            _flag_if_unsupported(file, clip)
    elif function.name != "paddle.clip" and (
        file.gradients.may_be_gradient(tensor)
        or (not function.quiet and SHORT_NAME.match(file.module.code(tensor)) is not None)
    ):
        flag(LIKE_GRADIENT)
    elif file.gradients.contains_gradient(tensor):
        flag(MADE_OF_GRADIENT)
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


# -- the replacement


def _replace(file: FileRewrite, clip: FoundClip) -> None:
    if file.target == "torch":
        _replace_in_pytorch(file, clip)
    elif is_need_clip(clip):
        file.leave(clip, "unified_clip reads need_clip, too.")
    elif not clip.kind:
        file.flag(clip, ATTACH)
    elif clip.kind == "class" and (reason := _why_only_paddle(file.module)):
        file.flag(clip, reason)
    else:
        file.rename(clip, clip.function.framework)


def _replace_in_pytorch(file: FileRewrite, clip: FoundClip) -> None:
    new_step = NEW_STEP.format(FRAMEWORKS.get(clip.name.partition(".")[0], "the old framework"))
    if SCALER.search(file.module.text.text):
        new_step = f"{new_step} {SCALED}"
    if is_need_clip(clip):
        file.flag(clip, NEED_CLIP_LINE if clip.name == "need_clip" else NEED_CLIP_ARGUMENT)
    elif clip.kind == "program":
        _judge_program(file, clip)
    elif clip.kind == "class":
        selecting = [SELECTING_ARGUMENTS[name] for name in SELECTING_ARGUMENTS if name in clip.arguments.passed]
        reasons = [ONLY_NAMED] * (clip.call is None) + [STATIC] * is_static(file.module) + selecting
        file.flag(clip, next(iter(reasons), new_step))
    elif not clip.kind or clip.function.framework == "tensorflow":
        variable = other_variable(file.gradients, clip)
        file.flag(clip, OF_INPUT.format(variable) if variable else new_step)
    else:
        file.rename(clip, "torch")


def _judge_program(file: FileRewrite, clip: FoundClip) -> None:
    passed = clip.arguments.value("clip")
    values = [passed, *(bound.value for bound in file.module.binding(passed).bounds)]
    if lines := [file.sites[other].line for other in file.clips if other.kind == "class" and other.call in values]:
        file.leave(clip, f"The call passes the clip of line {lines[0]}. Port that line.")
    else:
        file.flag(clip, PROGRAM)


def is_need_clip(clip: FoundClip) -> bool:
    return clip.name == "need_clip" or clip.name.endswith("(need_clip=)")


def _why_only_paddle(module: Module) -> str:
    """Return why an engine or optimizer of a file accepts only Paddle's own clips, or ''."""
    used = [check for check in class_checks() if any(map(check.has, module.used_names))]
    return next((check.why_not for check in used if _is_tested(module, check)), "")


def _is_tested(module: Module, check: ClassCheck) -> bool:
    values = (_passed(call, check) for call in module.calls)
    return not check.argument or any(value and _constant(value) not in check.harmless for value in values)


def _passed(call: ast.Call, check: ClassCheck) -> ast.expr | None:
    if argument := keywords_of(call).get(check.argument):
        return argument.value
    values = (argument.value for i, argument in enumerate(arguments_of(call)) if argument.star or i == check.position)
    return next(values, None) if method_of(call) == check.method else None


def _constant(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=None | True | False):
            return str(node.value)
        case ast.Name(id=name):
            return name
        case ast.Dict(keys=keys, values=values) if None not in keys:
            levels = [value for key, value in zip(keys, values, strict=True) if text_of(key) == "level"]
            return _constant(levels[-1]) if levels else "None"
    return ""
