"""Rules for Paddle's clip classes, such as `ClipGradByNorm`, and the optimizers that get them as `grad_clip=`."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from textwrap import indent

from ...source.module import Module
from ...source.tree import Argument, Function, arguments_of, keywords_of, method_of, owner_of, text_of
from ..catalog import ClassCheck, class_checks
from ..file_rewrite import FileRewrite
from ..found_clip import FoundClip
from ..steps.paddle_clips import ClipSource, PaddleClips
from ..steps.paddle_optimizers import Optimizer, calls_parameters
from ..steps.paddle_steps import PaddleStep
from ..to_config import UnsureError
from .registry import RuleOrder, register

NEED_CLIP = "If parameters of the old code have need_clip=False, set need_clip = False for these parameters in PyTorch."
IN_PLACE = (
    "The new code clips gradients in place. Paddle might clip copies of the gradients. Check code that reads or "
    "accumulates gradients after the step."
)
NEW_PARTS = ("add_sublayer", "add_parameter", "append", "extend", "insert")

ALL = '[parameter for group in {}.param_groups for parameter in group["params"]]'


ONLY_NAMED = (
    "This line uses the clip, but does not call it, so the arguments are unknown. First, port the code that calls "
    "the clip. Then change the name here."
)


def is_class(clip: FoundClip) -> bool:
    return clip.kind == "class"


@register(RuleOrder.STEPS, matches=is_class, target="torch")
def rewrite(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    created = [clip for clip in clips if clip.call is not None]
    if created:
        _rewrite_steps(file, created)
    for clip in clips:
        are_rewritten = all(file.sites[other].verdict == "rewritten" for other in created)
        if clip.call is None and are_rewritten and file.module.is_annotation(clip.node):
            file.rename(clip, "torch")
        file.check(clip, NEED_CLIP, IN_PLACE)


def _rewrite_steps(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    paddle = PaddleClips(file.module, clips)
    for source in paddle.sources:
        try:
            _insert_clips(file, source, [paddle.optimizers[argument] for argument in source.uses])
        except UnsureError as error:
            paddle.why_not |= dict.fromkeys(source.clips, str(error))
            continue
        for clip in source.clips:
            file.rename(clip, "torch")
    for clip, reason in paddle.why_not.items():
        file.flag(clip, reason)


def _insert_clips(file: FileRewrite, source: ClipSource, optimizers: Sequence[Optimizer]) -> None:
    """Insert the clip before each step, or raise UnsureError before any edit."""
    unscaled = {step: _unscaled(file.module, step, each) for each in optimizers for step in each.steps}
    for argument, optimizer in zip(source.uses, optimizers, strict=True):
        file.edits.remove_argument(argument)
        name = _clip_name(file, argument, optimizer)
        for step in optimizer.steps:
            if optimizer.grouped:
                group = file.module.unused_name("group")
                clips = [f'{name}.clip_({group}["params"])']
                clips = _block(f"for {group} in {optimizer.binding.text}.param_groups", clips)
            else:
                clips = [f"{name}.clip_({_parameters(file.module, step, optimizer)})"]
            if source.may_be_none:
                clips = _block(f"if {name} is not None", clips)
            file.edits.insert_before(step.statement, [*unscaled[step], *clips])
            if step.kind == "minimize":
                file.edits.replace(step.call, f"{file.module.source(owner_of(step.call))}.step()")


def _clip_name(file: FileRewrite, argument: Argument, optimizer: Optimizer) -> str:
    """Return a variable that contains the clip at each step. If there is none, add a variable."""
    calls = [step.call for step in optimizer.steps]
    is_visible = isinstance(argument.value, ast.Name | ast.Attribute) and all(
        file.module.has_same_value_at(argument.value, call) for call in calls
    )
    if is_visible:
        return file.module.code(argument.value)
    name = file.module.unused_name(f"{optimizer.binding.text}_clip")
    statement = file.module.statement(argument.value)
    file.edits.insert_before(statement, lambda: [f"{name} = {file.edits.updated(argument.value)}"])
    return name


def _parameters(module: Module, step: PaddleStep, optimizer: Optimizer) -> str:
    parameters = optimizer.parameters
    if parameters is None or not calls_parameters(parameters) or _has_new_parts(module, parameters):
        return ALL.format(optimizer.binding.text)
    is_visible = module.has_same_value_at(parameters, step.call)
    return module.code(parameters) if is_visible else ALL.format(optimizer.binding.text)


def _has_new_parts(module: Module, parameters: ast.expr) -> bool:
    model = module.code(parameters).removesuffix(".parameters()")
    targets = [target for node in module.nodes if isinstance(node, ast.Assign) for target in node.targets]
    targets += [call.func for call in module.calls if method_of(call) in NEW_PARTS]
    is_set = any(module.code(call).startswith(f"setattr({model},") for call in module.calls)
    return is_set or any(module.code(target).startswith(f"{model}.") for target in targets)


def _unscaled(module: Module, step: PaddleStep, optimizer: Optimizer) -> list[str]:
    """Return the line to insert that unscales the gradients, or [] if no line is needed."""
    if step.kind != "scaler" or _line_that_unscales(module, step, optimizer) is not None:
        return []
    code = _unscale(module, step, optimizer)
    others = [_line_that_unscales(module, other, optimizer) for other in optimizer.steps if other.kind == "scaler"]
    for read in optimizer.binding.reads:
        call, _ = module.argument(read) or (None, None)
        if call is not None and method_of(call) == "unscale_" and module.statement(call) not in others:
            raise UnsureError(
                f"Line {module.position(call)[0]} unscales the gradients, but might not run before every step. Move "
                f"{code} to the line above {module.code(step.call)}, outside of any `if`. You need no `if` for a "
                "disabled scaler, because its unscale_ does nothing."
            )
    return [code]


def _unscale(module: Module, step: PaddleStep, optimizer: Optimizer) -> str:
    return f"{module.code(owner_of(step.call))}.unscale_({optimizer.binding.text})"


def _line_that_unscales(module: Module, step: PaddleStep, optimizer: Optimizer) -> ast.AST | None:
    name, code = optimizer.binding.text, _unscale(module, step, optimizer)
    ends = re.compile(rf"\.update\(|\.step\([^)]*\b{re.escape(name)}\b|\b{re.escape(name)}\.step\(")
    inner: ast.AST = step.statement
    while not isinstance(inner, ast.Module | ast.For | ast.AsyncFor | ast.While | Function):
        outer, field = module.block(inner)
        lines: list[ast.stmt] = getattr(outer, field)
        for line in reversed(lines[: lines.index(module.statement(inner))]):
            text = module.code(line).partition("#")[0].strip()
            if text in (code, code.replace("(", "(optimizer=")):
                return line
            if ends.search(text):
                return None
        inner = outer
    return None


def _block(header: str, lines: Sequence[str]) -> list[str]:
    return ["\n".join([f"{header}:", indent("\n".join(lines), "    ")])]


@register(RuleOrder.CALLS, matches=is_class, target="torch")
def flag_only_named(file: FileRewrite, clip: FoundClip) -> None:
    file.flag(clip, ONLY_NAMED)


@register(RuleOrder.CALLS, matches=is_class, target="drop-in")
def rename_drop_in(file: FileRewrite, clip: FoundClip) -> None:
    used = [check for check in class_checks() if any(map(check.has, file.module.used_names))]
    if reasons := [check.why_not for check in used if _is_tested(file.module, check)]:
        file.flag(clip, reasons[0])
    else:
        file.rename(clip, clip.function.framework)


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
