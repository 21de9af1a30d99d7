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


def kind_of(function: ClipFunction) -> str:
    if function.name.startswith("optax."):
        return "class"
    return "functional" if function.name.rpartition(".")[2].startswith("clip_by_") else function.kind
