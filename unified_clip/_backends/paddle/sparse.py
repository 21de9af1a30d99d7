"""Read and create Paddle's sparse gradients."""

from __future__ import annotations

from typing import Any

import paddle

from ..._core.types import Tensor
from . import releases


def stored_values(gradient: Any) -> Any:
    if not isinstance(gradient, paddle.Tensor) or gradient.is_dense() or gradient.is_dist():
        return gradient
    return releases.values_of_rows(gradient) if gradient.is_selected_rows() else gradient.values()


def selected_rows(rows: Tensor, height: int, values: Tensor) -> Tensor:
    kinds = paddle.base.core.VarDesc.VarType
    tensor = paddle.Tensor(kinds.FP32, [height, *values.shape[1:]], "", kinds.SELECTED_ROWS, False)
    selected = tensor.get_selected_rows()
    selected.set_rows(rows.numpy().ravel().tolist())
    selected.set_height(height)
    selected.get_tensor()._share_data_with(values.value().get_tensor())
    return tensor
