"""Find the `ClipConfig` with the same effect as a clip in source code."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import Any

from ..config.clip_config import ClipConfig
from ..errors import ConfigError
from ..source.module import Module
from ..source.tree import arguments_of, keywords_of
from . import trainer_arguments
from .catalog import KERAS_RULES, clip_function, names
from .found_clip import FoundClip, number_of
from .ported_clip import Meaning

UNBOUNDED = ('float("inf")', '-float("inf")')


class UnsureError(ConfigError):
    """A clip cannot be rewritten. The report prints the message as the reason."""


def rule_of(module: Module, clip: FoundClip) -> tuple[str, str, Sequence[ast.expr | None]]:
    """Return (rule, family, limits). The rule is '' if no clip configuration has the same effect."""
    if clip.setting is not None:
        return trainer_arguments.rule_of_argument(module, clip, clip.setting), clip.setting.family, [clip.limit]
    if clip.argument is not None and clip.is_optimizer_argument:
        return *_keras_rule(module, clip, clip.argument.keyword), [clip.argument.value]
    return clip.function.rule, clip.function.family, limits_of(module, clip)


def limits_of(module: Module, clip: FoundClip) -> list[ast.expr | None]:
    """Return [threshold] or [upper bound, lower bound]. A missing bound of torch.clamp is infinite."""
    limits = [None if limit is None or module.code(limit) == "None" else limit for limit in clip.limits]
    if clip.kind != "any tensor" or clip.call is None or clip.arguments.unknown or len(limits) != len(UNBOUNDED):
        return limits
    return [limit or module.expression(code) for limit, code in zip(limits, UNBOUNDED, strict=True)]


def is_standalone_clipnorm(module: Module, clip: FoundClip) -> bool:
    """Return whether the clip may be clipnorm= of Keras up to 2.3.1, which clips by the global norm."""
    is_standalone = clip.name.startswith("keras.") and clip.name.endswith("(clipnorm=)")
    return is_standalone and not any(name.startswith(names("keras_3")) for name in module.used_names)


def is_off_in_keras(module: Module, clip: FoundClip) -> bool:
    """Return whether the threshold is 0 or less. Most versions of Keras then do not clip."""
    if clip.argument is None or not clip.is_optimizer_argument or clip.setting is not None:
        return False
    number = number_of(module, clip.argument.value)
    return number is not None and number <= 0


def has_several_limits(module: Module, clip: FoundClip) -> bool:
    if clip.call is None or clip.setting is not None or not clip.is_optimizer_argument:
        return False
    passed = keywords_of(clip.call)
    limits = [name for name in KERAS_RULES if name in passed and module.code(passed[name].value) != "None"]
    return len(limits) > 1


def _keras_rule(module: Module, clip: FoundClip, keyword: str) -> tuple[str, str]:
    if is_off_in_keras(module, clip):
        return "", ""
    if not is_standalone_clipnorm(module, clip):
        return KERAS_RULES.get(keyword, ""), "tensorflow"
    is_old = any(name.startswith(names("keras_2")) for name in module.used_names)
    return ("global_norm", "paddle") if is_old else ("", "")


def meaning(module: Module, clip: FoundClip) -> Meaning | None:
    """Return the effect of a clip, or None if no clip configuration has the same effect."""
    rule, family, limits = rule_of(module, clip)
    if not rule or not limits or limits[0] is None or clip.passed_as("axes") is not None:
        return None
    if uses_other_norm(module, clip):
        return None
    settings: dict[str, Any] = {} if rule == "value" else {"family": family}
    if (order := clip.passed_as("norm_type")) is not None:
        settings["norm_type"] = math.inf if module.code(order) in ("'inf'", '"inf"') else number_of(module, order)
        if settings["norm_type"] is None:
            return None
    if (raises := clip.passed_as("error_if_nonfinite")) is not None and module.code(raises) != "False":
        if module.code(raises) != "True":
            return None
        settings["nonfinite"] = "raise"
    passed = [limit for limit in limits if limit is not None]
    numbers = [number_of(module, limit) for limit in passed]
    unknown = ""
    if None in numbers and len(numbers) == 2:
        settings["max"], settings["min"] = 1.0, -1.0
        unknown = ", ".join(module.code(limit) for limit in reversed(passed))
    elif None in numbers:
        settings["threshold"], unknown = 1.0, module.code(passed[0])
    elif len(numbers) == 2 and (numbers[1] != -numbers[0] or numbers[0] < 0):  # type: ignore[operator]
        settings["max"], settings["min"] = numbers
    else:
        settings["threshold"] = numbers[0]
    try:
        return Meaning(ClipConfig(rule=rule, **settings), unknown)
    except ConfigError as error:
        key, _, problem = str(error).removeprefix("ClipConfig, ").partition(": ")
        nodes = [order] if key == "norm_type" and order is not None else passed
        code = " and ".join(_argument(module, node) for node in nodes)
        noun = "the arguments" if len(nodes) > 1 else "the argument"
        raise UnsureError(f"unified_clip rejects {noun} {code} of this clip: {problem}") from None


def uses_other_norm(module: Module, clip: FoundClip) -> bool:
    """Return whether a call passes a norm, as use_norm=, that may not be the norm of the gradients that it clips."""
    norm = clip.arguments.value("use_norm")
    if norm is None or module.code(norm) == "None":
        return False
    clipped = clip.arguments.value(clip.function.clipped)
    values = [None if bound.path else bound.value for bound in module.binding(norm).bounds] or [norm]
    return not all(_is_norm_of(module, value, clipped, clip) for value in values)


def _is_norm_of(module: Module, node: ast.expr | None, gradients: ast.expr | None, clip: FoundClip) -> bool:
    if not isinstance(node, ast.Call) or gradients is None or not arguments_of(node):
        return False
    function = clip_function(module.full_name(node.func))
    if function is None or function.replacement != "global_norm":
        return False
    between = range(module.position(node)[0] + 1, module.position(module.statement(clip.node))[0])
    assigned = [bound.node for bound in module.binding(gradients).bounds if bound.node is not None]
    is_kept = not any(module.position(node)[0] in between for node in assigned)
    return is_kept and module.code(arguments_of(node)[0].value) == module.code(gradients)


def _argument(module: Module, node: ast.AST) -> str:
    passed = module.argument(node)
    keyword = passed[1].keyword if passed is not None else ""
    return f"{keyword}={module.code(node)}" if keyword else module.code(node)
