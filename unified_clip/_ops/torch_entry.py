"""How a call of a public name runs under `torch.compile`: traced whole, or, where that fails and may, as it is.

No part of one is compiled on its own, where it would take itself for part of a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _as_it_is(body: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return body(*args, **kwargs)


def _traced(body: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return body(*args, **kwargs)
    except Exception as error:
        torch._dynamo.graph_break(msg=str(error))  # to be raised by the call as it is, or with `fullgraph` by PyTorch
        raise


run: Any = torch.compiler.disable(_as_it_is, reason="unified_clip cannot be part of this graph")
torch.compiler.substitute_in_graph(run)(_traced)
