"""Calls with plain arguments on plain tensors: one call of the compiled kernels does what `_core/rule.py` specifies.

All other calls, and calls that somebody observes, go through `_core`.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from .._core import observer
from .._core.backend import Backend
from .._core.rule import ClipConvention
from .._core.types import Tensor


def is_plain(threshold: Any, norm_type: Any, distributed: tuple[Any, Any, Any, Any]) -> bool:
    """Return whether the arguments need no check beyond this one, and nobody observes the call."""
    process_group, ownership, check_numel, check_replicas = distributed
    return (
        observer.active is None
        and type(threshold) in (float, int)
        and (0 <= threshold <= sys.float_info.max or threshold == math.inf)
        and type(norm_type) in (float, int)
        and norm_type == 2
        and type(process_group) is str
        and process_group == "auto"
        and ownership is None
        and check_numel is None
        and check_replicas is False
    )


def clip_to_new(
    backend: Backend, container: Any, threshold: Any, convention: ClipConvention
) -> tuple[list[Tensor | None], Any] | None:
    """Return (new tensors, norm), or None if a tensor is not plain or the framework makes tensors itself."""
    tensors = backend.plain_tensors(container, differentiable=True, in_place=False)
    if tensors is None or not tensors.tensors or not tensors.makes_tensors:
        return None
    results, norm = tensors.clip(threshold, *convention, 1 if tensors.is_short else threads(backend))
    if len(results) < len(container):
        remaining = iter(results)
        results = [None if item is None else next(remaining) for item in container]
    return results, norm


def total_norm(backend: Backend, container: Any) -> Tensor | None:
    """Return None if a tensor is not plain."""
    tensors = backend.plain_tensors(container, differentiable=True, in_place=False)
    if tensors is None or not tensors.tensors:
        return None
    return tensors.total_norm(1 if tensors.is_short else threads(backend), backend.norm_from_host)


def threads(backend: Backend) -> int:
    from .._compute.processor import default_threads  # imports NumPy, which `import unified_clip` does not

    return backend.threads() or default_threads()
