from __future__ import annotations

from typing import Any

import numpy as np
import paddle

from ..types import Dense, Gradient, Sparse, from_numpy, to_numpy
from . import TensorConverter


class Converter(TensorConverter):
    def dense(self, tensor: Dense) -> Any:
        array = np.array(tensor.array) if tensor.dtype == "bfloat16" else to_numpy(tensor)
        return paddle.to_tensor(array, place=paddle.CPUPlace())  # Paddle reads uint16 as bfloat16

    def sparse(self, tensor: Sparse) -> Any:
        """Run the backward pass of an embedding, because Paddle creates SelectedRows only there."""
        weight = paddle.zeros(tensor.shape, tensor.dtype)
        weight.stop_gradient = False
        rows = paddle.nn.functional.embedding(paddle.to_tensor(np.array(tensor.rows)), weight, sparse=True)
        rows.backward(self.dense(tensor.values))
        return weight.grad

    def read(self, tensor: Any) -> Gradient:
        if tensor.is_selected_rows():
            rows = tensor.get_selected_rows()
            values = np.array(rows.get_tensor())
            shape = (rows.height(), *values.shape[1:])
            return Sparse(np.array(rows.rows(), np.int64), self._dense(values), shape)
        return self._dense(tensor.numpy())

    def _dense(self, array: Any) -> Dense:
        return Dense("bfloat16", np.array(array)) if array.dtype == np.uint16 else from_numpy(array)
