"""Norms of JAX's arrays where there is no memory to look at: correctly rounded, over all devices that hold parts.

A float64 sum settles nearly every norm: it says how much it may have lost, and a float32 result is in doubt only where
the middle between two numbers is that close. Then a loop, which otherwise runs no turn, compares the exact sum with
that middle. Between devices of `shard_map` go integers, in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._core.exact import BLOCK
from ..._core.types import Scalar, Tensor

Axes = tuple[str, ...]

LOWEST, WIDTH, WINDOWS = -300, 16, 38
"""A sum is cut into windows of 16 bits, from 2**-300, below the square of the smallest float32, up to 2**308: up to
2**37 such numbers add up in float64 without an error."""

BASE = 2.0**WIDTH

UNITS = np.ldexp(1.0, -(LOWEST + WIDTH * np.arange(WINDOWS + 1)))
"""What makes integers of a number, for each window and the one above it."""


def norms(groups: Sequence[Sequence[Tensor]], p: int, spread: Callable[[Tensor], Axes]) -> Scalar:
    """Return the p-norm (1 or 2) of each group of real arrays, held in float64 and rounded to float32.

    `spread`: the axes of `shard_map` over which an array is cut; over the others, all devices have the same.
    """
    over = [[spread(tensor) for tensor in group] for group in groups]
    everywhere = tuple(sorted({axis for axes in over for each in axes for axis in each}))
    owned = tuple(tuple(tuple(a for a in everywhere if a not in each) for each in axes) for axes in over)
    sums = [[_sum(tensor, p) for tensor in group] for group in groups]
    total = _over_devices(_stacked([[total for total, _ in each] for each in sums], owned), everywhere)
    lost = np.array([max((terms for _, terms in each), default=0) + len(each) + WINDOWS for each in sums]) * 2.0**-52
    is_zero = total <= 0
    root = jnp.where(is_zero, 1.0, total)
    root = jnp.where(is_zero, 0.0, jnp.sqrt(root) if p == 2 else root)
    fixed = tuple(tuple(map(jax.lax.stop_gradient, group)) for group in groups)
    nearest = _nearest(jax.lax.stop_gradient(total), jax.lax.stop_gradient(root), lost, fixed, p, owned, everywhere)
    return root * jax.lax.stop_gradient(jnp.where(jnp.isfinite(nearest) & ~is_zero, nearest / root, 1.0))


def _sum(tensor: Tensor, p: int) -> tuple[Scalar, int]:
    """The sum of |g|**p, and how many times 2**-53 of itself it may be off by: as many as additions follow on one
    another. A long sum is that of sums over the last axes, as many of them as make the fewest."""
    powers = _powers(tensor, p)
    if tensor.size <= BLOCK:
        return jnp.sum(powers), tensor.size
    lengths = [(math.prod(tensor.shape[:cut]), math.prod(tensor.shape[cut:])) for cut in range(tensor.ndim)]
    cut = min(range(tensor.ndim), key=lambda cut: sum(lengths[cut]))
    return jnp.sum(computed_once(jnp.sum(powers, axis=tuple(range(cut, tensor.ndim))))), sum(lengths[cut])


def _powers(tensor: Tensor, p: int) -> Tensor:
    """|g|**p in float64, exactly, with derivative 0 where g is 0."""
    numbers = tensor.astype(jnp.float64)
    if p == 2:
        return numbers * numbers
    return jnp.where(numbers == 0, 0.0, jnp.abs(numbers))


def computed_once(scalar: Scalar) -> Scalar:
    """The same numbers, as a quotient. XLA computes divisions once, but repeats cheaper operations, the sum over all
    tensors among them, in every fusion that needs their result: in the scaling of every tensor."""
    factor = jnp.where(jnp.isnan(scalar), 2.0, 1.0)  # that NaN stays NaN anyway is not known to XLA
    return jax.lax.div(scalar * factor, factor)


def _stacked(sums: Sequence[Sequence[Scalar]], owned: Sequence[Sequence[Axes]]) -> Scalar:
    """Return the sum of each group, on the devices that count."""
    return jnp.stack([
        sum(
            (counted(each, axes) for each, axes in zip(group, own, strict=True)), start=jnp.zeros((), jnp.float64)
        )
        for group, own in zip(sums, owned, strict=True)
    ])  # fmt: skip


def counted(value: Scalar, axes: Axes) -> Scalar:
    """Return a value, on the device that is the first along all of these axes; elsewhere 0."""
    for axis in axes:
        value = jnp.where(jax.lax.axis_index(axis) == 0, value, 0.0)
    return value


def _over_devices(own: Scalar, axes: Axes) -> Scalar:
    """Sums over devices, from one exchange: as integers, which no order changes, and with a derivative."""
    if not axes:
        return computed_once(own)
    fixed = jax.lax.stop_gradient(own)
    finite = jnp.isfinite(fixed)
    integers = _windows(jnp.where(finite, fixed, 0.0))
    nothing = jnp.where(finite, own - fixed, 0.0)  # but its derivative
    sent = jnp.stack([*integers, jnp.isnan(fixed).astype(own.dtype), jnp.isinf(fixed).astype(own.dtype), nothing])
    found = jax.lax.psum(sent, axes)
    # Not by slices, whose derivative needs float64 outside of the scope that has it.
    total = jnp.sum(found * jnp.asarray([*1 / UNITS[:-1], 0.0, 0.0, 1.0])[:, None], axis=0)
    nan, inf = jax.lax.stop_gradient(found)[WINDOWS : WINDOWS + 2]
    return computed_once(jnp.where(nan > 0, math.nan, jnp.where(inf > 0, math.inf, total)))


def _windows(numbers: Tensor) -> Tensor:
    """Along a new first axis, what each window holds of numbers that are not negative."""
    units = jnp.asarray(UNITS).reshape(-1, *[1] * numbers.ndim)
    return _window(jnp.expand_dims(numbers, 0), units[:-1], units[1:])


def _window(numbers: Tensor, unit: Any, above: Any) -> Tensor:
    return jnp.floor(numbers * unit) - jnp.floor(numbers * above) * BASE


@functools.partial(jax.jit, static_argnums=(4, 5, 6))
def _nearest(
    total: Scalar, root: Scalar, lost: Any, groups: Any, p: int, owned: Sequence[Sequence[Axes]], axes: Axes
) -> Scalar:
    """The float32 numbers nearest to the roots of exact sums, of which the totals have lost so much of themselves."""
    bits = jax.lax.bitcast_convert_type(root, jnp.uint64) & np.uint64(0x7FF << 52)
    unit = jnp.maximum(jax.lax.bitcast_convert_type(bits, jnp.float64) * 2.0**-23, 2.0**-149)
    below = jnp.floor(root / unit)
    middle = (below + 0.5) * unit
    middle = middle * middle if p == 2 else middle  # exactly
    doubt = jnp.isfinite(total) & (total > 0) & (jnp.abs(total - middle) <= total * lost)

    def settled(state: tuple[Any, Scalar]) -> tuple[Any, Scalar]:
        here = jax.lax.optimization_barrier((groups, state[1]))[0]  # else XLA does what it can outside of the loop
        exact = _exact_windows(here, p, owned, axes)
        return state[0] & False, _sign(exact - _windows(middle))

    side = jax.lax.while_loop(lambda state: state[0], settled, (jnp.any(doubt), jnp.sign(total - middle)))[1]
    above = (side > 0) | ((side == 0) & (below % 2 == 1))
    return jnp.where(jnp.isfinite(total) & (total > 0), (below + above.astype(below.dtype)) * unit, root)


def _exact_windows(groups: Any, p: int, owned: Sequence[Sequence[Axes]], axes: Axes) -> Tensor:
    """Return the sums of |g|**p, cut into windows: integers that have not been carried yet."""

    def window(_: None, units: tuple[Scalar, Scalar]) -> tuple[None, Scalar]:
        return None, _stacked([[jnp.sum(_window(_powers(g, p), *units)) for g in group] for group in groups], owned)

    own = jax.lax.scan(window, None, (jnp.asarray(UNITS[:-1]), jnp.asarray(UNITS[1:])))[1]
    return jax.lax.psum(own, axes) if axes else own


def _sign(windows: Tensor) -> Scalar:
    """Of sums of windows, each an integer of either sign."""

    def carried(carry: Scalar, window: Scalar) -> tuple[Scalar, Scalar]:
        whole = jnp.floor((window + carry) / BASE)
        return whole, window + carry - whole * BASE

    top, rest = jax.lax.scan(carried, windows[0] * 0, windows)
    return jnp.where(top == 0, jnp.any(rest != 0, axis=0).astype(top.dtype), jnp.sign(top))
