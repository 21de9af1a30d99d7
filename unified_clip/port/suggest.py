"""Suggest lines for clips that are flagged."""

from __future__ import annotations

import libcst as cst

from . import keras_versions, trainer_arguments
from .catalog import ClipFunction, clip_function
from .clip_call import Arguments, FoundClip
from .clip_site import Target
from .source.module import Module

CLASSES = {"norm": "GradientClipByNorm", "global_norm": "GradientClipByGlobalNorm", "value": "GradientClipByValue"}
STEP = ["optimizer.zero_grad()", "loss.backward()"]


def lines(module: Module, found: FoundClip, target: Target) -> list[str]:
    """Return lines that do the same as a clip; none if there are no such lines."""
    if found.setting is not None:
        value = trainer_arguments.limit(found)
        code = module.code(value) if value is not None else found.setting.default or "threshold"
        return [line.format(limit=code) for line in found.setting.lines]
    rule, family, limits = _rule(module, found)
    if not rule:
        return []
    if target == "drop-in":
        if found.function is not None and found.function.lines:
            return _filled(module, found, found.function)
        return _configured(rule, family, limits, module, found)
    return [*_scaled(module, found), "import unified_clip.torch", *_in_pytorch(module, rule, family, limits, found)]


def scale(module: Module, found: FoundClip) -> str:
    """Return the loss scale in clip_norm *= loss_scale; '' if there is none."""
    known = found.function
    given = Arguments(found.call, known.parameters) if found.call is not None and known is not None else None
    for value in (given.value(name) for name in known.limits) if given is not None and known is not None else ():
        binding = module.binding(value) if value is not None else None
        for bound in binding.bounds if binding is not None else ():
            statement = bound.node
            if isinstance(statement, cst.AugAssign) and isinstance(statement.operator, cst.MultiplyAssign):
                factor = module.code(statement.value)
                if "scal" in factor.lower():
                    return factor
    return ""


def _scaled(module: Module, found: FoundClip) -> list[str]:
    factor = scale(module, found)
    return [f"# unscale the gradients before the clip, and do not multiply the limit by {factor}"] if factor else []


def _chosen(module: Module, found: FoundClip) -> str:
    """Return the parameters that set_gradient_clip(clip, param_list=) receives; '' for all."""
    if found.call is None:
        return ""
    assign = module.parents[found.call]
    binding = module.binding(assign.targets[0].target) if isinstance(assign, cst.Assign) else None
    for place in [found.call, *(binding.reads if binding is not None else ())]:
        argument = module.parents.get(place)
        call = module.parents.get(argument) if isinstance(argument, cst.Arg) else None
        known = clip_function(module.full_name(call.func)) if isinstance(call, cst.Call) else None
        if isinstance(call, cst.Call) and known is not None and "param_list" in known.parameters:
            value = Arguments(call, known.parameters).value("param_list")
            return module.code(value) if value is not None and module.code(value) != "None" else ""
    return ""


def _filled(module: Module, found: FoundClip, known: ClipFunction) -> list[str]:
    """Return the lines of a function, filled with the arguments of the call."""
    given = Arguments(found.call, known.parameters) if found.call is not None else None
    values = {name: given.value(name) if given is not None else None for name in known.parameters}
    codes = {name: module.code(value) if value is not None else name for name, value in values.items()}
    return [line.format(**codes) for line in known.lines]


def _in_pytorch(module: Module, rule: str, family: str, limits: str, found: FoundClip) -> list[str]:
    if found.function is not None and found.function.kind == "class":
        chosen = _chosen(module, found)
        if chosen:
            return _by_class(found.function.replacement or CLASSES[rule], limits, "parameters", f", of {chosen} only")
        return _by_class(found.function.replacement or CLASSES[rule], limits)
    if family == "tensorflow" and rule == "global_norm":
        return [
            *STEP,
            "grads = [parameter.grad for parameter in parameters]",
            f"grads, norm = unified_clip.torch.clip_by_global_norm(grads, {limits})",
            "for parameter, grad in zip(parameters, grads):",
            "    parameter.grad = grad",
            "optimizer.step()",
        ]
    return _by_class(CLASSES[rule], limits)


def _by_class(name: str, limits: str, parameters: str = "model.parameters()", which: str = "") -> list[str]:
    return [
        f"clip = unified_clip.torch.{name}({limits})  # once",
        *STEP,
        f"clip.clip_({parameters})  # before every step{which}",
        "optimizer.step()",
    ]


def _configured(rule: str, family: str, limits: str, module: Module, found: FoundClip) -> list[str]:
    shape = "" if rule == "value" else f', family="{family}"'
    config = f'unified_clip.ClipConfig(rule="{rule}", threshold={limits}{shape})'
    if found.function is not None and found.function.framework == "optax":
        return ["import unified_clip", f"{config}.as_optax()"]
    if isinstance(found.node, cst.Arg) and found.function is None:
        keyword = module.code(found.node).partition("=")[0].strip()
        return ["import unified_clip", f"{config}.attach_to({_optimizer(module, found)})  # and no {keyword}="]
    return []


def _optimizer(module: Module, found: FoundClip) -> str:
    """Return the name of the optimizer."""
    assign = module.parents[found.call] if found.call is not None else None
    return module.code(assign.targets[0].target) if isinstance(assign, cst.Assign) else "optimizer"


def _rule(module: Module, found: FoundClip) -> tuple[str, str, str]:
    """Return rule, family and the source of the limits."""
    if isinstance(found.node, cst.Arg) and found.function is None:
        return *keras_versions.rule(module, found), module.code(found.node.value)
    known = found.function
    if known is None or not known.rule:
        return "", "", ""
    given = Arguments(found.call, known.parameters) if found.call is not None else None
    values = [given.value(name) if given is not None else None for name in known.limits]
    code = ", ".join(module.code(each) for each in values if each is not None)
    return known.rule, known.family, code or "threshold"
