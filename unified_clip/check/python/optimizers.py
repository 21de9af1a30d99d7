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


def first(path: Path) -> tuple[int, str] | None:
    """Return (line, code) of the first optimizer that a Python file builds. Return None if it builds none.

    A file that is not valid Python builds none.
    """
    try:
        source = Source(python_source(path).decode("utf-8", "replace"), path.name)
    except (ConfigError, OSError):
        return None
    calls = (node for node in source.nodes if isinstance(node, ast.Call))
    found = [(call.lineno, ast.unparse(call.func)) for call in calls if OPTIMIZER.fullmatch(source.dotted(call.func))]
    return min(found, default=None)
