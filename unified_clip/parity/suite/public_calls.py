"""The public functions and classes that a case can call: their arguments, calling style and clip rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class PublicCall:
    style: Literal["in place", "list", "each", "measure", "class", "class in place", "settings", "hook", "units"]
    """How gradients are passed and returned. `invoke.call_public_name` contains a branch for each style."""

    family: Literal["torch", "tensorflow", "paddle"]
    """The framework whose clip rule the function follows."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    eps: float = 0.0
    by_total_norm: bool = True
    """Whether the call clips by the total norm. If False, each tensor or unit is clipped by its own norm."""

    by_value: bool = False

    infinite_norm_gives_nan: bool = False
    """Whether an infinite total norm makes all clipped gradients NaN, as in TensorFlow."""

    returns_norm: bool = False

    @property
    def in_place(self) -> bool:
        return self.style in ("in place", "class in place")

    def threshold(self, arguments: Arguments) -> float:
        return float(arguments[self.required[0]])

    def passed_norm(self, arguments: Arguments) -> float | None:
        norm = arguments.get("total_norm", arguments.get("use_norm"))
        return None if norm is None else float(norm)

    def rule_settings(self, arguments: Arguments) -> dict[str, Any]:
        """Return the settings of the adaptive rule in the arguments of a call with the style "units"."""
        return {key: value for key, value in arguments.items() if key not in (*self.required, *self.optional)}

    def bounds(self, arguments: Arguments) -> tuple[float, float]:
        first: float = arguments[self.required[0]]
        if len(self.required) == 2:
            return first, arguments[self.required[1]]
        return arguments.get("min", -first), first

    def described(self, arguments: Arguments) -> dict[str, Any]:
        """Return a call for the folder `old_releases`, which does not import this module."""
        keys = ("style", "family", "required", "by_value", "by_total_norm")
        described = {key: getattr(self, key) for key in keys}
        if self.by_value:
            described["bounds"] = self.bounds(arguments)
        elif self.required and self.style != "units":
            described |= {"threshold": self.threshold(arguments), "norm": self.passed_norm(arguments)}
        return described


PYTORCH_EPS = 1e-6

CALLS = {
    "clip_grad_norm_": PublicCall(
        "in place", "torch", ("max_norm",), ("norm_type", "error_if_nonfinite"), eps=PYTORCH_EPS, returns_norm=True
    ),
    "clip_grads_with_norm_": PublicCall("in place", "torch", ("max_norm", "total_norm"), eps=PYTORCH_EPS),
    "clip_grad_value_": PublicCall("in place", "torch", ("clip_value",), by_value=True),
    "get_total_norm": PublicCall("measure", "torch", (), ("norm_type", "error_if_nonfinite"), returns_norm=True),
    "clip_by_global_norm": PublicCall(
        "list", "tensorflow", ("clip_norm",), ("use_norm",), infinite_norm_gives_nan=True, returns_norm=True
    ),
    "clip_by_norm": PublicCall("each", "tensorflow", ("clip_norm",), ("axes",), by_total_norm=False),
    "clip_by_value": PublicCall("each", "tensorflow", ("clip_value_min", "clip_value_max"), by_value=True),
    "global_norm": PublicCall("measure", "tensorflow", (), returns_norm=True),
    "GradientClipByGlobalNorm": PublicCall("class", "paddle", ("clip_norm",)),
    "GradientClipByGlobalNorm.clip_": PublicCall("class in place", "paddle", ("clip_norm",), returns_norm=True),
    "GradientClipByNorm": PublicCall("class", "paddle", ("clip_norm",), by_total_norm=False),
    "GradientClipByNorm.clip_": PublicCall("class in place", "paddle", ("clip_norm",), by_total_norm=False),
    "GradientClipByValue.clip_": PublicCall("class in place", "paddle", ("max",), ("min",), by_value=True),
    "GradientClipByValue": PublicCall("class", "paddle", ("max",), ("min",), by_value=True),
    "append_gradient_clip_ops": PublicCall("settings", "paddle", ("clip_norm",)),
    "ErrorClipByValue": PublicCall("hook", "paddle", ("max",), ("min",), by_value=True),
    "adaptive.clip_by_unit_norm": PublicCall("units", "tensorflow", ("rule",), ("clip_norm",), by_total_norm=False),
}
"""The public functions and classes. A suite uses these names in the key `call`.

- For `append_gradient_clip_ops`, a case first calls `set_gradient_clip` with a GradientClipByGlobalNorm.
- With the style "units", one list contains all gradients, then their parameters.
"""
