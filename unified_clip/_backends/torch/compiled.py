"""How a call of a public name runs under `torch.compile`: traced whole, or, where that fails and may, as it is.

No part of one is compiled on its own, where it would take itself for part of a graph.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from ..._core import entry, observer

COMPILER = "torch._dynamo"


def leave(message: str) -> None:
    """Break the graph. With `fullgraph=True` it is an error of PyTorch's, which holds the message."""
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg=message)


def _report_graph() -> None:
    if observer.active is not None:
        observer.active.on_unrecordable_graph("torch")


report_graph: Any = _report_graph
"""`_register` replaces it by a function that runs while a graph is made, and is no part of the graph."""


def _emit_nothing(*found: Any, **more: Any) -> None:
    return None


def _needs_no_leaves() -> bool:
    return False


def _traced(body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if observer.active is not None:
        report_graph()
    try:
        return body(*args, **kwargs)
    except Exception as error:
        leave(str(error))  # and raise it as it is
        raise


def _register() -> None:
    """Register the entry points with PyTorch's compiler."""
    global report_graph
    report_graph = torch.compiler.assume_constant_result(_report_graph)
    entry.run = torch.compiler.disable(entry.as_it_is, reason="unified_clip cannot be part of this graph")
    torch.compiler.substitute_in_graph(entry.run)(_traced)
    torch.compiler.substitute_in_graph(observer.emit, skip_signature_check=True)(_emit_nothing)
    torch.compiler.substitute_in_graph(observer.needs_leaves)(_needs_no_leaves)


class _CompilerImport:
    """An import hook that registers the entry points once `torch._dynamo` is imported.

    Importing that module takes about a second, which only programs that compile should pay.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != COMPILER:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _register()

        spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


def prepare() -> None:
    """Register the entry points now if PyTorch's compiler is imported, else when it is."""
    entry.leave = leave
    if COMPILER in sys.modules:
        _register()
    else:
        entry.run = entry.as_it_is
        sys.meta_path.insert(0, _CompilerImport())
