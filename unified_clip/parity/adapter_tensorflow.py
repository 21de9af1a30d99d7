"""TensorFlow for the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import adapter
from .adapter import Native
from .tensors import Dense, Gradient, Sparse


class Framework(adapter.Adapter):
    packages = ("tensorflow", "keras")

    def dense(self, tensor: Dense) -> Any:
        return tf.constant(adapter.to_numpy(tensor))

    def sparse(self, tensor: Sparse) -> Any:
        return tf.IndexedSlices(self.dense(tensor.values), tf.constant(tensor.rows), tf.constant(tensor.shape))

    def read(self, tensor: Any) -> Gradient:
        if isinstance(tensor, tf.IndexedSlices):
            shape = tuple(int(length) for length in tensor.dense_shape)
            return Sparse(tensor.indices.numpy(), self.read_dense(tensor.values), shape)
        return self.read_dense(tensor)

    def read_dense(self, tensor: Any) -> Dense:
        return adapter.from_numpy(tensor.numpy())

    def parameters(self, tensors: Sequence[Any]) -> Sequence[Any]:
        return [tf.Variable(0.0) for _ in tensors]

    def native_norm(self, tensors: Sequence[Any], p: float) -> Native | None:
        return Native("tf.linalg.global_norm", tf.linalg.global_norm(tensors)) if p == 2 else None

    def native_global(self, tensors: Sequence[Any], limit: float, p: float, *, in_place: bool) -> Native | None:
        if p != 2:
            return None
        clipped, norm = tf.clip_by_global_norm(tensors, limit)
        return Native("tf.clip_by_global_norm", norm, clipped)

    def native_by_norm(self, tensors: Sequence[Any], limit: float, axes: Sequence[int] | None) -> Native | None:
        return Native("tf.clip_by_norm", None, [t if t is None else tf.clip_by_norm(t, limit, axes) for t in tensors])

    def native_by_value(self, tensors: Sequence[Any], low: float, high: float, *, in_place: bool) -> Native | None:
        return Native("tf.clip_by_value", None, [t if t is None else tf.clip_by_value(t, low, high) for t in tensors])
