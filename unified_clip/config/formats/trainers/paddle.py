"""Python source that clips with Paddle, such as `paddle.nn.ClipGradByGlobalNorm(clip_norm=1.0)`."""

from __future__ import annotations

import ast
import math
from typing import Any

from packaging.version import Version

from ...._kit.static_values import is_number
from ....facts.trainer_rows import Zero, trainers
from ...documents import Document
from ...schema import Rule, Settings, is_off
from ..base import Imported, check_size
from ..python_source import PythonFormat, Source

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
"""The arguments of the clip classes in Paddle 1, Paddle 2 and Paddle 3."""

MODULES = {
    "ClipGradBy": "paddle.nn",
    "GradientClipBy": "paddle.fluid.clip",
    "GradClipBy": "paddle.fluid.dygraph_grad_clip",
}

KEYWORDS = {
    "need_clip": "need_clip excludes some parameters from the clip, but this file does not contain their names. Import "
    "a copy of the file without need_clip. Then name the parameters in `exclude`.",
    "gradient_clip": "gradient_clip sets the clip of a single parameter, but this file does not name the parameter. "
    "Import a copy of the file without gradient_clip. Then add a group for the parameter to `groups`.",
}
"""Keyword arguments that are rejected, with the reason."""

REJECTED = {
    "clip_grad_norm_": "{name} clips only the parameters that you pass to it. Write a clip configuration with rule = "
    "'global_norm' and family = 'pytorch'.",
    "clip_grad_value_": "{name} clips only the parameters that you pass to it. Write a clip configuration with rule = "
    "'value'.",
    "ErrorClipByValue": "{name} clips the gradients of intermediate results. This is not supported. Continue to "
    "clip with Paddle.",
    "append_gradient_clip_ops": "{name} applies clips that other code sets. Import the file with that code.",
    "clip_by_norm": "{name} can also clip other tensors than gradients. If your code clips gradients with this "
    "function, write a clip configuration.",
}

PER_GROUP = "Paddle clips each group of parameters separately, so a total norm includes only one group."


def zero_of(rule: Rule) -> Zero:
    """With a threshold of 0, only `ClipGradByNorm` makes training fail."""
    return "error" if rule == "norm" else "zeros"


class Paddle(PythonFormat):
    package = "paddle"

    def read(self, document: Document, version: Version | None) -> Imported:
        source: Source = document.data
        notes, clips = [], []
        for path, named in source.named("paddle"):
            name = path.rpartition(".")[2]
            if name in REJECTED:
                raise source.wrong(named, REJECTED[name].format(name=name))
            if name in ARGUMENTS:
                clips.append((name, source.call(named)))
            if name == "set_gradient_clip":
                notes += _check_set_gradient_clip(source, source.call(named), version)
        for name, problem in KEYWORDS.items():
            for keyword in _keywords(source, name):
                raise source.wrong(keyword, problem)
        _check_groups(source)
        for node in source.nodes:
            if isinstance(node, ast.Attribute) and node.attr in ARGUMENTS:
                if source.dotted(node).partition(".")[0] in source.packages:
                    continue
                module = next(module for prefix, module in MODULES.items() if node.attr.startswith(prefix))
                problem = f"cannot infer whether {ast.unparse(node)} is Paddle's class"
                raise source.wrong(node, f"{problem}. Import the name: from {module} import {node.attr}.")
        clip = source.only(clips)
        if clip is None:
            return Imported({"rule": "none"}, ["The file does not clip with Paddle."])
        name, call = clip
        notes += source.conditions(call)
        if has_groups(source):
            notes.append(PER_GROUP)
        return Imported(self.settings_of(name, source.arguments(call, ARGUMENTS[name])), notes)

    def settings_of(self, name: str, arguments: Document) -> dict[str, Any]:
        key, *more = ARGUMENTS[name]
        data = arguments.data
        if data.get(key) is None:
            raise arguments.wrong([key], f"{name} has no default for {key}. Pass a number.")
        if name.endswith("Value"):
            return self.bounds(arguments, key, more[0])
        if data.get("group_name") not in (None, "default_group"):
            raise arguments.wrong(
                ["group_name"],
                "this argument makes static programs clip each group of parameters by its own norm. Write a clip "
                "configuration for each group. If the program is not static, remove the argument.",
            )
        if data.get("auto_skip_clip"):
            raise arguments.wrong(
                ["auto_skip_clip"],
                "with this argument, Paddle raises an error in static programs. In dynamic mode, Paddle skips the clip "
                "if the norm is NaN. This is not supported. Remove the argument, or continue to clip with Paddle.",
            )
        rule: Rule = "global_norm" if name.endswith("GlobalNorm") else "norm"
        return self.settings(rule, self.read_threshold(arguments, [key], zero=zero_of(rule), infinite="error"))

    def bounds(self, arguments: Document, high_key: str, low_key: str) -> dict[str, Any]:
        """The bounds -c and c become the threshold c."""
        high, low = arguments.data[high_key], arguments.data.get(low_key)
        if low is None:
            return self.settings("value", self.read_threshold(arguments, [high_key], zero="error"))
        for key, bound in ((high_key, high), (low_key, low)):
            check_size(arguments, [key], bound)
            if not is_number(bound) or math.isnan(bound):
                raise arguments.wrong([key], f"{bound!r:.60} is not a bound. Pass a number.")
        if low > high:
            raise arguments.wrong([low_key], f"{low_key} ({low:g}) is above {high_key} ({high:g}). Swap them.")
        if low == -high and not math.isinf(high):
            return self.settings("value", float(high))
        return {"rule": "value", "min": float(low), "max": float(high)}

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings, zero=zero_of(settings.rule))
        if settings.rule == "value" and not is_off(settings):
            low, high = settings.as_clip_rule(threshold).bounds  # type: ignore[misc]  # not None for values
            if low == -high and 0 < high < math.inf:
                return f"paddle.nn.ClipGradByValue(max={high!r})"
            return f"paddle.nn.ClipGradByValue(max={_literal(high)}, min={_literal(low)})"
        name = "ClipGradByGlobalNorm" if settings.rule == "global_norm" else "ClipGradByNorm"
        return "None" if threshold is None else f"paddle.nn.{name}(clip_norm={threshold!r})"

    def dump(self, data: Any) -> str:
        return f"import paddle\n\ngrad_clip = {data}\n"


PADDLE = Paddle(trainers()["paddle"])


def _literal(bound: float) -> str:
    return f'float("{bound}")' if math.isinf(bound) else repr(bound)


def _keywords(source: Source, name: str) -> list[ast.keyword]:
    return [node for node in source.nodes if isinstance(node, ast.keyword) and node.arg == name]


def _check_groups(source: Source) -> None:
    for node in source.nodes:
        keys: list[Any] = []
        if isinstance(node, ast.Dict):
            keys = [getattr(key, "value", None) for key in node.keys]
        elif isinstance(node, ast.Call) and source.dotted(node.func) == "dict":
            keys = [keyword.arg for keyword in node.keywords]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys = ["params", getattr(node.slice, "value", None)]
        if "params" in keys and "grad_clip" in keys:
            raise source.wrong(
                node, "this grad_clip is for one group of parameters. Write a clip configuration with `groups`."
            )


def has_groups(source: Source) -> bool:
    """Return whether a call passes several groups, as in `parameters=[{"params": ...}, ...]`."""
    passed = [keyword.value for keyword in _keywords(source, "parameters")]
    lists = [*passed, *(value for name in passed for value in source.binding(name).values or [])]
    dicts = [
        [entry for entry in each.elts if isinstance(entry, ast.Dict)] for each in lists if isinstance(each, ast.List)
    ]
    return any(len(groups) > 1 for groups in dicts)


def _check_set_gradient_clip(source: Source, call: ast.Call, version: Version | None) -> list[str]:
    if version is not None and version >= Version("2"):
        raise source.wrong(
            call,
            "set_gradient_clip has no effect since Paddle 2.0. Remove the call. To clip, pass grad_clip= to the "
            "optimizer.",
        )
    if len(call.args) > 1 or (call.keywords and {keyword.arg for keyword in call.keywords} - {"clip"}):
        raise source.wrong(
            call,
            "this call of set_gradient_clip passes param_list or program. Write a clip configuration. To clip only "
            "some parameters, add `include`.",
        )
    return ["set_gradient_clip applies to static programs of Paddle 1.x only. An optimizer's grad_clip= overrides it."]
