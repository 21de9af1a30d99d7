"""Detect files that build or run static programs of Paddle."""

from __future__ import annotations

import ast
import re

from ...source.module import Module

STATIC = re.compile(
    r"paddle\.(enable_static$|static\.(Executor|program_guard|Program|CompiledProgram|data|nn|amp|append_backward|gradients)\b"
    r"|fluid\.(program_guard|Executor|ParallelExecutor|CompiledProgram|data\b|layers\.data\b|Program))"
)

DEFAULT_PROGRAM = re.compile(r"paddle\.(fluid|static)\.default_(main|startup)_program$")


def is_static(module: Module) -> bool:
    """Return whether a file uses static programs, as in paddle.fluid without dygraph."""
    used = module.used_names
    in_fluid = any(name.startswith("paddle.fluid.") for name in used)
    eager = any(name.startswith("paddle.fluid.dygraph") for name in used)
    return any(map(STATIC.match, used)) or _uses_default_program(module) or (in_fluid and not eager)


def _uses_default_program(module: Module) -> bool:
    """Ignore the attribute random_seed, because code in dynamic mode sets random_seed, too."""
    calls = [call for call in module.calls if DEFAULT_PROGRAM.match(module.full_name(call.func))]
    parents = [module.parents[call] for call in calls]
    return any(not isinstance(parent, ast.Attribute) or parent.attr != "random_seed" for parent in parents)
