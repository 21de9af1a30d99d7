"""Float64 arithmetic on JAX's arrays, with derivatives at zero."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO

from ..._compute.device import odd_bits
from ..._core.types import Scalar, Tensor

HALF = (jnp.float16, jnp.bfloat16)

SMALL = 4096
"""Elements up to which tensors are copied into one another's company to be added up: see `fewer`."""


def real_parts(tensor: Tensor) -> list[Tensor]:
    return [tensor.real, tensor.imag] if jnp.iscomplexobj(tensor) else [tensor]


def fewer(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same numbers in fewer tensors: small ones of a type in one. Each sum costs XLA time to compile and to run."""
    groups: dict[Any, list[Tensor]] = {}
    for index, tensor in enumerate(tensors):
        small = isinstance(tensor.size, int) and tensor.size <= SMALL  # it may be symbolic, in `jax.export`
        groups.setdefault(jax.typeof(tensor) if small else index, []).append(tensor)
    return [jnp.stack(group) if len(group) > 1 else without_last_ones(group[0]) for group in groups.values()]


def without_last_ones(tensor: Tensor) -> Tensor:
    """The tensor without axes of length 1, if its last is one: XLA takes six times as long to add it up on a CPU, and
    simplifies a shape back where nothing is in its way."""
    if tensor.shape[-1:] != (1,):
        return tensor
    return jax.lax.optimization_barrier(jnp.squeeze(tensor))


def select(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """`jnp.where`, which takes longer to trace. The condition is 0-d, or has axes of length 1."""
    return jnp.where(condition, yes, no) if condition.ndim else jax.lax.select_n(condition, no, yes)


def wide(tensor: Tensor) -> Tensor:
    return tensor.astype(jnp.complex128 if jnp.iscomplexobj(tensor) else jnp.float64)


def merged_rows(gradient: BCOO) -> tuple[Tensor, Tensor]:
    """Indices and summed rows, as many as were given, padded as BCOO does. Summed in float64 and rounded once."""
    outside = jnp.array(gradient.shape[: gradient.n_sparse], gradient.indices.dtype)
    inside = (gradient.indices < outside).all(axis=1)
    indices, inverse = jnp.unique(
        jnp.where(inside[:, None], gradient.indices, outside),
        axis=0,
        size=gradient.nse,
        fill_value=outside,
        return_inverse=True,
    )
    with jax.enable_x64(True):
        shape = (-1, *[1] * (gradient.data.ndim - 1))
        rows = jnp.where(inside.reshape(shape), wide(gradient.data), 0.0)
        sums = jax.ops.segment_sum(rows, inverse.reshape(-1), num_segments=gradient.nse)
        return indices, sums.astype(gradient.dtype)


def magnitudes(tensor: Tensor) -> Tensor:
    """|g| in float64, with derivative 0 where g is 0, complex numbers included."""
    if not jnp.iscomplexobj(tensor):
        numbers = wide(tensor)
        return jnp.where(numbers == 0, 0.0, jnp.abs(numbers))  # JAX's own has derivative 1 at 0
    parts = [jnp.abs(wide(part)) for part in (tensor.real, tensor.imag)]
    greatest = jnp.maximum(*map(jax.lax.stop_gradient, parts))
    divisor = jnp.where((greatest > 0) & (greatest < math.inf), greatest, 1.0)
    squares = sum(divided(part, divisor) ** 2 for part in parts)  # the derivative of JAX's own |z| is as of its power
    zero = squares == 0
    magnitudes = jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, squares)) * divisor)
    return jnp.where(jnp.isnan(tensor), math.nan, magnitudes)  # |inf + nan j| is inf


def divided(numbers: Tensor, divisor: Scalar) -> Tensor:
    """XLA divides by multiplying with the reciprocal, which for a large divisor it flushes to 0."""
    half = 1.0 / jnp.sqrt(divisor)
    return numbers * half * half


def powers(tensor: Tensor, p: float, divisor: Scalar | None) -> Tensor:
    """|g / divisor|**p. The derivative of JAX's own power is taken outside the scope that has float64."""
    if p == 2 and jnp.iscomplexobj(tensor):
        return powers(tensor.real, 2, divisor) + powers(tensor.imag, 2, divisor)
    numbers = wide(tensor) if p == 2 else magnitudes(tensor)
    if divisor is not None and p in (1, 2):
        numbers = divided(numbers, divisor)
    if p == 2:
        return numbers * numbers
    if p == 1:
        return numbers
    assert divisor is not None  # as every order but 1 and 2 has one
    zero = numbers == 0
    below = jnp.log(jnp.where(zero, divisor, numbers)) - jnp.log(divisor)
    below = jnp.where((below > 0) & (numbers < math.inf), 0.0, below)  # at most 0, but for rounding
    return jnp.where(zero, 0.0, jnp.exp(p * below))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def maximum(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The greatest value along axes, which stay with length 1: 0 for none, NaN where there is any (XLA may drop it)."""
    greatest = jnp.max(values, axis=axes, keepdims=True, initial=0.0)
    return jnp.where(jnp.any(jnp.isnan(values), axis=axes, keepdims=True), math.nan, greatest)


@maximum.defjvp  # type: ignore[untyped-decorator]
def max_jvp(axes: tuple[int, ...], primals: tuple[Tensor], tangents: tuple[Tensor]) -> tuple[Tensor, Tensor]:
    """Shared by all that are the greatest. JAX's own needs float64 where a jitted function is differentiated, and it
    forgets this rule where it differentiates a loop again: what that is for is written out."""
    (values,), (tangent,) = primals, tangents
    with jax.enable_x64(True):
        fixed = jax.lax.stop_gradient(values)
        greatest = maximum(fixed, axes)
        found = (fixed == greatest) & (fixed > 0)
        count = jnp.maximum(found.sum(axis=axes, keepdims=True, dtype=jnp.float64), 1.0)

        def shared(numbers: Tensor) -> Tensor:
            return jnp.where(found, numbers, 0.0).sum(axis=axes, keepdims=True) / count

        nothing = jnp.where(jnp.isfinite(fixed), values - fixed, 0.0)  # but its derivative
        return greatest + shared(nothing), shared(tangent)


def narrowed(value: Tensor, dtype: Any) -> Tensor:
    """Return a bound rounded to a dtype. XLA casts to 16 bits by way of float32, which rounds others twice."""
    if dtype not in HALF or value.dtype in (*HALF, jnp.float32):
        return value.astype(dtype)
    wide = jax.lax.stop_gradient(value.astype(jnp.float64))
    near = wide.astype(jnp.float32)
    bits = odd_bits(wide, near.astype(jnp.float64), jax.lax.bitcast_convert_type(near, jnp.int32), jnp.where)
    once, twice = jax.lax.bitcast_convert_type(bits, jnp.float32).astype(dtype), value.astype(dtype)
    return jnp.where(once == twice, twice, once)  # `twice`, nearly always, has the derivative


def product(tensor: Tensor, coef: Scalar) -> Tensor:
    """tensor * coef, in float32 with coef rounded to it, but for float64 and complex128."""
    if tensor.dtype == jnp.float64:
        return tensor * coef
    if jnp.iscomplexobj(tensor):
        return jax.lax.complex(product(tensor.real, coef), product(tensor.imag, coef))
    return (tensor.astype(jnp.float32) * coef.astype(jnp.float32)).astype(tensor.dtype)
