"""Read the arguments of clip calls, and find calls that clip nothing, or not all gradients by one norm."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...config.clip_config import ClipConfig
from ...errors import ConfigError
from ...facts.clips import EngineMethod, Kind, engine_methods
from ...port.catalog import ClipFunction
from ...port.found_clip import Arguments, FoundClip
from ...port.ported_clip import Meaning
from ...port.to_config import meaning
from ...source import unused_result
from ...source.constants import constant, followed
from ...source.module import Module
from ...source.tree import is_name, last_name, shortened
from ..clip_use import THRESHOLD

TENSORS = ("parameters", "tensors", "t_list", "module")

PARAMETERS = re.compile(r"parameters\(|param_groups|trainable_(variables|weights)")

HAS_GRADIENT = re.compile(r"requires_grad|grad is not None|trainable")

ADVICE = (
    "To clip all parameters, pass all parameters to the call. Otherwise, add the clip to check.ignore with a reason."
)
PART = f"The call may clip only a part of the parameters: {{code}}. {ADVICE}"
LOOP = (
    "The call is in a loop over {over}, so each iteration computes a separate norm. For one norm over all parameters, "
    "make one call outside of the loop. Otherwise, add the clip to check.ignore with a reason."
)
GRADIENTS = (
    "The call passes gradients, {gradients}, to a function that expects parameters. Gradients have no .grad, so the "
    "call clips nothing. Pass the parameters."
)

ONE_PER_GROUP = (
    "Paddle clips each parameter group of an optimizer by a separate norm. To clip by one norm, pass all parameters in "
    "one list. To exclude parameters from AdamW's weight decay, pass apply_decay_param_fun=. To accept "
    "separate norms, add the clip to check.ignore with a reason."
)
OF_NAMED_GROUPS = (
    "With group_name, static programs clip each group of parameters by its own norm. Write a clip configuration for "
    "each group. If the program is not static, remove the argument."
)
SKIPS = (
    "With auto_skip_clip, Paddle raises an error in static programs. In dynamic mode, Paddle skips the clip if the "
    "norm is NaN. This is not supported. Remove the argument, or continue to clip with Paddle."
)
FAILS = "With this threshold, training fails, or gradients become NaN. To clip nothing, pass a large number."


def calls_at(module: Module, line: int, column: int) -> Iterator[ast.Call]:
    """Yield the calls that start at a place, or whose function or keyword argument starts there."""
    for call in module.calls:
        places: list[ast.expr | ast.keyword] = [call, call.func, *call.keywords]
        if any(each.lineno == line and module.position(each) == (line, column) for each in places):
            yield call


def engine_method(module: Module, call: ast.Call | None) -> EngineMethod | None:
    """Return the method of a training engine that a call such as `accelerator.clip_grad_norm_(...)` calls."""
    if call is None or not isinstance(call.func, ast.Attribute):
        return None
    methods = [each for each in engine_methods() if each.name == call.func.attr]
    return next((each for each in methods if _has_method(module, call.func.value, each)), None)


def _has_method(module: Module, owner: ast.expr, method: EngineMethod) -> bool:
    if method.inside:
        function = module.enclosing_definition(owner)
        return is_name(owner, "self") and function is not None and function.name == method.inside
    if method.variable and last_name(owner) == method.variable:
        return True
    binding = module.binding(owner)
    made = [each.func for each in binding.values or [] if isinstance(each, ast.Call)]
    parameters = [each.node.annotation for each in binding.assignments if isinstance(each.node, ast.arg)]
    return any(module.dotted(each) in method.classes for each in (*made, *parameters) if each is not None)


def meaning_of_method(module: Module, call: ast.Call, method: EngineMethod) -> Meaning | None:
    """Return the effect of a call of a method, or None if it passes no threshold, more than one, or unknown arguments.

    Raise ConfigError if the argument that selects the rule is only known at run time.
    """
    arguments = Arguments(call, method.parameters)
    limits = [name for name in method.limits if name in arguments.passed and not is_name(arguments.value(name), "None")]
    if len(limits) != 1 or "*" in arguments.unknown:
        return None
    mode = arguments.value(method.mode)
    rule = "value" if mode is not None and constant(module, mode) == "value" else method.limits[limits[0]]
    function = ClipFunction(
        "torch", method.name, "in place", parameters=method.parameters, rule=rule, family="pytorch", limits=limits
    )
    effect = meaning(module, FoundClip(call, method.name, function, call))
    if effect is None or not method.raises or "error_if_nonfinite" in arguments.passed or rule == "value":
        return effect
    return replace(effect, config=effect.config.model_copy(update={"nonfinite": "raise"}))


def check(module: Module, call: ast.Call, rule: str, kind: str) -> None:
    """Raise ConfigError if a call clips nothing, clips only some parameters, or computes a norm for each parameter.

    kind: "in place", "functional" (the clip returns new gradients) or "class" (the call creates a clip).
    """
    tensors = _tensors(module, call)
    if kind == "in place":
        _check_no_gradients(followed(module, tensors))
    if kind in ("functional", "class"):
        unused_result.check(module, call)
    if kind != "class":
        if rule == "global_norm":
            _check_loops(module, call, tensors)
        _check_part(module, tensors)


def check_class_of_paddle(module: Module, call: ast.Call, function: ClipFunction, config: ClipConfig) -> None:
    """Raise ConfigError if arguments of a clip class of Paddle change the clip, or make training fail."""
    arguments = Arguments(call, function.parameters, function.renamed).passed
    values = {name: constant(module, argument.value) for name, argument in arguments.items()}
    if values.get("group_name", "default_group") not in (None, "default_group"):
        raise ConfigError(OF_NAMED_GROUPS)
    if values.get("auto_skip_clip"):
        raise ConfigError(SKIPS)
    is_zero_wrong = config.rule == "norm" or (config.rule == "value" and "min" not in values)
    if config.threshold == math.inf or (config.threshold == 0 and is_zero_wrong):
        raise ConfigError(FAILS)
    if config.rule == "global_norm" and _has_groups(module):
        raise ConfigError(ONE_PER_GROUP)


def _has_groups(module: Module) -> bool:
    """Return whether a call passes several groups, as in `parameters=[{"params": ...}, ...]`."""
    passed = [
        followed(module, each.value) for call in module.calls for each in call.keywords if each.arg == "parameters"
    ]
    lists = [each.elts for each in passed if isinstance(each, ast.List)]
    return any(sum(isinstance(entry, ast.Dict) for entry in entries) > 1 for entries in lists)


def kind_of(function: ClipFunction) -> Kind:
    if function.name.startswith("optax."):
        return "class"
    return "functional" if function.name.rpartition(".")[2].startswith("clip_by_") else function.kind


def _check_no_gradients(tensors: ast.expr) -> None:
    match tensors:
        case ast.ListComp(elt=ast.Attribute(attr="grad")) | ast.GeneratorExp(elt=ast.Attribute(attr="grad")):
            raise ConfigError(GRADIENTS.format(gradients=shortened(tensors)))


def _tensors(module: Module, call: ast.Call) -> ast.expr:
    named = (keyword.value for keyword in call.keywords if keyword.arg in TENSORS)
    return next(named, call.args[0] if call.args else call)


def with_threshold_slot(call: ast.Call, parameters: Sequence[str], limits: Sequence[str]) -> str:
    """Return the code of a clip call with THRESHOLD in place of its threshold.

    limits: The parameters that set the threshold. If there are several, return the code of the call unchanged.
    """
    slot = ast.Name(THRESHOLD)
    names = [*parameters, *[""] * len(call.args)]
    is_limit = [len(limits) == 1 and name in limits for name in names[: len(call.args)]]
    arguments = [slot if replaced else each for each, replaced in zip(call.args, is_limit, strict=True)]
    keywords = [
        ast.keyword(each.arg, slot) if len(limits) == 1 and each.arg in limits else each for each in call.keywords
    ]
    return ast.unparse(ast.Call(call.func, arguments, keywords))


def _check_loops(module: Module, call: ast.Call, tensors: ast.expr) -> None:
    names = {node.id for node in ast.walk(tensors) if isinstance(node, ast.Name)}
    for node in module.ancestors(call):
        if isinstance(node, ast.FunctionDef):
            return
        for loop in getattr(node, "generators", [node] if isinstance(node, ast.For) else []):
            targets = {inner.id for inner in ast.walk(loop.target) if isinstance(inner, ast.Name)}
            over = ast.unparse(loop.iter)
            is_one = ast.unparse(tensors) == ast.unparse(loop.target)
            if isinstance(tensors, ast.List | ast.Tuple):
                is_one = len(tensors.elts) == 1
            if targets & names and (is_one or PARAMETERS.search(over)):
                raise ConfigError(LOOP.format(over=over))


def _check_part(module: Module, tensors: ast.expr) -> None:
    tensors = followed(module, tensors)
    while (inner := _without_filter(tensors)) is not None:
        tensors = followed(module, inner)
    match tensors:
        case ast.Call(func=function):
            is_part = last_name(function) == "filter"
        case ast.Subscript(slice=ast.Slice(lower=None, upper=None)):
            is_part = False
        case ast.Subscript(slice=index):
            is_part = isinstance(index, ast.Slice) or "param_groups" in ast.unparse(tensors)
        case _:
            is_part = isinstance(tensors, ast.ListComp | ast.GeneratorExp)
    if is_part:
        raise ConfigError(PART.format(code=shortened(tensors)))


def _without_filter(tensors: ast.expr) -> ast.expr | None:
    """Return the parameters inside of a list, or inside of a filter that leaves out only parameters without gradient.

    Return None for other code.
    """
    match tensors:
        case ast.Call(func=ast.Name(id="list" | "tuple" | "iter"), args=[inner]):
            return inner
        case ast.Call(func=ast.Name(id="filter"), args=[condition, inner]) if _has_gradient(condition):
            return inner
        case ast.ListComp(generators=[loop]) | ast.GeneratorExp(generators=[loop]) if all(map(_has_gradient, loop.ifs)):
            return loop.iter
    return None


def _has_gradient(condition: ast.expr) -> bool:
    return HAS_GRADIENT.search(ast.unparse(condition)) is not None
