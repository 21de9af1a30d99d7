from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from ..types import Dense, Gradient, from_numpy, to_numpy
from . import TensorConverter


class Converter(TensorConverter):
    def dense(self, tensor: Dense) -> Any:
        array = to_numpy(tensor)
        if tensor.dtype == "complex128":
            remedy = "Save the gradients as complex64, or leave out mlx, as with --frameworks torch,jax"
            raise TypeError(f"MLX has no complex128. {remedy}")
        return mx.array(array, getattr(mx, array.dtype.name))

    def read(self, tensor: Any) -> Gradient:
        if tensor.dtype != mx.bfloat16:
            return from_numpy(np.array(tensor))
        import ml_dtypes

        return from_numpy(np.array(tensor.view(mx.uint16)).view(ml_dtypes.bfloat16))
