"""Read calls of the clip methods of training engines: Accelerate's Accelerator, Lightning's Fabric and LightningModule,
and PyTorch's FSDP."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...config.clip_config import ClipConfig
from ...config.formats.python_source import Source
from ...errors import ConfigError
from ...port.ported_clip import Meaning
from .engine_of_clip import ACCELERATOR


class Engine(NamedTuple):
    """A class of a training library with methods that clip like PyTorch, such as Accelerate's `Accelerator`."""

    classes: Sequence[str]
    methods: Mapping[str, Sequence[str]]
    """The names of each method's parameters, in order."""

    variable: str = ""
    """The usual name of an object of the class, or '' if there is none."""

    package: str = ""
    """The key of the class in `check.advice.ATTACH`."""

    raises: bool = False
    """Whether the clip raises an error by default if the norm is not finite. The argument `error_if_nonfinite`
    overrides the default."""


ALGORITHM = "gradient_clip_algorithm"
FSDP = "FullyShardedDataParallel"
ENGINES = (
    Engine(
        ACCELERATOR,
        {"clip_grad_norm_": ("parameters", "max_norm", "norm_type"), "clip_grad_value_": ("parameters", "clip_value")},
        "accelerator",
        "accelerate",
    ),
    Engine(
        ("lightning.Fabric", "lightning.fabric.Fabric", "lightning.fabric.fabric.Fabric", "lightning_fabric.Fabric"),
        {"clip_gradients": ("module", "optimizer", "clip_val", "max_norm", "norm_type", "error_if_nonfinite")},
        "fabric",
        "fabric",
        raises=True,
    ),
    Engine(
        tuple(f"torch.distributed.fsdp.{module}{FSDP}" for module in ("", "fully_sharded_data_parallel.")),
        {"clip_grad_norm_": ("max_norm", "norm_type")},
        package="fsdp",
    ),
    Engine((), {"clip_gradients": ("optimizer", "gradient_clip_val", ALGORITHM)}, package="lightning"),
)


LIMITS = ("clip_val", "clip_value", "gradient_clip_val", "max_norm")


def config(source: Source, call: ast.Call | None, threshold: float | None = None) -> ClipConfig | None:
    """Return the clip configuration with the effect of a call such as `fabric.clip_gradients`, or None for other calls.

    threshold: The number to use for a threshold that is only known at run time.
    """
    if call is None or not isinstance(call.func, ast.Attribute):
        return None
    method = call.func.attr
    engine = of_call(source, call)
    if engine is None or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    passed = dict(zip(engine.methods[method], call.args, strict=False))
    passed |= {keyword.arg or "**": keyword.value for keyword in call.keywords}
    settings: dict[str, Any] = {}
    for name in passed.keys() - {"parameters", "module", "optimizer"}:
        is_known = threshold is None or name not in LIMITS or ast.unparse(passed[name]) == "None"
        settings[name] = source.constant(passed[name]) if is_known else threshold
    if "gradient_clip_val" in settings:
        limit = "clip_value" if settings.get(ALGORITHM) == "value" else "max_norm"
        settings[limit] = settings["gradient_clip_val"]
    value = settings.get("clip_val", settings.get("clip_value"))
    if value is not None and settings.get("max_norm") is None:
        return ClipConfig(rule="value", threshold=value)
    nonfinite = {"nonfinite": "raise"} if settings.get("error_if_nonfinite", engine.raises) else {}
    return ClipConfig(
        rule="global_norm", threshold=settings.get("max_norm"), family="pytorch",
        norm_type=settings.get("norm_type", 2.0), **nonfinite,
    )  # fmt: skip


def with_unknown_threshold(source: Source, call: ast.Call) -> Meaning | None:
    with contextlib.suppress(ConfigError):
        rule, engine = config(source, call, 1.0), of_call(source, call)
        if rule is not None and engine is not None and isinstance(call.func, ast.Attribute):
            passed = dict(zip(engine.methods[call.func.attr], call.args, strict=False))
            passed |= {keyword.arg or "**": keyword.value for keyword in call.keywords}
            codes = [ast.unparse(passed[name]) for name in LIMITS if name in passed]
            return Meaning(rule, threshold=codes[0]) if len(codes) == 1 else None
    return None


def of_call(source: Source, call: ast.Call | None) -> Engine | None:
    if call is None or not isinstance(call.func, ast.Attribute):
        return None
    function = call.func
    engines = [engine for engine in ENGINES if function.attr in engine.methods]
    return next((engine for engine in engines if _is_object_of(source, function.value, engine)), None)


def _is_object_of(source: Source, node: ast.expr, engine: Engine) -> bool:
    text = ast.unparse(node)
    if ALGORITHM in engine.methods.get("clip_gradients", ()):
        return text == "self" and getattr(source.function(node), "name", "") == "configure_gradient_clipping"
    if engine.variable and text.rpartition(".")[2] == engine.variable:
        return True
    for other in source.nodes:
        match other:
            case ast.Assign(targets=[target], value=ast.Call(func=function)) if ast.unparse(target) == text:
                if source.dotted(function) in engine.classes:
                    return True
            case ast.arg(arg=name, annotation=ast.expr() as annotation) if name == text:
                if source.dotted(annotation) in engine.classes:
                    return True
    return False
