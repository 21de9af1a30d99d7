"""Suggest the code that the user can write instead of a flagged clip."""

from __future__ import annotations

import libcst as cst

from . import trainer_arguments
from .catalog import clip_function
from .clip_call import Arguments, FoundClip
from .clip_site import Target
from .source.module import Module
from .source.syntax_tree import keyword_of
from .to_config import rule_of

CLASSES = {"norm": "GradientClipByNorm", "global_norm": "GradientClipByGlobalNorm", "value": "GradientClipByValue"}
STEP = ["optimizer.zero_grad()", "loss.backward()"]


def lines(module: Module, clip: FoundClip, target: Target) -> list[str]:
    """Return the lines of code to write instead of a flagged clip; [] if there is no suggestion."""
    if clip.setting is not None:
        value = trainer_arguments.limit(clip)
        code = module.code(value) if value is not None else clip.setting.default or "threshold"
        return [line.format(limit=code) for line in clip.setting.lines]
    rule, family, values = rule_of(module, clip)
    if not rule:
        return []
    limits = ", ".join(module.code(value) for value in values if value is not None) or "threshold"
    if target == "torch":
        factor = scale(module, clip)
        advice = f"# unscale the gradients before the clip, and do not multiply the limit by {factor}"
        return [*([advice] if factor else []), "import unified_clip.torch", *_in_pytorch(module, clip, limits)]
    if clip.function.lines:
        passed = {name: clip.arguments.value(name) for name in clip.function.parameters}
        codes = {name: module.code(value) if value is not None else name for name, value in passed.items()}
        return [line.format(**codes) for line in clip.function.lines]
    shape = "" if rule == "value" else f', family="{family}"'
    config = f'unified_clip.ClipConfig(rule="{rule}", threshold={limits}{shape})'
    if clip.function.framework == "optax":
        return ["import unified_clip", f"{config}.as_optax()"]
    if isinstance(clip.node, cst.Arg) and clip.is_optimizer_argument:
        assign = module.parents[clip.call] if clip.call is not None else None
        optimizer = module.code(assign.targets[0].target) if isinstance(assign, cst.Assign) else "optimizer"
        return ["import unified_clip", f"{config}.attach_to({optimizer})  # and no {keyword_of(clip.node)}="]
    return []


def scale(module: Module, clip: FoundClip) -> str:
    """Return the code of `loss_scale` if the file has a line such as clip_norm *= loss_scale; else ''."""
    for bound in (bound for limit in clip.limits for bound in module.binding(limit).bounds):
        statement = bound.node
        if isinstance(statement, cst.AugAssign) and isinstance(statement.operator, cst.MultiplyAssign):
            factor = module.code(statement.value)
            if "scal" in factor.lower():
                return factor
    return ""


def _in_pytorch(module: Module, clip: FoundClip, limits: str) -> list[str]:
    rule, family, _ = rule_of(module, clip)
    name, parameters, which = CLASSES[rule], "model.parameters()", ""
    if clip.kind == "class":
        name = clip.function.replacement or name
        if selected := _selected(module, clip):
            parameters, which = "parameters", f", of {selected} only"
    elif family == "tensorflow" and rule == "global_norm":
        return [
            *STEP,
            "grads = [parameter.grad for parameter in parameters]",
            f"grads, norm = unified_clip.torch.clip_by_global_norm(grads, {limits})",
            "for parameter, grad in zip(parameters, grads):",
            "    parameter.grad = grad",
            "optimizer.step()",
        ]
    return [
        f"clip = unified_clip.torch.{name}({limits})  # once",
        *STEP,
        f"clip.clip_({parameters})  # before every step{which}",
        "optimizer.step()",
    ]


def _selected(module: Module, clip: FoundClip) -> str:
    """Return the code of the argument param_list of set_gradient_clip; '' if the clip is for all parameters."""
    for place in [clip.call, *module.assigned(clip.call).reads] if clip.call is not None else ():
        argument = module.parents.get(place)
        call = module.parents.get(argument) if isinstance(argument, cst.Arg) else None
        function = clip_function(module.full_name(call.func)) if isinstance(call, cst.Call) else None
        if isinstance(call, cst.Call) and function is not None and "param_list" in function.parameters:
            value = Arguments(call, function.parameters).value("param_list")
            return module.code(value) if value is not None and module.code(value) != "None" else ""
    return ""
