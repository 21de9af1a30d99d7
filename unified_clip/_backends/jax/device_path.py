"""The device path of JAX, and its float64 arithmetic."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO

from ..._compute import host
from ..._compute.device import DevicePath, relative_powers
from ..._core.path import DevicePrimitives, Path
from ..._core.types import Scalar, Tensor
from . import kernel_custom_call, mesh_axes
from .releases import enable_x64

SMALL = 4096


def stack_small(tensors: Sequence[Tensor]) -> list[Tensor]:
    groups: dict[Any, list[Tensor]] = {}
    for index, tensor in enumerate(tensors):
        small = isinstance(tensor.size, int) and tensor.size <= SMALL  # a size is symbolic in `jax.export`
        groups.setdefault(jax.typeof(tensor) if small else index, []).append(tensor)
    return [jnp.stack(group) if len(group) > 1 else without_last_ones(group[0]) for group in groups.values()]


def without_last_ones(tensor: Tensor) -> Tensor:
    """Remove axes of length 1. XLA on a CPU sums six times slower if the last axis has length 1.

    `optimization_barrier` stops XLA from restoring the axes.
    """
    if tensor.shape[-1:] != (1,):
        return tensor
    return jax.lax.optimization_barrier(jnp.squeeze(tensor))


def select(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """For 0-d tensors, JAX traces this function faster than `jnp.where`."""
    return jnp.where(condition, yes, no) if condition.ndim else jax.lax.select_n(condition, no, yes)


def wide(tensor: Tensor) -> Tensor:
    return tensor.astype(jnp.complex128 if jnp.iscomplexobj(tensor) else jnp.float64)


def merged_rows(gradient: BCOO) -> tuple[Tensor, Tensor]:
    """Sum the rows that have equal indices. Return (indices, sums), with each sum rounded once.

    The result has as many rows as the gradient stores. Unused rows have indices outside the shape, as in padded BCOO
    arrays.
    """
    outside = jnp.array(gradient.shape[: gradient.n_sparse], gradient.indices.dtype)
    inside = (gradient.indices < outside).all(axis=1)
    indices, inverse = jnp.unique(
        jnp.where(inside[:, None], gradient.indices, outside),
        axis=0,
        size=gradient.nse,
        fill_value=outside,
        return_inverse=True,
    )
    with enable_x64(True):
        shape = (-1, *[1] * (gradient.data.ndim - 1))
        rows = jnp.where(inside.reshape(shape), wide(gradient.data), 0.0)
        sums = jax.ops.segment_sum(rows, inverse.reshape(-1), num_segments=gradient.nse)
        return indices, sums.astype(gradient.dtype)


def magnitudes(tensor: Tensor) -> Tensor:
    """Return |g| in float64. Where g is 0, the derivative is 0."""
    if not jnp.iscomplexobj(tensor):
        numbers = wide(tensor)
        return numbers * jax.lax.stop_gradient(jnp.sign(numbers))  # the derivative of JAX's `abs` is 1 at 0
    parts = [jnp.abs(wide(part)) for part in (tensor.real, tensor.imag)]
    max_abs = jnp.maximum(*map(jax.lax.stop_gradient, parts))
    divisor = jnp.where((max_abs > 0) & (max_abs < math.inf), max_abs, 1.0)
    squares = sum(divided(part, divisor) ** 2 for part in parts)  # not JAX's |z|: see `powers`
    zero = squares == 0
    magnitudes = jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, squares)) * divisor)
    return jnp.where(jnp.isnan(tensor), math.nan, magnitudes)  # |inf + nan j| is inf


def divided(numbers: Tensor, divisor: Scalar) -> Tensor:
    """Divide in two steps, because XLA rounds the reciprocal of a large divisor to 0."""
    half = 1.0 / jnp.sqrt(divisor)
    return numbers * half * half


def powers(tensor: Tensor, p: float, divisor: Scalar | None) -> Tensor:
    """Return |g / divisor|**p without `jnp.power`, whose derivative would not be in float64."""
    if p == 2 and jnp.iscomplexobj(tensor):
        return powers(tensor.real, 2, divisor) + powers(tensor.imag, 2, divisor)
    numbers = wide(tensor) if p == 2 else magnitudes(tensor)
    if divisor is not None and p in (1, 2):
        numbers = divided(numbers, divisor)
    if p == 2:
        return numbers * numbers
    if p == 1:
        return numbers
    assert divisor is not None  # for p other than 1 and 2, callers pass a divisor
    return relative_powers(numbers, p, divisor, where=jnp.where, log=jnp.log, exp=jnp.exp)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def maximum(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return 0 for an empty array. If a value is NaN, return NaN. `jnp.max` can ignore NaN."""
    largest = jnp.max(values, axis=axes, keepdims=True, initial=0.0)
    return jnp.where(jnp.any(jnp.isnan(values), axis=axes, keepdims=True), math.nan, largest)


@maximum.defjvp  # type: ignore[untyped-decorator]
def max_jvp(axes: tuple[int, ...], primals: tuple[Tensor], tangents: tuple[Tensor]) -> tuple[Tensor, Tensor]:
    (values,), (tangent,) = primals, tangents
    with enable_x64(True):
        fixed = jax.lax.stop_gradient(values)
        largest = maximum(fixed, axes)
        is_largest = (fixed == largest) & (fixed > 0)
        count = jnp.maximum(is_largest.sum(axis=axes, keepdims=True, dtype=jnp.float64), 1.0)

        def mean(numbers: Tensor) -> Tensor:
            return jnp.where(is_largest, numbers, 0.0).sum(axis=axes, keepdims=True) / count

        zero = jnp.where(jnp.isfinite(fixed), values - fixed, 0.0)  # with the derivative of the values
        return largest + mean(zero), mean(tangent)


def product(tensor: Tensor, coef: Scalar) -> Tensor:
    if tensor.dtype == jnp.float64:
        return tensor * coef
    if jnp.iscomplexobj(tensor):
        return jax.lax.complex(product(tensor.real, coef), product(tensor.imag, coef))
    return (tensor.astype(jnp.float32) * coef.astype(jnp.float32)).astype(tensor.dtype)


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
        if not self._by_kernels(2):
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
