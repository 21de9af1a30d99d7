from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ...adaptive.rules import AGC, RULES, AdaGC, Rule
from ...config.documents.model_errors import no_such
from ...tensors.types import Gradient

FUNCTIONS = {"adagc": "adaptive.clip_by_tensor_norm", "agc": "adaptive.clip_by_unit_norm"}
"""{adaptive rule: function}. For all other rules, the function is `adaptive.clip_by_global_norm`."""

OF_CALLS = ("rule", "steps", "clip_norm")


def settings_of(rule: object) -> list[str]:
    return [field.name for field in fields(RULES[rule])] if isinstance(rule, str) and rule in RULES else []


def settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key not in OF_CALLS}


def make_rule(arguments: Mapping[str, Any]) -> Rule | AdaGC | AGC:
    return RULES[arguments["rule"]](**settings(arguments))


def find_error(call_name: str, arguments: Mapping[str, Any]) -> str:
    rule, steps, limit = arguments["rule"], arguments.get("steps", 1), arguments.get("clip_norm", 1.0)
    if not isinstance(rule, str) or rule not in RULES:
        return f"rule = {rule!r:.60}: {no_such('rule', str(rule), list(RULES))}"
    if (function := FUNCTIONS.get(rule, "adaptive.clip_by_global_norm")) != call_name:
        return f"the rule {rule} is for {function}. Correct `call` or `rule`"
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        return f"steps is {steps!r:.60}. Give a whole number that is at least 1"
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0:
        return f"clip_norm is {limit!r:.60}. Give a number that is at least 0"
    try:
        make_rule(arguments)
    except (TypeError, ValueError) as error:
        return str(error).removesuffix(".")
    return ""


def find_misfits(style: str, arguments: Mapping[str, Any], gradients: Sequence[Gradient]) -> Iterator[str]:
    count = len(gradients)
    if style == "units":
        halves = [[each and each.shape for each in part] for part in (gradients[: count // 2], gradients[count // 2 :])]
        if halves[0] != halves[1]:
            yield (
                "this function needs one list: all gradients, then their parameters in the same shapes. Add the "
                "parameters, or correct their shapes"
            )
        return
    steps = arguments["steps"]
    if count % steps or not count:
        yield f"{count} gradients cannot be split into {steps} equal steps. Correct `steps` or the number of gradients"
    if any(all(each is None for each in step) for step in split_steps(gradients, steps)):
        yield "all gradients of a step are None. Give each step at least one gradient that is not None"


def split_steps(tensors: Sequence[Any], steps: int) -> list[Sequence[Any]]:
    size = len(tensors) // steps
    return [tensors[start : start + size] for start in range(0, steps * size, max(size, 1))]
