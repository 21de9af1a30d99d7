"""Find out whether a clip call changes the gradients of all parameters, of a named part of them, or of unknown ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ...config.clip_config import ClipConfig
from ...errors import ConfigError
from ...source.constants import followed
from ...source.module import Module
from ...source.tree import last_name, shortened
from ..clip_use import ACCELERATE_CLIP, THRESHOLD
from .training import is_made

TENSORS = ("parameters", "tensors", "t_list", "module")

PARAMETERS = re.compile(r"parameters\(|param_groups|trainable_(variables|weights)")

MODEL = re.compile(r"(\w*_)?(model|net|network|module)|_orig_mod|_forward_module", re.IGNORECASE)

HAS_GRADIENT = re.compile(r"requires_grad|grad is not None|trainable")

SELECTS = re.compile(r"(?i)(?<!weight_)decay|bias|(^|_)no_|without|excluded|_only|subset")

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
NAMED = (
    "The call clips only {pattern}. Parameter names in this part of the model lack a prefix, so the patterns of the "
    "configuration might not match. Clip with clip.clipper(model), which reads the names from the whole model."
)


def narrowed(module: Module, call: ast.Call, config: ClipConfig) -> ClipConfig:
    """Return `config` with an `include` pattern for the parameters that a call clips.

    For `model.encoder.parameters()`, the pattern is `encoder.*`. If the call clips all parameters, return `config`.

    Raise ConfigError if the clipped parameters are unknown, or if a loop computes a separate norm for each parameter.
    """
    tensors = _tensors(module, call)
    if config.rule == "global_norm":
        _check_loops(module, call, tensors)
    if not config.uses_names and _has_optimizer(module, tensors):
        return config
    pattern = _pattern(module, tensors)
    if pattern and config.uses_names:
        raise ConfigError(NAMED.format(pattern=pattern))
    return ClipConfig(**{**config.data(), "include": [pattern]}) if pattern else config


def check_parameters(module: Module, call: ast.Call) -> None:
    """Raise ConfigError if a call passes gradients instead of parameters, as in `[p.grad for p in parameters]`."""
    match tensors := followed(module, _tensors(module, call)):
        case ast.ListComp(elt=ast.Attribute(attr="grad")) | ast.GeneratorExp(elt=ast.Attribute(attr="grad")):
            raise ConfigError(GRADIENTS.format(gradients=shortened(tensors)))


def _tensors(module: Module, call: ast.Call) -> ast.expr:
    named = (keyword.value for keyword in call.keywords if keyword.arg in TENSORS)
    arguments = call.args[2:] if module.dotted(call.func) == ACCELERATE_CLIP else call.args
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


def _has_optimizer(module: Module, tensors: ast.expr) -> bool:
    """Return whether code passes `tensors` to an optimizer, as in `Adam(model.actor.parameters())`."""
    code = ast.unparse(tensors)
    calls = [call for call in module.calls if is_made(module, call)]
    passed = [each for call in calls for each in (*call.args[:1], *(keyword.value for keyword in call.keywords))]
    return code in map(ast.unparse, passed)


def _check_loops(module: Module, call: ast.Call, tensors: ast.expr) -> None:
    names = {node.id for node in ast.walk(tensors) if isinstance(node, ast.Name)}
    for node in module.ancestors(call):
        if isinstance(node, ast.FunctionDef):
            return
        for loop in getattr(node, "generators", [node] if isinstance(node, ast.For) else []):
            targets = {inner.id for inner in ast.walk(loop.target) if isinstance(inner, ast.Name)}
            over = ast.unparse(loop.iter)
            is_one = isinstance(tensors, ast.List | ast.Tuple) and len(tensors.elts) == 1
            if targets & names and (is_one or PARAMETERS.search(over)):
                raise ConfigError(LOOP.format(over=over))


def _pattern(module: Module, tensors: ast.expr) -> str:
    """Return a pattern such as `encoder.*` for the names of the parameters, or '' for all parameters."""
    if last_name(tensors) and SELECTS.search(last_name(tensors)):
        raise ConfigError(PART.format(code=ast.unparse(tensors)))
    match tensors := followed(module, tensors):
        case ast.Call(func=ast.Attribute(value=owner, attr="parameters" | "named_parameters")):
            return _part(module, owner)
        case ast.Call(func=ast.Name(id="list" | "tuple" | "iter"), args=[inner]):
            return _pattern(module, inner)
        case ast.Call(func=ast.Name(id="filter"), args=[condition, inner]) if HAS_GRADIENT.search(
            ast.unparse(condition)
        ):
            return _pattern(module, inner)
        case ast.ListComp(generators=[loop]) | ast.GeneratorExp(generators=[loop]) if all(
            HAS_GRADIENT.search(ast.unparse(condition)) for condition in loop.ifs
        ):
            return _pattern(module, loop.iter)
        case ast.Call(func=ast.Name() | ast.Attribute() as function) if not (
            last_name(function) == "filter" or SELECTS.search(last_name(function))
        ):
            return ""
        case ast.Subscript(slice=slice_) if not _is_slice(slice_) and "param_groups" not in ast.unparse(tensors):
            return ""
        case ast.Call() | ast.ListComp() | ast.GeneratorExp() | ast.Subscript():
            raise ConfigError(PART.format(code=shortened(tensors)))
    return ""


def _is_slice(node: ast.expr) -> bool:
    return isinstance(node, ast.Slice) and (node.lower is not None or node.upper is not None)


def _part(module: Module, owner: ast.expr) -> str:
    """Return "encoder.*" for the parameters of `model.encoder`. Return '' for the parameters of a whole model.

    owner: The expression before `.parameters()`.
    """
    parts: list[ast.expr] = [owner]
    while isinstance(parts[0], ast.Attribute | ast.Subscript):
        parts.insert(0, parts[0].value)
    whole = next((index for index, part in enumerate(parts[:-1]) if _is_model(module, part)), len(parts))
    inner = [part for part in parts[whole + 1 :] if not MODEL.fullmatch(_last(part))]
    if inner and isinstance(parts[whole + 1], ast.Subscript) and inner[0] is parts[whole + 1]:
        is_entry = isinstance(inner[0].slice, ast.Constant) and isinstance(inner[0].slice.value, str)  # type: ignore[attr-defined]
        inner = inner[is_entry:]  # a model of a dict, as in models["actor"]
    if not all(map(_last, inner)):
        raise ConfigError(PART.format(code=ast.unparse(owner)))
    return ".".join([*map(_last, inner), "*"]) if inner else ""


def _is_model(module: Module, node: ast.expr) -> bool:
    text = ast.unparse(node)
    calls = (call.func for call in module.calls if last_name(call.func) in ("parameters", "named_parameters"))
    return MODEL.fullmatch(_last(node)) is not None or any(
        ast.unparse(each).rpartition(".")[0] == text for each in calls
    )


def _last(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=value)):
            return str(value)
    return ""
