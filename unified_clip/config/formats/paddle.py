"""Paddle in Python source: `paddle.nn.ClipGradByGlobalNorm(clip_norm=1.0)`."""

from __future__ import annotations

import ast
import math
from typing import Any

from packaging.version import Version

from ..documents import Document
from ..schema import Settings, is_off
from .base import (
    FormatKey,
    Imported,
    OwnFormat,
    Zero,
    check_size,
    exported_threshold,
    global_norm_settings,
    norm_settings,
    read_threshold,
    require_finite,
    with_plain_threshold,
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
"""Arguments by class: ClipGradBy* in Paddle 2 and 3, GradientClipBy* and (dygraph) GradClipBy* in 1.x."""

REJECTED = {
    "clip_grad_norm_": "clips only the parameters in its call. Write a clip configuration with rule = 'global_norm' "
    "and family = 'pytorch'.",
    "clip_grad_value_": "clips only the parameters in its call. Write a clip configuration with rule = 'value'.",
    "ErrorClipByValue": "clips the gradients of intermediate results, not of parameters. This is not supported.",
    "append_gradient_clip_ops": "applies clips from elsewhere. Import the file that sets them.",
    "clip_by_norm": "clips any tensor, not always gradients. Set the threshold in a clip configuration.",
}

PER_GROUP = "Paddle clips each group of parameters on its own. A global norm is one per group."


class Paddle(OwnFormat):
    name = "paddle"
    title = "Paddle"
    kinds = ("python",)
    source = "python/paddle/nn/clip.py"
    newest = "3.3.1"
    instead = "`ClipConfig.as_paddle`"
    rules = ("global_norm", "norm", "value")
    keys = (
        FormatKey("ClipGradByGlobalNorm(clip_norm)", "2.0 and later", "", "the global norm; 0: all gradients become 0"),
        FormatKey("ClipGradByNorm(clip_norm)", "2.0 and later", "", "each tensor by its own norm; 0 or less: fails"),
        FormatKey("ClipGradByValue(max, min)", "2.0 and later", "min: -max", "each element, between min and max"),
        FormatKey(
            "ClipGradByGlobalNorm(group_name, auto_skip_clip)", "", "", "other norms in static programs", "rejected"
        ),
        FormatKey("fluid.clip.GradientClipByGlobalNorm(clip_norm)", "1.x", "", "as ClipGradByGlobalNorm", "imported"),
        FormatKey("fluid.clip.GradientClipByNorm(clip_norm)", "1.x", "", "as ClipGradByNorm", "imported"),
        FormatKey("fluid.clip.GradientClipByValue(max, min)", "1.x", "min: -max", "as ClipGradByValue", "imported"),
        FormatKey("GradClipByGlobalNorm(max_global_norm)", "1.6, 1.7", "", "as ClipGradByGlobalNorm", "imported"),
        FormatKey("GradClipByNorm(clip_norm)", "1.6, 1.7", "", "as ClipGradByNorm", "imported"),
        FormatKey("GradClipByValue(max_value, min_value)", "1.6, 1.7", "", "as ClipGradByValue", "imported"),
        FormatKey("set_gradient_clip(clip)", "1.x", "", "the default for all parameters of a program", "imported"),
        FormatKey("set_gradient_clip(clip)", "2.0 and later", "", "has no effect there", "rejected"),
        FormatKey("parameters=[{params, grad_clip}]", "", "", "a clip for one group of parameters", "rejected"),
        FormatKey("need_clip=", "", "", "excludes parameters that the source does not name", "rejected"),
        FormatKey("ParamAttr(gradient_clip=)", "1.x", "", "a clip for some parameters", "rejected"),
        FormatKey(
            "nn.utils.clip_grad_norm_, clip_grad_value_",
            "",
            "",
            "PyTorch's rule, for the call's parameters",
            "rejected",
        ),
        FormatKey("ErrorClipByValue", "", "", "the gradients of intermediate results", "rejected"),
        FormatKey("clip_by_norm", "", "", "any tensor", "rejected"),
        FormatKey("append_gradient_clip_ops", "1.x", "", "applies clips from elsewhere", "rejected"),
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
            if name in REJECTED:
                raise source.wrong(node, f"{name} {REJECTED[name]}")
            if name in ARGUMENTS:
                clips.append((name, source.call(node)))
            if name == "set_gradient_clip":
                notes += _check_set_gradient_clip(source, source.call(node), version)
        for keyword in [*_keywords(source, "need_clip"), *_keywords(source, "gradient_clip")]:
            raise source.wrong(
                keyword,
                f"{keyword.arg} concerns parameters whose names are not in the source. Remove it, and name them in "
                "`exclude`.",
            )
        _check_groups(source)
        for attribute in source.nodes:
            if (
                isinstance(attribute, ast.Attribute)
                and attribute.attr in ARGUMENTS
                and not _is_imported(source, attribute)
            ):
                raise source.wrong(
                    attribute, f"cannot infer whether {ast.unparse(attribute)} is Paddle's. Import it by name."
                )
        if len(clips) > 1:
            lines = ", ".join(str(call.lineno) for _, call in clips)
            raise source.wrong(clips[1][1], f"the file clips in several places (lines {lines}). Keep one of them.")
        if not clips:
            return Imported({"rule": "none"}, ["The file does not clip by Paddle."])
        ((name, call),) = clips
        notes += source.conditions(call)
        if any(_has_groups(keyword.value) for keyword in _keywords(source, "parameters")):
            notes.append(PER_GROUP)
        return Imported(settings_of(name, source.arguments(call, ARGUMENTS[name])), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        settings = with_plain_threshold(settings)
        if settings.rule == "value" and not is_off(settings):
            return self._value(settings)
        zero: Zero = "error" if settings.rule == "norm" else "zeros"
        limit = exported_threshold(settings, self, rules=self.rules, family="paddle", zero=zero)
        if limit is None:
            return "None"
        name = "ClipGradByGlobalNorm" if settings.rule == "global_norm" else "ClipGradByNorm"
        return f"paddle.nn.{name}(clip_norm={limit!r})"

    def _value(self, settings: Settings) -> str:
        """Return a clip by value. Paddle supports `min` and `max`."""
        has_bounds = settings.min is not None
        one = settings.model_copy(update={"min": None, "max": None, "threshold": 1.0}) if has_bounds else settings
        limit = exported_threshold(one, self, rules=self.rules, family="paddle", zero="zeros")
        high = float(settings.max if has_bounds else limit)  # type: ignore[arg-type]
        low = float(settings.min if has_bounds else -high)  # type: ignore[arg-type]
        if low == -high and 0 < high < math.inf:
            return f"paddle.nn.ClipGradByValue(max={high!r})"
        return f"paddle.nn.ClipGradByValue(max={_literal(high)}, min={_literal(low)})"

    def dump(self, data: Any) -> str:
        return f"import paddle\n\ngrad_clip = {data}\n"


def settings_of(name: str, arguments: Document) -> dict[str, Any]:
    """Return the settings of a Paddle class with these arguments."""
    key, *more = ARGUMENTS[name]
    data = arguments.data
    if data.get(key) is None:
        raise arguments.wrong([key], f"{name} has no default for {key}. Pass a number.")
    if name.endswith("Value"):
        return bounds_settings(arguments, key, more[0])
    if data.get("group_name") not in (None, "default_group") or data.get("auto_skip_clip"):
        raise arguments.wrong([], "group_name and auto_skip_clip change clipping in static programs. Remove them.")
    if name.endswith("GlobalNorm"):
        return global_norm_settings(
            require_finite(arguments, [key], read_threshold(arguments, [key], None, zero="zeros")), "paddle"
        )
    return norm_settings(
        require_finite(arguments, [key], read_threshold(arguments, [key], None, zero="error")), "paddle"
    )


def bounds_settings(arguments: Document, high_key: str, low_key: str) -> dict[str, Any]:
    """Return the settings of a clip by value with these bounds."""
    high, low = arguments.data[high_key], arguments.data.get(low_key)
    if low is None:
        return {"rule": "value", "threshold": read_threshold(arguments, [high_key], None, zero="error")}
    for key, bound in ((high_key, high), (low_key, low)):
        check_size(arguments, [key], bound)
        if isinstance(bound, bool) or not isinstance(bound, int | float) or math.isnan(bound):
            raise arguments.wrong([key], f"{bound!r:.60} is not a bound. Pass a number.")
    if low > high:
        raise arguments.wrong([low_key], f"{low_key} ({low:g}) is above {high_key} ({high:g}).")
    if low == -high and not math.isinf(high):
        return {"rule": "value", "threshold": float(high)}
    return {"rule": "value", "min": float(low), "max": float(high)}


def _literal(bound: float) -> str:
    return f'float("{bound}")' if math.isinf(bound) else repr(bound)


def _keywords(source: Source, name: str) -> list[ast.keyword]:
    return [node for node in source.nodes if isinstance(node, ast.keyword) and node.arg == name]


def _is_imported(source: Source, node: ast.Attribute) -> bool:
    return source.dotted(node).partition(".")[0] in {module.partition(".")[0] for module in source.imports.values()}


def _check_groups(source: Source) -> None:
    """Raise ConfigError if a group of parameters has its own grad_clip."""
    for node in source.nodes:
        keys: list[Any] = []
        if isinstance(node, ast.Dict):
            keys = [getattr(key, "value", None) for key in node.keys]
        elif isinstance(node, ast.Call) and source.dotted(node.func) == "dict":
            keys = [keyword.arg for keyword in node.keywords]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys = ["params", getattr(node.slice, "value", None)]
        if "params" in keys and "grad_clip" in keys:
            raise source.wrong(node, "grad_clip belongs to one group of parameters here. Pass it to the optimizer.")


def _has_groups(parameters: ast.expr) -> bool:
    return isinstance(parameters, ast.List) and sum(isinstance(entry, ast.Dict) for entry in parameters.elts) > 1


def _check_set_gradient_clip(source: Source, call: ast.Call, version: Version | None) -> list[str]:
    if version is not None and version >= Version("2"):
        raise source.wrong(call, "set_gradient_clip has no effect since Paddle 2.0. Pass the clip as grad_clip=.")
    if len(call.args) > 1 or (call.keywords and {keyword.arg for keyword in call.keywords} - {"clip"}):
        raise source.wrong(
            call, "this clip applies to some parameters, or to one program, only. Pass the clip as grad_clip=."
        )
    return ["set_gradient_clip applies to static programs of Paddle 1.x only. An optimizer's grad_clip= overrides it."]
