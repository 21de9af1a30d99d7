"""Python source that clips with Paddle, such as `paddle.nn.ClipGradByNorm(clip_norm=1.0)`."""

from __future__ import annotations

import math
from typing import Any

from packaging.version import Version

from ....facts.trainer_rows import Zero
from ...schema import Rule, Settings, is_off
from ..python_source import PythonFormat


def zero_of(rule: Rule) -> Zero:
    """With a threshold of 0, only `ClipGradByNorm` makes training fail."""
    return "error" if rule == "norm" else "zeros"


class Paddle(PythonFormat):
    package = "paddle"

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


def _literal(bound: float) -> str:
    return f'float("{bound}")' if math.isinf(bound) else repr(bound)
