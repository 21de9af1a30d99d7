"""Read and create Paddle's sparse gradients."""

from __future__ import annotations

from typing import Any

import paddle

from ..._compute import sparse_rows
from ..._core.types import Tensor
from . import releases
from .dense import Dense


def stored_values(gradient: Any) -> Any:
    if not isinstance(gradient, paddle.Tensor) or gradient.is_dense() or gradient.is_dist():
        return gradient
    return releases.values_of_rows(gradient) if gradient.is_selected_rows() else gradient.values()


def dense_shape(tensor: Any) -> tuple[int | None, ...]:
    """The attribute `shape` of a SelectedRows tensor counts only the stored rows."""
    if isinstance(tensor, paddle.Tensor) and tensor.is_selected_rows():
        return (tensor.get_selected_rows().height(), *tensor.shape[1:])
    return tuple(None if length < 0 else length for length in tensor.shape)


def selected_rows(rows: Tensor, height: int, values: Tensor) -> Tensor:
    kinds = paddle.base.core.VarDesc.VarType
    tensor = paddle.Tensor(kinds.FP32, [height, *values.shape[1:]], "", kinds.SELECTED_ROWS, False)
    selected = tensor.get_selected_rows()
    selected.set_rows(rows.numpy().ravel().tolist())
    selected.set_height(height)
    selected.get_tensor()._share_data_with(values.value().get_tensor())
    return tensor


def merge_rows(backend: Any, indices: Tensor, values: Tensor, differentiable: bool) -> tuple[Tensor, Tensor]:
    if backend.takes_host([indices, values], differentiable=differentiable):
        dtype = backend.dtype(values)
        rows, array = sparse_rows.merge_rows(backend.host_view(indices), backend.host_view(values), dtype)
        return backend.from_host(rows, "int64"), backend.from_host(array, dtype)
    if not indices.shape[1]:
        return indices, values
    with backend.scope(differentiable):
        dense = Dense(values)
        rows, position = paddle.unique(indices, return_inverse=True, axis=1)
        wide = dense.wide.astype("float64")
        zeros = paddle.zeros([rows.shape[1], *wide.shape[1:]], "float64")
        sums = paddle.scatter_nd_add(zeros, position.unsqueeze(-1), wide)
        return rows, dense.narrow(sums.astype(dense.wide.dtype))
