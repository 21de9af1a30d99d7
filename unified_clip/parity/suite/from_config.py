"""Convert a clip configuration to equivalent calls of public functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...config import schedules
from ...config.clip_config import ClipConfig
from ...config.schema import DEFAULT_FAMILY, Settings
from ...errors import ConfigError
from .schema import SuiteError

NAMES = {
    ("global_norm", "pytorch"): ("clip_grad_norm_", "max_norm"),
    ("global_norm", "tensorflow"): ("clip_by_global_norm", "clip_norm"),
    ("global_norm", "paddle"): ("GradientClipByGlobalNorm", "clip_norm"),
    ("norm", "tensorflow"): ("clip_by_norm", "clip_norm"),
    ("norm", "paddle"): ("GradientClipByNorm", "clip_norm"),
}
"""{(rule, family) of a configuration: (public function, name of its argument for the threshold)}"""


def calls_of_config(path: Path, place: str) -> Iterator[dict[str, Any]]:
    try:
        config = ClipConfig.load(path)
    except ConfigError as error:
        raise SuiteError(f"{place}: {error}", error.code) from None
    if why := _why_not_one_call(config):
        raise SuiteError(f"{place}: {path}: one function call cannot apply this configuration: {why}")
    if config.rule == "none":
        yield {"call": "get_total_norm"}
    elif config.min is not None:
        yield {"call": "clip_by_value", "clip_value_min": config.min, "clip_value_max": config.max}
    else:
        family = config.family or DEFAULT_FAMILY
        is_value = config.rule == "value"
        name, argument = ("clip_grad_value_", "clip_value") if is_value else NAMES[config.rule, family]
        order = {"norm_type": config.norm_type} if config.norm_type not in (None, 2.0) else {}
        for threshold in _thresholds(config):
            yield {"call": name, argument: threshold, **order}


def _thresholds(config: Settings) -> list[float]:
    threshold = config.threshold
    if isinstance(threshold, schedules.Ramp):
        return [threshold.start, threshold.end]
    if isinstance(threshold, schedules.Piecewise):
        return list(dict.fromkeys(threshold.values))
    return [schedules.threshold_at(threshold, 0)] if threshold is not None else []


def _why_not_one_call(config: Settings) -> str:
    family = config.family or DEFAULT_FAMILY
    if config.uses_names:
        problem = "suites do not support include, exclude and groups"
        return f"{problem}. {_copy('remove these keys')}. To choose tensors, use the key `only` in [[gradients]]"
    if config.adaptive is not None:
        problem = "the threshold is adaptive"
        remedy = (
            "Remove this file from `configs`, and add a call with the key `rule` to `calls`. For every rule except "
            "agc, the call also needs the key `steps`"
        )
        return f"{problem}. {remedy}"
    if config.nonfinite != "family":
        return f"suites do not support nonfinite = {config.nonfinite!r}. {_copy('remove nonfinite')}"
    if config.has_own_eps:
        return f"suites do not support eps. {_copy('remove eps')}"
    if config.rule in ("norm", "global_norm") and (config.rule, family) not in NAMES:
        problem = f'unified_clip has no function with the rule "norm" in the family {family}'
        return f"{problem}. {_copy('set the family to tensorflow or paddle')}"
    if config.norm_type not in (None, 2.0) and NAMES.get((config.rule, family), ("",))[0] != "clip_grad_norm_":
        problem = f"unified_clip has no function with a norm_type other than 2 in the family {family}"
        return f"{problem}. {_copy('set norm_type to 2')}"
    return ""


def _copy(change: str) -> str:
    return f"Copy the file, {change} in the copy, and list the copy in `configs`"
