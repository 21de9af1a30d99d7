from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ..._compute.graph_kernels import GraphPath
from ..._core.path import DevicePrimitives
from ..._core.types import Scalar, Tensor
from . import kernel_operations


class TensorflowPath(GraphPath):
    """TensorFlow's operations compute all derivatives, even if the compiled kernels compute the norms."""

    def __init__(
        self, backend: DevicePrimitives, tensors: Sequence[Tensor], differentiable: bool, is_per_tensor: bool = False
    ) -> None:
        super().__init__(backend, kernel_operations, tensors, differentiable, is_per_tensor)

    def norm_by_operations(self, p: float) -> Scalar:
        if not self._is_per_tensor:
            return super().norm_by_operations(p)
        paths = [TensorflowPath(self._backend, [tensor], self._differentiable) for tensor in self._tensors]
        return tf.stack([path.norm_by_operations(p) for path in paths])
