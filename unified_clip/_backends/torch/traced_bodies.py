"""Run the bodies of public functions under `torch.compile`.

PyTorch traces the body, or breaks the graph and runs the body eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..._core import entry, observer
from . import releases


def break_graph(message: str | Exception) -> None:
    """End the graph here, so that later operations run eagerly. With `fullgraph=True`, PyTorch raises an error."""
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg=str(message) if releases.FORMATS_TEXTS else releases.REASON)


def _report_graph() -> None:
    if observer.active is not None:
        observer.active.on_unrecordable_graph("torch")


report_graph: Any = _report_graph
"""Runs during tracing, and is not part of the graph."""

SHORT_BODIES: dict[Callable[..., Any], Callable[..., Any]] = {}
"""Maps public functions to their short forms, which do not support all gradients. `backend.py` fills this dict.

Before each run of a graph, PyTorch checks every value that the traced code has read. A public function reads several
hundred values. For a few small tensors, these checks take longer than the clip. A short form returns (result,
arguments). If the result is None, `_traced` passes these arguments to the public function.
"""


def _emit_nothing(*fields: Any, **more: Any) -> None:
    return None


def _traced(body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if observer.active is not None:
        report_graph()
    try:
        if body in SHORT_BODIES:
            result, args, kwargs = SHORT_BODIES[body](*args, **kwargs)
            if result is not None:
                return result
        return body(*args, **kwargs)
    except Exception as error:
        break_graph(error)  # the eager body raises the error again
        raise


constant_in_graph = torch.compiler.assume_constant_result


def register() -> None:
    """`_compilers` calls this function after the compiler is imported."""
    global report_graph
    report_graph = torch.compiler.assume_constant_result(_report_graph)
    run = torch.compiler.disable(entry.run_eagerly, **releases.DISABLE_OPTIONS)
    if not releases.TRACES:
        run.__qualname__ = releases.REASON  # older releases print this name in the error of `fullgraph=True`
        entry.register_compiler(run, entry.break_nothing)
        return
    torch.compiler.substitute_in_graph(run)(_traced)
    torch.compiler.substitute_in_graph(observer.emit, skip_signature_check=True)(_emit_nothing)
    entry.register_compiler(run, break_graph)  # last: if PyTorch rejects a part, nothing changes
