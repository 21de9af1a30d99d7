"""Find the effect of a clip call from the code around the call."""

from __future__ import annotations

import ast
import contextlib

from ...._kit.parse import UnreadableSourceError, parse_expression
from ...._kit.static_values import is_number
from ....config.clip_config import ClipConfig
from ....config.documents import format_value
from ....config.formats.python_source import Source, last_name, shortened
from ....errors import ConfigError
from ....port.catalog import ClipFunction
from ....port.ported_clip import Meaning
from ....port.source import unused_result
from .. import clipped_parameters
from ..steps import scaled_gradients
from ..steps.value_flow import Flow
from . import never_runs, order

RUN_TIME = "The threshold, {code}, is only known at run time."
NORM_TYPE = " The same holds for the norm type, {code}. The check compares neither."
IGNORED = "Paddle's LBFGS in line {line} ignores grad_clip, so this clip clips nothing. Use another optimizer."
CONDITIONAL = (
    "The optimizer gets this clip only if {test}, which is only known at run time. Pass the clip in both cases, or add "
    "the clip to check.ignore with a reason."
)
LBFGS = ("paddle.optimizer.LBFGS", "paddle.incubate.optimizer.LBFGS")
NO_NUMBER = "The threshold is {value}, which is not a number. The call fails, or converts the value. Write a number."


def of_call(source: Source, call: ast.Call, config: ClipConfig, kind: str, *, has_names: bool = False) -> ClipConfig:
    """Return `config`. If a clip call selects only some parameters, set `include` to these parameters.

    Raise ConfigError if the call clips nothing, or if its effect is unknown.

    kind: "in place", "functional" (the clip returns new gradients), "class" (the call creates a clip), or
        "attached" (for `attach_to`).
    has_names: Whether the clip call gets the names of the model's parameters.
    """
    never_runs.check_condition(source, call)
    if kind == "attached":
        order.check_attached(source, call)
    if kind == "in place":
        clipped_parameters.check_parameters(source, call)
    if kind in ("in place", "functional"):
        order.check(source, call)
        scaled_gradients.check(source, call)
    if kind in ("functional", "class"):
        unused_result.check(source, call)
        _check_grad_clip(source, call)
    if kind in ("attached", "class"):
        return config
    if has_names and config.uses_names:
        clipped_parameters.narrowed(source, call, ClipConfig(rule="global_norm", threshold=1.0))
        return config
    return clipped_parameters.narrowed(source, call, config)


def of_unknown_threshold(source: Source, call: ast.Call | None, meaning: Meaning, kind: str) -> tuple[str, ClipConfig]:
    why = RUN_TIME.format(code=meaning.threshold)
    with contextlib.suppress(ConfigError, UnreadableSourceError):
        value = source.constant(parse_expression(meaning.threshold))
        why = why if is_number(value) else NO_NUMBER.format(value=format_value(value))
    if call is None:
        return why, meaning.config
    try:
        return why, of_call(source, call, meaning.config, kind)
    except ConfigError as error:
        return f"{error} {why}", meaning.config


def of_unknown_norm_type(source: Source, call: ast.Call | None, function: ClipFunction | None) -> str:
    """Return a reason if both the threshold and the norm type are only known at run time. Otherwise, return ''."""
    if call is None or function is None or (function.rule, function.family) != ("global_norm", "pytorch"):
        return ""
    passed = dict(zip(function.parameters, call.args, strict=False)) | {each.arg: each.value for each in call.keywords}
    codes = [passed[name] for name in (*function.limits, "norm_type") if name in passed]
    for code in codes:
        with contextlib.suppress(ConfigError):
            source.constant(code)
            return ""
    if len(codes) != 2:
        return ""
    threshold, norm_type = map(ast.unparse, codes)
    return RUN_TIME.format(code=threshold) + NORM_TYPE.format(code=norm_type)


def kind_of(function: ClipFunction) -> str:
    if function.name.startswith("optax."):
        return "class"
    return "functional" if function.name.rpartition(".")[2].startswith("clip_by_") else function.kind


def _check_grad_clip(source: Source, call: ast.Call) -> None:
    """Raise ConfigError if Paddle's optimizer ignores a clip, or gets the clip only under a condition.

    A condition about the threshold is allowed, as in `ClipGradByNorm(norm) if norm > 0 else None`.
    """
    if not source.dotted(call.func).startswith("paddle.") and last_name(call.func) != "as_paddle":
        return
    flow = Flow(source)
    for optimizer in source.calls:
        if source.dotted(optimizer.func) in LBFGS and call in [*flow.reached(optimizer)]:
            raise ConfigError(IGNORED.format(line=optimizer.lineno))
    threshold = ast.unparse([*call.args, *(each.value for each in call.keywords), call.func][0])
    for outer in flow.sites(call, lambda outer: isinstance(outer, ast.Call)).values():
        for choice in (each for each in outer if isinstance(each, ast.IfExp)):
            branches = map(ast.unparse, (choice.body, choice.orelse))
            if "None" in branches and threshold not in ast.unparse(choice.test):
                raise ConfigError(CONDITIONAL.format(test=shortened(choice.test)))
