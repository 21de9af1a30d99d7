"""Paddle in Python source: `paddle.nn.ClipGradByGlobalNorm(clip_norm=1.0)`, and what its optimizers hold."""

from __future__ import annotations

import ast
import math
from typing import Any

from packaging.version import Version

from ..documents import Document
from ..schema import Settings, is_off
from .base import (
    Imported,
    Key,
    OwnFormat,
    Zero,
    check_size,
    finite,
    global_norm,
    norm,
    plain,
    plain_threshold,
    threshold,
)
from .python_source import Source, parse

ARGUMENTS = {
    "ClipGradByGlobalNorm": ("clip_norm", "group_name", "auto_skip_clip"),
    "GradientClipByGlobalNorm": ("clip_norm", "group_name"),
    "GradClipByGlobalNorm": ("max_global_norm",),
    "ClipGradByNorm": ("clip_norm",),
    "GradientClipByNorm": ("clip_norm",),
    "GradClipByNorm": ("clip_norm",),
    "ClipGradByValue": ("max", "min"),
    "GradientClipByValue": ("max", "min"),
    "GradClipByValue": ("max_value", "min_value"),
}
"""By class. Paddle 2 and 3 have ClipGradBy*; GradientClipBy* and, in dygraph, GradClipBy* are those of 1.x."""

REFUSED = {
    "clip_grad_norm_": "clips the parameters that it is given, where it is called; say that rule as rule = "
    "'global_norm' with family = 'pytorch'",
    "clip_grad_value_": "clips the parameters that it is given, where it is called; say that rule as rule = 'value'",
    "ErrorClipByValue": "clips the gradients of intermediate results, not of parameters",
    "append_gradient_clip_ops": "applies clips that were set elsewhere; import those",
    "clip_by_norm": "clips any tensor; whether that is a gradient cannot be told",
}

PER_GROUP = "Paddle clips each group of parameters by itself, so that a global norm is one for each group"


class Paddle(OwnFormat):
    name = "paddle"
    title = "Paddle"
    kinds = ("python",)
    source = "python/paddle/nn/clip.py"
    newest = "3.3.1"
    instead = "`ClipConfig.as_paddle`"
    rules = ("global_norm", "norm", "value")
    keys = (
        Key("ClipGradByGlobalNorm(clip_norm)", "2.0 and later", "", "the global norm; 0: all gradients become 0"),
        Key("ClipGradByNorm(clip_norm)", "2.0 and later", "", "each tensor by its own norm; 0 or less: fails"),
        Key("ClipGradByValue(max, min)", "2.0 and later", "min: -max", "each element, between min and max"),
        Key("ClipGradByGlobalNorm(group_name, auto_skip_clip)", "", "", "other norms in static programs", "refused"),
        Key("fluid.clip.GradientClipByGlobalNorm(clip_norm)", "1.x", "", "as ClipGradByGlobalNorm", "imported"),
        Key("fluid.clip.GradientClipByNorm(clip_norm)", "1.x", "", "as ClipGradByNorm", "imported"),
        Key("fluid.clip.GradientClipByValue(max, min)", "1.x", "min: -max", "as ClipGradByValue", "imported"),
        Key("GradClipByGlobalNorm(max_global_norm)", "1.6, 1.7", "", "as ClipGradByGlobalNorm", "imported"),
        Key("GradClipByNorm(clip_norm)", "1.6, 1.7", "", "as ClipGradByNorm", "imported"),
        Key("GradClipByValue(max_value, min_value)", "1.6, 1.7", "", "as ClipGradByValue", "imported"),
        Key("set_gradient_clip(clip)", "1.x", "", "the default for all parameters of a program", "imported"),
        Key("set_gradient_clip(clip)", "2.0 and later", "", "has no effect there", "refused"),
        Key("parameters=[{params, grad_clip}]", "", "", "a clip for one group of parameters", "refused"),
        Key("need_clip=", "", "", "leaves out parameters that the source does not name", "refused"),
        Key("ParamAttr(gradient_clip=)", "1.x", "", "a clip for some parameters", "refused"),
        Key("nn.utils.clip_grad_norm_, clip_grad_value_", "", "", "PyTorch's rule, where it is called", "refused"),
        Key("ErrorClipByValue", "", "", "the gradients of intermediate results", "refused"),
        Key("clip_by_norm", "", "", "any tensor", "refused"),
        Key("append_gradient_clip_ops", "1.x", "", "what was set elsewhere", "refused"),
    )

    def parse(self, text: str, name: str) -> Document:
        return parse(text, name)

    def recognises(self, document: Document) -> bool:
        return isinstance(document.data, Source) and document.data.uses("paddle")

    def read(self, document: Document, version: Version | None) -> Imported:
        source: Source = document.data
        notes = []
        clips = []
        for name, node in source.named("paddle"):
            name = name.rpartition(".")[2]
            if name in REFUSED:
                raise source.wrong(node, f"{name} {REFUSED[name]}")
            if name in ARGUMENTS:
                clips.append((name, source.call(node)))
            if name == "set_gradient_clip":
                notes += _program(source, source.call(node), version)
        for keyword in [*_keywords(source, "need_clip"), *_keywords(source, "gradient_clip")]:
            raise source.wrong(
                keyword, f"{keyword.arg} is about parameters whose names are not told here; remove it, and name them"
            )
        _check_groups(source)
        for each in source.nodes:
            if isinstance(each, ast.Attribute) and each.attr in ARGUMENTS and not _is_imported(source, each):
                raise source.wrong(each, f"whether {ast.unparse(each)} is Paddle's cannot be told; import it by name")
        if len(clips) > 1:
            lines = ", ".join(str(call.lineno) for _, call in clips)
            raise source.wrong(clips[1][1], f"it clips in several places (lines {lines}); leave one of them")
        if not clips:
            return Imported({"rule": "none"}, ["there is no clipping by Paddle in it"])
        ((name, call),) = clips
        notes += source.conditions(call)
        if any(_groups(keyword.value) for keyword in _keywords(source, "parameters")):
            notes.append(PER_GROUP)
        return Imported(settings_of(name, source.arguments(call, ARGUMENTS[name])), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        settings = plain(settings)
        if settings.rule == "value" and not is_off(settings):
            return self._value(settings)
        zero: Zero = "error" if settings.rule == "norm" else "zeros"
        limit = plain_threshold(settings, self, rules=self.rules, family="paddle", zero=zero)
        if limit is None:
            return "None"
        name = "ClipGradByGlobalNorm" if settings.rule == "global_norm" else "ClipGradByNorm"
        return f"paddle.nn.{name}(clip_norm={limit!r})"

    def _value(self, settings: Settings) -> str:
        """Bounds are what a threshold alone cannot say, and Paddle can."""
        bounds = settings.min is not None
        plain = settings.model_copy(update={"min": None, "max": None, "threshold": 1.0}) if bounds else settings
        limit = plain_threshold(plain, self, rules=self.rules, family="paddle", zero="zeros")
        high = float(settings.max if bounds else limit)  # type: ignore[arg-type]
        low = float(settings.min if bounds else -high)  # type: ignore[arg-type]
        if low == -high and 0 < high < math.inf:
            return f"paddle.nn.ClipGradByValue(max={high!r})"
        return f"paddle.nn.ClipGradByValue(max={_written(high)}, min={_written(low)})"

    def dump(self, data: Any) -> str:
        return f"import paddle\n\ngrad_clip = {data}\n"


def settings_of(name: str, arguments: Document) -> dict[str, Any]:
    """What a class of Paddle's does, given its arguments."""
    key, *others = ARGUMENTS[name]
    given = arguments.data
    if given.get(key) is None:
        raise arguments.wrong([key], f"{name} has no default for it; give a number")
    if name.endswith("Value"):
        return bounds(arguments, key, others[0])
    if given.get("group_name") not in (None, "default_group") or given.get("auto_skip_clip"):
        raise arguments.wrong([], "with group_name or auto_skip_clip it clips otherwise in static programs; remove it")
    if name.endswith("GlobalNorm"):
        return global_norm(finite(arguments, [key], threshold(arguments, [key], None, zero="zeros")), "paddle")
    return norm(finite(arguments, [key], threshold(arguments, [key], None, zero="error")), "paddle")


def bounds(arguments: Document, high_key: str, low_key: str) -> dict[str, Any]:
    """Settings of a clip by value, given its bounds."""
    high, low = arguments.data[high_key], arguments.data.get(low_key)
    if low is None:
        return {"rule": "value", "threshold": threshold(arguments, [high_key], None, zero="error")}
    for key, bound in ((high_key, high), (low_key, low)):
        check_size(arguments, [key], bound)
        if isinstance(bound, bool) or not isinstance(bound, int | float) or math.isnan(bound):
            raise arguments.wrong([key], f"it is {bound!r:.60}, which is no bound; give a number")
    if low > high:
        raise arguments.wrong([low_key], f"it is {low:g}, above {high_key}, which is {high:g}")
    if low == -high and not math.isinf(high):
        return {"rule": "value", "threshold": float(high)}
    return {"rule": "value", "min": float(low), "max": float(high)}


def _written(bound: float) -> str:
    return f'float("{bound}")' if math.isinf(bound) else repr(bound)


def _keywords(source: Source, name: str) -> list[ast.keyword]:
    return [each for each in source.nodes if isinstance(each, ast.keyword) and each.arg == name]


def _is_imported(source: Source, node: ast.Attribute) -> bool:
    return source.dotted(node).partition(".")[0] in {each.partition(".")[0] for each in source.imports.values()}


def _check_groups(source: Source) -> None:
    """A group of parameters may have a clip of its own, which counts for it only."""
    for node in source.nodes:
        keys: list[Any] = []
        if isinstance(node, ast.Dict):
            keys = [getattr(key, "value", None) for key in node.keys]
        elif isinstance(node, ast.Call) and source.dotted(node.func) == "dict":
            keys = [keyword.arg for keyword in node.keywords]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys = ["params", getattr(node.slice, "value", None)]
        if "params" in keys and "grad_clip" in keys:
            raise source.wrong(node, "grad_clip is that of one group of parameters here; give it to the optimizer")


def _groups(parameters: ast.expr) -> bool:
    return isinstance(parameters, ast.List) and sum(isinstance(each, ast.Dict) for each in parameters.elts) > 1


def _program(source: Source, call: ast.Call, version: Version | None) -> list[str]:
    if version is not None and version >= Version("2"):
        raise source.wrong(call, "set_gradient_clip clips nothing since Paddle 2.0; pass the clip as grad_clip=")
    if len(call.args) > 1 or (call.keywords and {each.arg for each in call.keywords} - {"clip"}):
        raise source.wrong(call, "it is for some parameters, or a program, only; pass the clip as grad_clip=")
    return ["set_gradient_clip counts in static programs of Paddle 1.x only, and less than an optimizer's grad_clip="]
