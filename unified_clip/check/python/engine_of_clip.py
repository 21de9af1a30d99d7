"""Find the training engine under which a clip runs, such as DeepSpeed."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...config.formats import FORMATS, engines
from ...config.formats.python_source import Source
from ...errors import ConfigError
from ..clip_use import ARGUMENT_FORMATS, ClipUse

ARGUMENTS = {
    "deepspeed": engines.DEEPSPEED,
    "deepspeed_plugin": engines.DEEPSPEED,
    "deepspeed_plugins": engines.DEEPSPEED,
    "megatron_lm_plugin": engines.MEGATRON,
}
"""Maps an argument of TrainingArguments or Accelerator to the engine that the argument chooses."""

ACCELERATOR = ("accelerate.Accelerator", "accelerate.accelerator.Accelerator")


def of_site(source: Source, line: int, column: int) -> str:
    chosen = [_of_arguments(source, call) for call in calls_at(source, line, column)]
    wrapping = [_wrapping(source, call) for call in source.calls]
    return next(filter(None, chosen + wrapping), "")


def with_loss_scaling(source: Source, use: ClipUse) -> ClipUse:
    """Take other arguments of a trainer into account that change its action, such as fp16=True."""
    trainer = FORMATS.get(ARGUMENT_FORMATS.get(use.package, ""))
    if trainer is None or use.config is None:
        return use
    values: dict[str, Any] = {}
    passed = [each for call in calls_at(source, use.line, use.column) for each in call.keywords]
    for argument in (each for each in passed if each.arg in trainer.fp16):
        with contextlib.suppress(ConfigError):  # a value that is only known at run time
            values[str(argument.arg)] = source.constant(argument.value)
    scaling = trainer.loss_scaling(values)
    origin = {"provenance": {"format": trainer.name, **scaling}}
    return replace(use, config=use.config.model_copy(update=origin)) if scaling else use


def calls_at(source: Source, line: int, column: int) -> Iterator[ast.Call]:
    return (call for call in source.calls if is_at(call, line, column))


def is_at(call: ast.Call, line: int, column: int) -> bool:
    """Return whether a call or one of its keyword arguments starts at a line and column. The first column is 1."""
    places: list[ast.expr | ast.keyword] = [call, call.func, *call.keywords]
    return any((each.lineno, each.col_offset + 1) == (line, column) for each in places)


def _wrapping(source: Source, call: ast.Call) -> str:
    if source.conditions(call):
        return ""
    name = source.dotted(call.func)
    return engines.DEEPSPEED if name == "deepspeed.initialize" else _of_arguments(source, call, ACCELERATOR)


def _of_arguments(source: Source, call: ast.Call, functions: tuple[str, ...] = ()) -> str:
    if functions and source.dotted(call.func) not in functions:
        return ""
    for keyword in call.keywords:
        resolved = source.followed(keyword.value)
        value = ast.unparse(resolved)
        strategy = ast.unparse(resolved.func) if isinstance(resolved, ast.Call) else value
        if keyword.arg == "strategy" and (engine := engines.of_strategy(strategy)):
            return engine
        if keyword.arg in ARGUMENTS and value not in ("None", "''"):
            return ARGUMENTS[keyword.arg]
    return ""
