"""Find optimizers that Python source builds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ...config.formats.python_source import Source
from ...errors import ConfigError
from ..notebooks.cells import python_source

OPTIMIZER = re.compile(
    r"torch\.optim\.(?!lr_scheduler|swa_utils)([a-z]\w*\.)*(?!Optimizer$)[A-Z]\w*|paddle\.optimizer\.[A-Z]\w*"
    r"|((tensorflow|tf)\.)?(tf_)?(\w+\.)*keras\.optimizers\.[A-Z]\w*"
    r"|optax\.(contrib\.)?(a(dabelief|dadelta|dagrad|dan|dafactor|dam\w*|msgrad)|fromage|lamb|lars|lbfgs|lion|muon|nadamw?"
    r"|noisy_sgd|novograd|optimistic_\w+|prodigy|radam|rmsprop|rprop|sgd|sign_sgd|sm3|sophia|yogi)"
)
"""Matches the full name of an optimizer of a framework, but not of a scheduler or of PyTorch's base class."""

STEPPER = re.compile(r"(?i)(?!.*sched).*(opt|adam|sgd|scaler|solver|engine)")
"""Matches the name of an object whose `step` changes parameters."""

CLIPPING = ("grad_clip", "clipnorm", "clipvalue", "global_clipnorm")
"""The arguments by which an optimizer clips by itself."""


def is_made(source: Source, node: ast.expr) -> bool:
    """Return whether an expression, or the value of a name that is assigned once, is the call of an optimizer."""
    made = source.followed(node)
    return isinstance(made, ast.Call) and OPTIMIZER.fullmatch(source.dotted(made.func)) is not None


def has_clip(call: ast.Call) -> bool:
    """Return whether the arguments of an optimizer set a clip."""
    return any(each.arg in CLIPPING and ast.unparse(each.value) != "None" for each in call.keywords)


def attached(call: ast.Call) -> str:
    """Return the code of the optimizer to which a call of `attach_to` attaches a clip. Return '' for other calls."""
    arguments = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "optimizer")]
    return ast.unparse(arguments[0]) if arguments and getattr(call.func, "attr", "") == "attach_to" else ""


def first(path: Path) -> tuple[int, str] | None:
    """Return (line, code) of the first optimizer that a Python file builds. Return None if it builds none.

    A file that is not valid Python builds none.
    """
    try:
        source = Source(python_source(path).decode("utf-8", "replace"), path.name)
    except (ConfigError, OSError):
        return None
    return min(((call.lineno, ast.unparse(call.func)) for call in source.calls if is_made(source, call)), default=None)
