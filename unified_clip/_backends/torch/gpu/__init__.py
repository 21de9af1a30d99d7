"""Triton kernels for norms, products and clamped values on a GPU. UNIFIED_CLIP_TRITON=1 enables these kernels."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...._compute import host
from ...._core.types import Tensor
from ..conditions import COMPLEX, PLAIN, REAL, is_dense, is_watched

if TYPE_CHECKING:
    from .several_tables import Tables
    from .table import Table

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


def table_of(tensors: Sequence[Tensor], *, per_tensor: bool = False) -> Table | Tables | None:
    """Return the kernels' table for a list of gradients, or None if the kernels do not support them.

    The kernels support dense tensors on GPUs, but not while PyTorch traces or transforms the code.
    """
    if is_watched() or not _are_supported(tensors):
        return None
    from . import several_tables, table

    # The interpreter cannot read the memory of a GPU.
    return several_tables.table_of(tensors, per_tensor=per_tensor) if tensors[0].is_cuda != table.INTERPRETED else None


def table_of_list(device_list: Any) -> Table | None:
    from . import table

    return table.table_of_list(device_list) if device_list.tensors[0].is_cuda != table.INTERPRETED else None


def measures(tensors: Sequence[Tensor], p: float) -> bool:
    """Return whether the kernels can compute the norm.

    For complex tensors, only the 2-norm is possible, because the kernels read real and imaginary parts as separate
    numbers.
    """
    return p == 2 or (p in ORDERS and not any(tensor.dtype in COMPLEX for tensor in tensors))


def norm_is_exact(tensors: Sequence[Tensor], p: float) -> bool:
    return measures(tensors, p) and table_of(tensors) is not None


def new_tensors(
    tensors: Sequence[Tensor], launches: Callable[[Table | Tables], Sequence[Callable[[], None]]], *, per_tensor: bool
) -> list[Tensor]:
    from . import several_tables

    results = [torch.empty_like(tensor) for tensor in tensors]
    table = several_tables.table_of(tensors, results, per_tensor=per_tensor)
    assert table is not None
    for launch in launches(table):
        launch()
    return results


def _are_supported(tensors: Sequence[Any]) -> bool:
    """The check calls few functions, because it runs for every gradient of every step."""
    if not tensors or (not tensors[0].is_cuda and not host.forced_path("pairs")):
        return False
    device_type = tensors[0].device.type
    return all(
        type(tensor) in PLAIN
        and (tensor.dtype in REAL or (tensor.dtype in COMPLEX and not tensor.is_conj()))
        and tensor.device.type == device_type
        and (tensor.is_contiguous() or is_dense(tensor))
        and not tensor.is_neg()
        for tensor in tensors
    )
