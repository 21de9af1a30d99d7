"""Register `entry.run` with compilers. Otherwise, `torch.compile` cannot trace public functions."""

from __future__ import annotations

import importlib
import sys
from functools import partial

from .recorder.guard import Hook

COMPILERS = {"torch._dynamo": "unified_clip._backends.torch.traced_bodies"}

HOOK = Hook("compilers", "torch.compile cannot trace functions of unified_clip, and may fail for code that calls them")


def watch() -> None:
    """Register a compiler when it is imported, because importing it here would take about a second."""
    HOOK.after_import({compiler: partial(_register, compiler) for compiler in COMPILERS})
    for compiler in COMPILERS:
        if compiler in sys.modules:
            HOOK.run(_register, compiler)


def _register(compiler: str) -> None:
    importlib.import_module(COMPILERS[compiler]).register()
