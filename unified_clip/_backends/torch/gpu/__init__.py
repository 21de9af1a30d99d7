"""Norms, products and clamped values of gradient lists on a GPU, by Triton kernels, if UNIFIED_CLIP_TRITON=1 is set."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...._compute import host
from ...._core.types import Tensor
from ..conditions import PLAIN, is_dense, is_watched

if TYPE_CHECKING:
    from .table import Table

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ORDERS = (1, 2, math.inf)


def _is_enabled() -> bool:
    choice = os.environ.get("UNIFIED_CLIP_TRITON", "")
    if choice not in ("", "0", "1"):
        raise ValueError(f"UNIFIED_CLIP_TRITON is {choice!r}. Set it to 1 or 0, or leave it unset")
    if choice == "1":
        try:
            import triton  # noqa: F401 - asked for, so its absence is an error
        except ImportError as error:
            raise ImportError(
                "UNIFIED_CLIP_TRITON=1 needs Triton, which cannot be imported. Install it: pip install triton. Or "
                "unset UNIFIED_CLIP_TRITON"
            ) from error
    return choice == "1"


ENABLED = _is_enabled()


def table_of(tensors: Sequence[Tensor]) -> Table | None:
    """Return the table of a gradient list; None if the kernels do not support it.

    They support eager dense tensors of up to 32 bits, all on one GPU.
    """
    if is_watched() or not _are_supported(tensors):
        return None
    from . import table

    # The interpreter cannot read the memory of a GPU.
    return table.table_of(tensors) if tensors[0].is_cuda != table.INTERPRETED else None


def new_tensors(tensors: Sequence[Tensor], launches: Callable[[Table], Sequence[Callable[[], None]]]) -> list[Tensor]:
    """Return the results of launches in new tensors, for tensors that have a table."""
    from . import table

    results = [torch.empty_like(tensor) for tensor in tensors]
    new = table.table_of(tensors, results)
    assert new is not None
    for launch in launches(new):
        launch()
    return results


def _are_supported(tensors: Sequence[Any]) -> bool:
    """Return whether all tensors are plain ones on one GPU, or on the CPU, where the interpreter runs the kernels.

    One loop without other functions, since it runs for every gradient of every step.
    """
    if not tensors or (not tensors[0].is_cuda and not host.forced_path("pairs")):
        return False
    device = tensors[0].device
    return all(
        type(tensor) in PLAIN and tensor.dtype in DTYPES and tensor.device == device
        and (tensor.is_contiguous() or is_dense(tensor))
        for tensor in tensors
    )  # fmt: skip
