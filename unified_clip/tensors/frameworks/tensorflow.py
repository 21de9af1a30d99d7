from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..types import Dense, Gradient, Sparse, from_numpy, to_numpy
from . import TensorConverter


class Converter(TensorConverter):
    def dense(self, tensor: Dense) -> Any:
        return tf.constant(to_numpy(tensor))

    def sparse(self, tensor: Sparse) -> Any:
        return tf.IndexedSlices(self.dense(tensor.values), tf.constant(tensor.rows), tf.constant(tensor.shape))

    def read(self, tensor: Any) -> Gradient:
        if isinstance(tensor, tf.IndexedSlices):
            shape = tuple(int(length) for length in tensor.dense_shape)
            return Sparse(tensor.indices.numpy(), from_numpy(tensor.values.numpy()), shape)
        return from_numpy(tensor.numpy())
