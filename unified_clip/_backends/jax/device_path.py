from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp

from ..._compute import host
from ..._compute.device import DevicePath
from ..._core.path import DevicePrimitives, Path
from ..._core.types import Scalar, Tensor
from . import kernel_custom_call, mesh_axes, norms_over_devices
from .arithmetic import real_parts, stack_small


class JaxPrimitives(DevicePrimitives, Protocol):
    def sharded_axes(self, tensor: Tensor) -> tuple[str, ...]:
        """Return the axes of `shard_map` over which an array is sharded."""

    def kernel_norm(self, tensors: Sequence[Tensor], norm: kernel_custom_call.Norm) -> Scalar: ...


class JaxPath(DevicePath):
    _backend: JaxPrimitives

    def __init__(
        self, backend: JaxPrimitives, tensors: Sequence[Tensor], differentiable: bool, *, is_per_tensor: bool = False
    ) -> None:
        for tensor in tensors:
            mesh_axes.reject_unreduced(tensor)
        super().__init__(backend, tensors, differentiable, is_per_tensor=is_per_tensor)

    def per_tensor(self) -> Path | None:
        if not (self._by_kernels(2) or (self._backend.in_graph(self._tensors) and self.is_certain(2))):
            return None
        return JaxPath(self._backend, self._tensors, self._differentiable, is_per_tensor=True)

    def scale(self, coef: Scalar) -> list[Tensor]:
        tensors = self._tensors
        if host.kernels_in_graphs() and self._backend.in_graph(tensors):
            # Otherwise, XLA may first multiply `coef` by a factor of a gradient, and return 0 for inf * 0.
            tensors = list(map(jax.lax.optimization_barrier, tensors))  # one barrier for all would join their `vma`
        if not self._is_per_tensor:
            return self._backend.scale(tensors, coef)
        coefs = jax.lax.split(coef, [1] * len(tensors))  # a slice has no second derivative in float64 without x64
        return [self._backend.scale([tensor], own.reshape(()))[0] for tensor, own in zip(tensors, coefs, strict=True)]

    def norm(self, p: float) -> Scalar:
        if self._by_kernels(p):
            return self._backend.kernel_norm(self._tensors, kernel_custom_call.Norm(int(p), self._is_per_tensor))
        return self.norm_by_operations(p)

    def _by_kernels(self, p: float) -> bool:
        is_sharded = any(self._backend.sharded_axes(tensor) for tensor in self._tensors)
        return not is_sharded and host.kernels_in_graphs() and kernel_custom_call.supports(self._tensors, p)

    def norm_by_operations(self, p: float) -> Scalar:
        if not self.is_certain(p):
            return super().norm_by_operations(p)
        if self._is_per_tensor:
            return self._rounded([[tensor] for tensor in self._tensors], int(p))
        return self._rounded([self._tensors], int(p)).reshape(())

    def is_certain(self, p: float) -> bool:
        """Return whether to compute exact sums. Return False on one device, where compilation would take too long."""
        of_reals = p == 2 or (p == 1 and not any(map(jnp.iscomplexobj, self._tensors)))
        return (
            jax.device_count() > 1
            and of_reals
            and self.norm_dtype == "float32"
            and all(isinstance(tensor.size, int) for tensor in self._tensors)
        )

    def _rounded(self, groups: Sequence[Sequence[Tensor]], p: int) -> Scalar:
        parts = [[part for tensor in stack_small(group) for part in real_parts(tensor)] for group in groups]
        return self._backend.rounded(norms_over_devices.norms(parts, p, self._backend.sharded_axes), "float32")
