"""How a call of a public name runs under `torch.compile`: traced whole, or, where that fails and may, as it is.

No part of one is compiled on its own, where it would take itself for part of a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._core import watch
from .._core.entry import as_it_is


def leave(message: str) -> None:
    """Break the graph. With `fullgraph=True` it is an error of PyTorch's, which holds the message."""
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg=message)


def _miss() -> None:
    if watch.watcher is not None:
        watch.watcher.miss("torch")


miss: Any = torch.compiler.assume_constant_result(_miss)  # called while a graph is made, and no part of it


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


run: Any = torch.compiler.disable(as_it_is, reason="unified_clip cannot be part of this graph")
torch.compiler.substitute_in_graph(run)(_traced)
torch.compiler.substitute_in_graph(watch.tell, skip_signature_check=True)(_tell_nobody)
torch.compiler.substitute_in_graph(watch.in_detail)(_not_in_detail)
