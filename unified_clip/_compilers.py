"""Register `entry.run` with PyTorch's compiler. Otherwise, `torch.compile` cannot trace public functions."""

from __future__ import annotations

import importlib
import sys

from . import _dispatch
from .recorder.guard import Hook

COMPILER = "torch._dynamo"

HOOK = Hook("compilers", "torch.compile cannot trace functions of unified_clip, and may fail for code that calls them")


def watch() -> None:
    """Register the compiler when it is imported, because importing it here would take about a second."""
    HOOK.after_import({COMPILER: _register})
    if COMPILER in sys.modules:
        HOOK.run(_register)


def _register() -> None:
    traced_bodies = importlib.import_module("unified_clip._backends.torch.traced_bodies")
    # The compiler traces neither the lookup of a type nor the import of a backend.
    _dispatch.adapter_of = traced_bodies.constant_in_graph(_dispatch.adapter_of)
    _dispatch.backend_named("torch")
    traced_bodies.register()
