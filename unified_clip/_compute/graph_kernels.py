"""Call the compiled kernels from compiled graphs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

from .._core.path import DevicePrimitives, Path
from .._core.types import Scalar, Tensor
from .device import DevicePath


class GraphKernels(Protocol):
    def supports(self, tensors: Sequence[Tensor]) -> bool: ...

    def norm(self, tensors: Sequence[Tensor], p: float, *, per_tensor: bool) -> Scalar:
        """p is 1 or 2. If `per_tensor` is True, return a vector with one norm for each tensor."""

    def scale(self, tensors: Sequence[Tensor], coef: Scalar, *, per_tensor: bool) -> list[Tensor]:
        """If `per_tensor` is True, `coef` is a vector with one coefficient for each tensor."""

    def ndim(self, scalar: Scalar) -> int | None: ...


class GraphPath(DevicePath):
    def __init__(
        self,
        backend: DevicePrimitives,
        graph_kernels: GraphKernels,
        tensors: Sequence[Tensor],
        differentiable: bool,
        is_per_tensor: bool = False,
    ) -> None:
        super().__init__(backend, tensors, differentiable)
        self._graph_kernels, self._is_per_tensor = graph_kernels, is_per_tensor

    def per_tensor(self) -> Path | None:
        if not self._graph_kernels.supports(self._tensors):
            return None
        path = copy.copy(self)
        path._is_per_tensor = True
        return path

    def norm(self, p: float) -> Scalar:
        is_of_reals = p == 2 or (
            p == 1 and not any(self._backend.dtype(tensor).startswith("complex") for tensor in self._tensors)
        )
        if is_of_reals and self._graph_kernels.supports(self._tensors):
            return self._graph_kernels.norm(self._tensors, p, per_tensor=self._is_per_tensor)
        return self.norm_by_operations(p)

    def norm_by_operations(self, p: float) -> Scalar:
        assert not self._is_per_tensor, "bug in unified_clip: the kernels do not support norms of single tensors"
        return super().norm(p)

    def scale(self, coef: Scalar) -> list[Tensor]:
        is_for_kernels = self._graph_kernels.ndim(coef) == self._is_per_tensor  # else one coefficient per slice
        if is_for_kernels and self._graph_kernels.supports(self._tensors):
            return self._graph_kernels.scale(self._tensors, coef, per_tensor=self._is_per_tensor)
        assert not self._is_per_tensor, "bug in unified_clip: the kernels do not support one coefficient per tensor"
        return super().scale(coef)
