"""Rules for Paddle's clip classes, such as `ClipGradByNorm`."""

from __future__ import annotations

import ast

from ...source.module import Module
from ...source.tree import arguments_of, keywords_of, method_of, text_of
from ..catalog import ClassCheck, class_checks
from ..file_rewrite import FileRewrite
from ..found_clip import FoundClip
from .registry import RuleOrder, register

ONLY_NAMED = (
    "This line uses the clip, but does not call it, so the arguments are unknown. First, port the code that calls "
    "the clip. Then change the name here."
)


def is_class(clip: FoundClip) -> bool:
    return clip.kind == "class"


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
