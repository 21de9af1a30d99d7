"""The lines that a person should write where nothing is rewritten."""

from __future__ import annotations

import libcst as cst

from . import trainers
from .found import Arguments, Found
from .module import Module
from .names import KERAS_RULES, Native
from .sites import Target

CLASSES = {"norm": "GradientClipByNorm", "global_norm": "GradientClipByGlobalNorm", "value": "GradientClipByValue"}
STEP = ["optimizer.zero_grad()", "loss.backward()"]


def lines(module: Module, found: Found, target: Target) -> list[str]:
    """What does the same as a clip that was found; none where nothing is known to."""
    if found.setting is not None:
        value = trainers.limit(found)
        code = module.code(value) if value is not None else found.setting.default or "threshold"
        return [line.format(limit=code) for line in found.setting.lines]
    rule, family, limits = _rule(module, found)
    if not rule:
        return []
    if target == "drop-in":
        if found.native is not None and found.native.lines:
            return _filled(module, found, found.native)
        return _configured(rule, family, limits, module, found)
    return ["import unified_clip.torch", *_in_pytorch(rule, family, limits, found)]


def _filled(module: Module, found: Found, known: Native) -> list[str]:
    """The lines of a native, with the arguments of the call."""
    given = Arguments(found.call, known.parameters) if found.call is not None else None
    values = {name: given.value(name) if given is not None else None for name in known.parameters}
    codes = {name: module.code(value) if value is not None else name for name, value in values.items()}
    return [line.format(**codes) for line in known.lines]


def _in_pytorch(rule: str, family: str, limits: str, found: Found) -> list[str]:
    if found.native is not None and found.native.kind == "class":
        return _by_class(found.native.ours or CLASSES[rule], limits)
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


def _by_class(name: str, limits: str) -> list[str]:
    return [
        f"clip = unified_clip.torch.{name}({limits})  # once",
        *STEP,
        "clip.clip_(model.parameters())  # before every step",
        "optimizer.step()",
    ]


def _configured(rule: str, family: str, limits: str, module: Module, found: Found) -> list[str]:
    shape = "" if rule == "value" else f', family="{family}"'
    config = f'unified_clip.ClipConfig(rule="{rule}", threshold={limits}{shape})'
    if found.native is not None and found.native.framework == "optax":
        return ["import unified_clip", f"{config}.as_optax()"]
    if isinstance(found.node, cst.Arg) and found.native is None:
        keyword = module.code(found.node).partition("=")[0].strip()
        return ["import unified_clip", f"{config}.attach_to({_optimizer(module, found)})  # and no {keyword}="]
    return []


def _optimizer(module: Module, found: Found) -> str:
    """What an optimizer is called."""
    assign = module.parents[found.call] if found.call is not None else None
    return module.code(assign.targets[0].target) if isinstance(assign, cst.Assign) else "optimizer"


def _rule(module: Module, found: Found) -> tuple[str, str, str]:
    """The rule, the family and the code of the limits."""
    if isinstance(found.node, cst.Arg) and found.native is None:
        keyword = found.node.keyword.value if found.node.keyword else ""
        return KERAS_RULES.get(keyword, ""), "tensorflow", module.code(found.node.value)
    known = found.native
    if known is None or not known.rule:
        return "", "", ""
    given = Arguments(found.call, known.parameters) if found.call is not None else None
    values = [given.value(name) if given is not None else None for name in known.limits]
    code = ", ".join(module.code(each) for each in values if each is not None)
    return known.rule, known.family, code or "threshold"
