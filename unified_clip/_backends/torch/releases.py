"""What differs between releases of PyTorch. Each line names the release that made it unnecessary."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

RELEASE = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
"""A build from source can have the version 0.0. It counts as new."""


def _before(*release: int) -> bool:
    return (0, 0) < RELEASE < release


TRACES = not _before(2, 9)  # until PyTorch 2.9
"""Whether public functions can be part of a graph of `torch.compile`. If not, the graph ends at a public function."""

REASON = "unified_clip cannot be part of this graph" + ("" if TRACES else " before PyTorch 2.9")  # until PyTorch 2.9
DISABLE_OPTIONS = {} if _before(2, 8) else {"reason": REASON}  # until PyTorch 2.8

FORMATS_TEXTS = not _before(2, 11)  # until PyTorch 2.11
"""Whether a text that is put together during a trace can be the reason of a graph break. If not, the trace fails."""

HAS_TOTAL_NORM = not _before(2, 6)  # until PyTorch 2.6
"""Whether `torch.nn.utils` has `get_total_norm` and `clip_grads_with_norm_`."""


def _is_exporting() -> Any:
    """In each graph that these releases trace, `torch.compiler.is_exporting` returns True."""
    return torch.compiler._is_exporting_flag


is_exporting: Callable[[], bool] = (
    torch.compiler.is_compiling  # until PyTorch 2.7
    if _before(2, 7)
    else _is_exporting  # until PyTorch 2.12
    if _before(2, 12)
    else torch.compiler.is_exporting
)

DTENSOR = "torch.distributed._tensor" if _before(2, 5) else "torch.distributed.tensor"  # until PyTorch 2.5
"""The name of the module that has `DTensor` and the placements."""


def loaded_dtensor() -> ModuleType | None:
    return sys.modules.get(DTENSOR)


def dtensor() -> Any:
    return import_module(DTENSOR)


def _increment_one_by_one(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        torch._C._increment_version(tensor)


ADDS_EPS_TO_PARTS = _before(2, 11)  # until PyTorch 2.11
"""Whether `clip_grad_norm_` adds its eps to the norm of each rank, before it computes the norm over all ranks."""

increment_versions: Callable[[Sequence[torch.Tensor]], None] = (
    _increment_one_by_one if _before(2, 5) else torch._C._increment_version  # until PyTorch 2.5
)

CANNOT_TRACE_WORLD = _before(2, 13)  # until PyTorch 2.13
"""Whether `torch.distributed.group.WORLD` cannot be traced without a process group. `is_initialized` runs more code."""

NARROW = (torch.float16, torch.bfloat16, torch.float32)
DROPS_CONVERSIONS = _before(2, 13)  # until PyTorch 2.13


def rounded_in_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Keep the compiler from dropping the first of two conversions, such as float64 to float32 to float64."""
    is_dropped = DROPS_CONVERSIONS and torch.compiler.is_compiling() and tensor.dtype in NARROW
    return torch.maximum(tensor, tensor) if is_dropped else tensor
