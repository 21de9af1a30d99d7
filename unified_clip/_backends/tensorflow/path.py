"""The device path of TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ..._compute.device import DevicePath
from ..._core.path import DevicePrimitives, Path
from ..._core.types import Scalar, Tensor
from . import operations


class TensorflowPath(DevicePath):
    """The device path, with the compiled kernels in graphs that can call them."""

    def __init__(
        self,
        backend: DevicePrimitives,
        tensors: Sequence[Tensor],
        differentiable: bool,
        is_per_tensor: bool = False,
    ) -> None:
        """`is_per_tensor`: one norm and one coefficient per tensor, in vectors."""
        super().__init__(backend, tensors, differentiable)
        self._is_per_tensor = is_per_tensor

    def per_tensor(self) -> Path | None:
        if not operations.supports(self._tensors):
            return None
        return TensorflowPath(self._backend, self._tensors, self._differentiable, is_per_tensor=True)

    def norm(self, p: float) -> Scalar:
        is_of_reals = p == 2 or (p == 1 and not any(tensor.dtype.is_complex for tensor in self._tensors))
        if is_of_reals and operations.supports(self._tensors):
            return operations.norm(self._tensors, p, per_tensor=self._is_per_tensor)
        return self.norm_by_operations(p)

    def norm_by_operations(self, p: float) -> Scalar:
        if not self._is_per_tensor:
            return super().norm(p)
        paths = [TensorflowPath(self._backend, [tensor], self._differentiable) for tensor in self._tensors]
        return tf.stack([path.norm_by_operations(p) for path in paths])

    def scale(self, coef: Scalar) -> list[Tensor]:
        is_for_kernels = coef.shape.rank == (1 if self._is_per_tensor else 0)  # not one coefficient per slice
        if is_for_kernels and operations.supports(self._tensors):
            return operations.scale(self._tensors, coef, per_tensor=self._is_per_tensor)
        return super().scale(coef)
