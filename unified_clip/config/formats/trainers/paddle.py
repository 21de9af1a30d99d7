"""Paddle's clips as objects and arguments, and Python source such as `paddle.nn.ClipGradByNorm(clip_norm=1.0)`."""

from __future__ import annotations

import math
from typing import Any

from packaging.version import Version

from ...._kit.static_values import is_number
from ....facts.trainer_rows import Zero, trainers
from ...documents import Document
from ...schema import Rule, Settings, is_off
from ..base import check_size
from ..python_source import PythonFormat

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


def zero_of(rule: Rule) -> Zero:
    """With a threshold of 0, only `ClipGradByNorm` makes training fail."""
    return "error" if rule == "norm" else "zeros"


class Paddle(PythonFormat):
    package = "paddle"

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

    def dump(self, data: Any, kind: str | None = None) -> str:
        return f"import paddle\n\ngrad_clip = {data}\n"


PADDLE = Paddle(trainers()["paddle"])


def _literal(bound: float) -> str:
    return f'float("{bound}")' if math.isinf(bound) else repr(bound)
