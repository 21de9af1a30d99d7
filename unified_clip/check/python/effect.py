"""Find the effect of a clip call from the code around the call."""

from __future__ import annotations

import ast
import contextlib

from ..._kit.parse import UnreadableSourceError, parse_expression
from ..._kit.static_values import is_number
from ...config.clip_config import ClipConfig
from ...config.documents import format_value
from ...errors import ConfigError
from ...port.catalog import ClipFunction
from ...port.ported_clip import Meaning
from ...source import unused_result
from ...source.constants import constant
from ...source.module import Module
from . import clipped_parameters

RUN_TIME = "The threshold, {code}, is only known at run time."
NORM_TYPE = " The same holds for the norm type, {code}. The check compares neither."
NO_NUMBER = "The threshold is {value}, which is not a number. The call fails, or converts the value. Write a number."


def of_call(module: Module, call: ast.Call, config: ClipConfig, kind: str) -> ClipConfig:
    """Return `config`. If a clip call selects only some parameters, set `include` to these parameters.

    Raise ConfigError if the call clips nothing, or if its effect is unknown.

    kind: "in place", "functional" (the clip returns new gradients) or "class" (the call creates a clip).
    """
    if kind == "in place":
        clipped_parameters.check_parameters(module, call)
    if kind in ("functional", "class"):
        unused_result.check(module, call)
    return config if kind == "class" else clipped_parameters.narrowed(module, call, config)


def of_unknown_threshold(module: Module, call: ast.Call | None, meaning: Meaning, kind: str) -> tuple[str, ClipConfig]:
    why = RUN_TIME.format(code=meaning.threshold)
    with contextlib.suppress(ConfigError, UnreadableSourceError):
        value = constant(module, parse_expression(meaning.threshold))
        why = why if is_number(value) else NO_NUMBER.format(value=format_value(value))
    if call is None:
        return why, meaning.config
    try:
        return why, of_call(module, call, meaning.config, kind)
    except ConfigError as error:
        return f"{error} {why}", meaning.config


def of_unknown_norm_type(module: Module, call: ast.Call | None, function: ClipFunction | None) -> str:
    """Return a reason if both the threshold and the norm type are only known at run time. Otherwise, return ''."""
    if call is None or function is None or (function.rule, function.family) != ("global_norm", "pytorch"):
        return ""
    passed = dict(zip(function.parameters, call.args, strict=False)) | {each.arg: each.value for each in call.keywords}
    codes = [passed[name] for name in (*function.limits, "norm_type") if name in passed]
    for code in codes:
        with contextlib.suppress(ConfigError):
            constant(module, code)
            return ""
    if len(codes) != 2:
        return ""
    threshold, norm_type = map(ast.unparse, codes)
    return RUN_TIME.format(code=threshold) + NORM_TYPE.format(code=norm_type)


def kind_of(function: ClipFunction) -> str:
    if function.name.startswith("optax."):
        return "class"
    return "functional" if function.name.rpartition(".")[2].startswith("clip_by_") else function.kind
