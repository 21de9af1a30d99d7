"""Express a clip in source as a configuration."""

from __future__ import annotations

import math
from typing import Any

import libcst as cst

from ..config.clip_config import ClipConfig
from ..errors import ConfigError
from . import keras_versions, trainer_arguments
from .catalog import Setting
from .clip_call import Arguments, FoundClip
from .clip_site import Meaning
from .source.module import Module


class UnsureError(Exception):
    """A clip cannot be rewritten for certain. The message says why."""


def meaning(module: Module, found: FoundClip) -> Meaning | None:
    """Return the meaning of a clip; None if no configuration has it, or it cannot be seen.

    Raises UnsureError if unified_clip rejects the threshold.
    """
    if found.setting is not None:
        return _of_setting(module, found, found.setting)
    if isinstance(found.node, cst.Arg) and found.function is None:
        rule, family = keras_versions.rule(module, found)
        return _meaning(module, rule, family, [found.node.value], {}) if rule else None
    known = found.function
    if known is None or not known.rule or found.call is None:
        return None
    arguments = Arguments(found.call, known.parameters)
    if arguments.value("axes") is not None:
        return None
    limits = [arguments.value(name) for name in known.limits]
    more: dict[str, Any] = {}
    if (order := arguments.value("norm_type")) is not None:
        number = math.inf if module.code(order) in ("'inf'", '"inf"') else module.number(order)
        if number is None:
            return None
        more["norm_type"] = number
    return _meaning(module, known.rule, known.family, limits, more)


def _of_setting(module: Module, found: FoundClip, setting: Setting) -> Meaning | None:
    """Return the meaning of a trainer's limit."""
    value = trainer_arguments.limit(found)
    if value is None and setting.default and isinstance(found.node, cst.Name | cst.Attribute):
        value = cst.parse_expression(setting.default)
    if value is None or not setting.rule:
        return None
    return _meaning(module, setting.rule, setting.family, [value], {})


def _meaning(
    module: Module, rule: str, family: str, limits: list[cst.BaseExpression | None], more: dict[str, Any]
) -> Meaning | None:
    if not limits or limits[0] is None:
        return None
    numbers = [None if each is None else module.number(each) for each in limits]
    threshold: dict[str, Any]
    unknown = ""
    if None in [number for number, each in zip(numbers, limits, strict=True) if each is not None]:
        codes = [module.code(each) for each in limits if each is not None]
        threshold, unknown = {"threshold": 1.0}, ", ".join(reversed(codes))
    elif len(limits) == 2 and limits[1] is not None and numbers[0] is not None and numbers[1] != -numbers[0]:
        threshold = {"max": numbers[0], "min": numbers[1]}
    else:
        threshold = {"threshold": numbers[0]}
    shape = {} if rule == "value" else {"family": family}
    try:
        config = ClipConfig(rule=rule, **threshold, **shape, **more)
    except ConfigError as error:
        raise UnsureError(f"unified_clip rejects its threshold: {error}") from None
    return Meaning(config, unknown)


def of_family(found: Meaning | None, family: str) -> Meaning | None:
    """Return the same rule in another family; '' keeps its own."""
    if found is None or not family or found.config.rule == "value":
        return found
    return Meaning(found.config.model_copy(update={"family": family}), found.threshold)
