"""Read calls of the clip methods of training engines, such as Accelerate's `accelerator.clip_grad_norm_`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ...config.clip_config import ClipConfig
from ...errors import ConfigError
from ...port.ported_clip import Meaning
from ...source.constants import constant
from ...source.module import Module

ACCELERATOR = ("accelerate.Accelerator", "accelerate.accelerator.Accelerator")
FABRIC = ("lightning.Fabric", "lightning.fabric.Fabric", "lightning.fabric.fabric.Fabric", "lightning_fabric.Fabric")
FSDP = "torch.distributed.fsdp.", "FullyShardedDataParallel"


class Engine(NamedTuple):
    """A class of a training library with methods that clip like PyTorch, such as Accelerate's `Accelerator`."""

    package: str
    """The key of the class in `check.advice.INSTEAD`."""

    methods: Mapping[str, Sequence[str]]
    """The names of each method's parameters, in order."""

    classes: Sequence[str] = ()
    variable: str = ""
    """The usual name of an object of the class, or '' if there is none."""

    raises: bool = False
    """Whether the clip raises an error by default if the norm is not finite. The argument `error_if_nonfinite`
    overrides the default."""


LIGHTNING = Engine("lightning", {"clip_gradients": ("optimizer", "gradient_clip_val", "gradient_clip_algorithm")})
ENGINES = (
    Engine(
        "accelerate",
        {"clip_grad_norm_": ("parameters", "max_norm", "norm_type"), "clip_grad_value_": ("parameters", "clip_value")},
        ACCELERATOR,
        "accelerator",
    ),
    Engine(
        "fabric",
        {"clip_gradients": ("module", "optimizer", "clip_val", "max_norm", "norm_type", "error_if_nonfinite")},
        FABRIC,
        "fabric",
        raises=True,
    ),
    Engine(
        "fsdp",
        {"clip_grad_norm_": ("max_norm", "norm_type")},
        [FSDP[0] + FSDP[1], f"{FSDP[0]}fully_sharded_data_parallel.{FSDP[1]}"],
    ),
    LIGHTNING,
)

VALUES = ("clip_val", "clip_value")
LIMITS = (*VALUES, "gradient_clip_val", "max_norm")


def meaning(module: Module, call: ast.Call | None) -> Meaning | None:
    """Return the effect of a call such as `fabric.clip_gradients`, or None for other calls.

    Raise ConfigError if an argument besides the threshold is only known at run time.
    """
    engine = of_call(module, call)
    if engine is None or call is None or not isinstance(call.func, ast.Attribute):
        return None
    passed = dict(zip(engine.methods[call.func.attr], call.args, strict=False))
    passed |= {keyword.arg or "**": keyword.value for keyword in call.keywords}
    limits = {name: passed.pop(name) for name in LIMITS if name in passed and ast.unparse(passed[name]) != "None"}
    others = passed.keys() - {"parameters", "module", "optimizer", *LIMITS}
    settings = {name: constant(module, passed[name]) for name in others}
    if len(limits) != 1 or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    (name, code), threshold, unknown = *limits.items(), 1.0, ""
    try:
        threshold = constant(module, code)
    except ConfigError:
        unknown = ast.unparse(code)
    if name in VALUES or settings.get("gradient_clip_algorithm") == "value":
        return Meaning(ClipConfig(rule="value", threshold=threshold), unknown)
    nonfinite = {"nonfinite": "raise"} if settings.get("error_if_nonfinite", engine.raises) else {}
    norm_type = settings.get("norm_type", 2.0)
    config = ClipConfig(rule="global_norm", threshold=threshold, family="pytorch", norm_type=norm_type, **nonfinite)
    return Meaning(config, unknown)


def of_call(module: Module, call: ast.Call | None) -> Engine | None:
    if call is None or not isinstance(call.func, ast.Attribute):
        return None
    method, owner = call.func.attr, call.func.value
    engines_with_method = [engine for engine in ENGINES if method in engine.methods]
    return next((engine for engine in engines_with_method if _is_object_of(module, owner, engine)), None)


def _is_object_of(module: Module, node: ast.expr, engine: Engine) -> bool:
    text = ast.unparse(node)
    if engine is LIGHTNING:
        function = module.enclosing_definition(node)
        return text == "self" and function is not None and function.name == "configure_gradient_clipping"
    if engine.variable and text.rpartition(".")[2] == engine.variable:
        return True
    binding = module.binding(node)
    made = [each.func for each in binding.values or [] if isinstance(each, ast.Call)]
    parameters = [each.node.annotation for each in binding.assignments if isinstance(each.node, ast.arg)]
    return any(module.dotted(each) in engine.classes for each in (*made, *parameters) if each is not None)


def calls_at(module: Module, line: int, column: int) -> Iterator[ast.Call]:
    """Yield the calls that start at a place, or whose function or keyword argument starts there."""
    for call in module.calls:
        places: list[ast.expr | ast.keyword] = [call, call.func, *call.keywords]
        if any(each.lineno == line and module.position(each) == (line, column) for each in places):
            yield call
