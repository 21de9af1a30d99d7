"""Find the parameters whose gradients a clip call changes, and the loops around the call."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ...config.clip_config import ClipConfig
from ...config.formats.python_source import Source, shortened
from ...errors import ConfigError
from ..clip_use import ACCELERATE_CLIP, THRESHOLD
from .optimizers import is_made

TENSORS = ("parameters", "tensors", "t_list", "module")

PARAMETERS = re.compile(r"parameters\(|param_groups|trainable_(variables|weights)")

GROUP = re.compile(r"param_groups\[.*\]\[.params.\]")
MODEL = re.compile(r"(\w*_)?(model|net|network|module)|_orig_mod|_forward_module", re.IGNORECASE)

HAS_GRADIENT = re.compile(r"requires_grad|grad is not None|trainable")

SELECTS = re.compile(r"(?i)(?<!weight_)decay|bias|(^|_)no_|without|excluded|_only|subset")

MAX_ALIASES = 3

ADVICE = (
    "To clip all parameters, pass all parameters to the call. Otherwise, add the clip to check.ignore with a reason."
)
GRADIENTS = (
    "The call passes gradients, {gradients}, to a function that expects parameters. Gradients have no .grad, so the "
    "call clips nothing. Pass the parameters."
)
NAMED = (
    "The call clips only {pattern}. Parameter names in this part of the model lack a prefix, so the patterns of the "
    "configuration might not match. Clip with clip.clipper(model), which reads the names from the whole model."
)


def narrowed(source: Source, call: ast.Call, config: ClipConfig) -> ClipConfig:
    """Return `config` with an `include` pattern for the parameters that a call clips.

    For `model.encoder.parameters()`, the pattern is `encoder.*`. If the call clips all parameters, return `config`.

    Raise ConfigError if the clipped parameters are unknown, or if a loop computes a separate norm for each parameter.
    """
    tensors = _tensors(source, call)
    if config.rule == "global_norm":
        _check_loops(source, call, tensors)
    pattern = "" if _has_optimizer(source, tensors) and not config.uses_names else _pattern(source, tensors)
    if pattern and config.uses_names:
        raise ConfigError(NAMED.format(pattern=pattern))
    return ClipConfig(**{**config.data(), "include": [pattern]}) if pattern else config


def check_parameters(source: Source, call: ast.Call) -> None:
    """Raise ConfigError if a call passes gradients instead of parameters, as in `[p.grad for p in parameters]`."""
    match tensors := source.followed(_tensors(source, call)):
        case ast.ListComp(elt=ast.Attribute(attr="grad")) | ast.GeneratorExp(elt=ast.Attribute(attr="grad")):
            raise ConfigError(GRADIENTS.format(gradients=shortened(tensors)))


def _tensors(source: Source, call: ast.Call) -> ast.expr:
    named = (keyword.value for keyword in call.keywords if keyword.arg in TENSORS)
    arguments = call.args[2:] if source.dotted(call.func) == ACCELERATE_CLIP else call.args
    return next(named, arguments[0] if arguments else call)


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


def _has_optimizer(source: Source, tensors: ast.expr) -> bool:
    """Return whether code passes `tensors` to an optimizer, as in `Adam(model.actor.parameters())`."""
    code = ast.unparse(tensors)
    calls = [call for call in source.calls if is_made(source, call)]
    passed = [each for call in calls for each in (*call.args[:1], *(keyword.value for keyword in call.keywords))]
    return code in map(ast.unparse, passed)


def _check_loops(source: Source, call: ast.Call, tensors: ast.expr) -> None:
    names = {node.id for node in ast.walk(tensors) if isinstance(node, ast.Name)}
    node: ast.AST = call
    while not isinstance(node, ast.Module | ast.FunctionDef):
        node = source.parents[node]
        loops = getattr(node, "generators", [node] if isinstance(node, ast.For) else [])
        for loop in loops:
            targets = {inner.id for inner in ast.walk(loop.target) if isinstance(inner, ast.Name)}
            over = ast.unparse(loop.iter)
            is_one = isinstance(tensors, ast.List | ast.Tuple) and len(tensors.elts) == 1
            if targets & names and (is_one or PARAMETERS.search(over)):
                raise ConfigError(
                    f"The call is in a loop over {over}, so each iteration computes a separate norm. For one norm over "
                    f"all parameters, make one call outside of the loop. Otherwise, add the clip to check.ignore with "
                    f"a reason."
                )


def _pattern(source: Source, tensors: ast.expr, depth: int = 0) -> str:
    """Return a pattern such as `encoder.*` for the names of the parameters, or '' for all parameters."""
    match tensors:
        case ast.Name(id=name) if depth < MAX_ALIASES and (values := source.bound.get(name)):
            value = values[0] if len(values) == 1 else None
            return _pattern(source, value, depth + 1) if value is not None else ""
        case ast.Call(func=ast.Attribute(value=owner, attr="parameters" | "named_parameters")):
            return _part(source, owner)
        case ast.Call(func=ast.Name(id="list" | "tuple" | "iter"), args=[inner]):
            return _pattern(source, inner, depth)
        case ast.Call(func=ast.Name(id="filter"), args=[condition, inner]):
            _check_condition(condition)
            return _pattern(source, inner, depth)
        case ast.ListComp(generators=[loop]) | ast.GeneratorExp(generators=[loop]):
            for condition in loop.ifs:
                _check_condition(condition)
            return _pattern(source, loop.iter, depth)
        case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper)) if lower is not None or upper is not None:
            raise ConfigError(f"The call clips only a part of a list, {ast.unparse(tensors)}. {ADVICE}")
        case ast.Subscript() if GROUP.search(ast.unparse(tensors)):
            group = ast.unparse(tensors)
            raise ConfigError(
                f"The call clips one parameter group, {group}. The optimizer might have other groups. {ADVICE}"
            )
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) | ast.Attribute(attr=name):
            return _pattern_of_definition(source, tensors, name, depth)
    if isinstance(tensors, ast.Name) and SELECTS.search(tensors.id):
        raise ConfigError(f"The call clips only {tensors.id}, which is only known at run time. {ADVICE}")
    return ""


def _pattern_of_definition(source: Source, node: ast.expr, name: str, depth: int) -> str:
    values: list[ast.expr | None] = []
    for other in source.nodes:
        match other:
            case ast.FunctionDef(name=function) if function == name and isinstance(node, ast.Call):
                values += [inner.value for inner in ast.walk(other) if isinstance(inner, ast.Return)]
            case ast.Assign(targets=[ast.Attribute(attr=attribute)], value=value) if attribute == name:
                values += [value] if isinstance(node, ast.Attribute) else []
    if not values and SELECTS.search(name):
        raise ConfigError(f"The call clips only {ast.unparse(node)}, which this file does not define. {ADVICE}")
    patterns = {_pattern(source, value, depth + 1) for value in values if value is not None and depth < MAX_ALIASES}
    return patterns.pop() if len(patterns) == 1 else ""


def _check_condition(condition: ast.expr) -> None:
    if not HAS_GRADIENT.search(ast.unparse(condition)):
        raise ConfigError(
            f"The call clips only the parameters that meet this condition: {ast.unparse(condition)}. {ADVICE}"
        )


def _part(source: Source, owner: ast.expr) -> str:
    """Return "encoder.*" for the parameters of `model.encoder`. Return '' for the parameters of a whole model.

    owner: The expression before `.parameters()`.
    """
    parts: list[ast.expr] = [owner]
    while isinstance(parts[0], ast.Attribute | ast.Subscript):
        parts.insert(0, parts[0].value)
    whole = next((index for index, part in enumerate(parts) if _is_model(source, part, owner)), len(parts))
    inner = [part for part in parts[whole + 1 :] if not (MODEL.fullmatch(_last(part)) or _is_entry(part, parts[whole]))]
    if not inner:
        return ""
    if not all(map(_last, inner)):
        model = ast.unparse(parts[whole])
        raise ConfigError(f"The call clips only {ast.unparse(owner)}, a part of {model} with an unknown name. {ADVICE}")
    return ".".join([*map(_last, inner), "*"])


def _is_model(source: Source, node: ast.expr, owner: ast.expr) -> bool:
    if node is owner or MODEL.fullmatch(_last(node)):
        return True
    text = ast.unparse(node)
    return any(
        isinstance(other, ast.Attribute) and other.attr in ("parameters", "named_parameters")
        and ast.unparse(other.value) == text
        for other in source.nodes
    )  # fmt: skip


def _is_entry(node: ast.expr, models: ast.expr) -> bool:
    match node:
        case ast.Subscript(value=value, slice=ast.Constant(value=str())):
            return value is models
    return False


def _last(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=value)):
            return str(value)
    return ""
