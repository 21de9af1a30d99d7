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

from .._core import entry, watch

COMPILER = "torch._dynamo"


def leave(message: str) -> None:
    """Break the graph. With `fullgraph=True` it is an error of PyTorch's, which holds the message."""
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg=message)


def _miss() -> None:
    if watch.watcher is not None:
        watch.watcher.miss("torch")


miss: Any = _miss
"""What `_register` makes of it is called while a graph is made, and is no part of it."""


def _tell_nobody(*found: Any, **more: Any) -> None:
    return None


def _not_in_detail() -> bool:
    return False


def _traced(body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if watch.watcher is not None:
        miss()
    try:
        return body(*args, **kwargs)
    except Exception as error:
        leave(str(error))  # and raise it as it is
        raise


def _register() -> None:
    """Register the entry points with PyTorch's compiler."""
    global miss
    miss = torch.compiler.assume_constant_result(_miss)
    entry.run = torch.compiler.disable(entry.as_it_is, reason="unified_clip cannot be part of this graph")
    torch.compiler.substitute_in_graph(entry.run)(_traced)
    torch.compiler.substitute_in_graph(watch.tell, skip_signature_check=True)(_tell_nobody)
    torch.compiler.substitute_in_graph(watch.in_detail)(_not_in_detail)


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
