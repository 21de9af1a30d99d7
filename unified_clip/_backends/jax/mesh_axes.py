"""The axes of `shard_map` over which an array is sharded, and sums and norms along them."""

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


def declared_axes(process_group: Any) -> Axes:
    """Return the names of mesh axes in the caller's `process_group`. None contains no axis."""
    axes = (process_group,) if isinstance(process_group, str) else process_group
    if axes is None:
        return ()
    if not isinstance(axes, list | tuple) or not axes or not all(isinstance(axis, str) for axis in axes):
        raise TypeError(
            f"process_group is {process_group!r}. Pass the name of a mesh axis, a tuple of such names, None, or 'auto'"
        )
    return tuple(axes)


def sharded_axes(tensor: Tensor, declared: Axes | None) -> Axes:
    """`declared` is None if the caller does not pass process_group."""
    manual = sorted(_manual_axes())
    if unknown := [axis for axis in declared or () if axis not in manual]:
        listed = ", ".join(map(repr, manual))
        problem = f"the axes of shard_map are {listed}" if manual else "this call is not inside shard_map"
        raise ValueError(
            f"process_group contains {', '.join(map(repr, unknown))}, but {problem}. Pass the names of the axes over "
            "which the gradients are sharded"
        )
    if not manual:
        return ()
    if not _are_tracked(manual):
        if declared is None:
            raise ValueError(
                "Inside pmap, or inside shard_map with check_vma=False, unified_clip cannot detect sharded axes. "
                "Remove check_vma=False, or pass process_group. Pass process_group=None if each device has "
                "complete gradients (as after pmean). Otherwise, pass the names of the axes over which gradients are "
                "sharded"
            )
        return tuple(declared)
    varying = _varying(tensor)
    return tuple(axis for axis in manual if axis in varying and (declared is None or axis in declared))


def reject_unreduced(tensor: Tensor) -> None:
    of = jax.typeof(tensor)
    unreduced = set(getattr(of.sharding.spec, "unreduced", ()))
    if hasattr(of, "manual_axis_type"):  # JAX before 0.10 has none
        unreduced |= of.manual_axis_type.unreduced
    if unreduced:
        raise ValueError(
            f"a gradient of type {of} is unreduced over {', '.join(map(repr, sorted(unreduced)))}. Reduce the "
            "gradient first. Inside shard_map, call jax.lax.psum. Outside shard_map, call jax.sharding.reshard"
        )


def any_device(flags: Sequence[tuple[Tensor, Axes]]) -> Tensor:
    """Return whether a flag is true on any device. `flags` has tuples (flag, axes along which the flag can differ)."""
    all_axes = tuple(sorted({axis for _, axes in flags for axis in axes}))
    local = functools.reduce(jnp.logical_or, (flag for flag, _ in flags))
    return jax.lax.psum(local.astype(jnp.int32), all_axes) > 0 if all_axes else local


def _manual_axes() -> tuple[str, ...]:
    mesh = jax.sharding.get_abstract_mesh()
    return () if mesh is None or mesh.empty else tuple(mesh.manual_axes)


def _are_tracked(manual: Sequence[str]) -> bool:
    return bool(_varying(jax.lax.axis_index(manual[0])))


def _varying(tensor: Tensor) -> frozenset[str]:
    of = jax.typeof(tensor)
    axes: frozenset[str] = of.manual_axis_type.varying if hasattr(of, "manual_axis_type") else of.vma  # before 0.10
    return axes


def sum_over_devices(sums: Sequence[tuple[Scalar, Axes]]) -> Scalar:
    all_axes = tuple(sorted({axis for _, axes in sums for axis in axes}))
    local = sum(
        (counted(scalar, tuple(axis for axis in all_axes if axis not in axes)) for scalar, axes in sums),
        start=jnp.zeros((), jnp.float64),
    )
    return jax.lax.psum(local, all_axes) if all_axes else local


def gather_scalar(scalar: Scalar, axes: Sequence[str]) -> Tensor:
    """Return a vector with the scalars of all devices along the axes.

    The collective is a sum, because a maximum would have no derivative and could ignore NaN.
    """
    for axis in axes:
        at = jax.lax.axis_index(axis)
        slots = jnp.arange(jax.lax.axis_size(axis), dtype=at.dtype).reshape(-1, *[1] * scalar.ndim)
        scalar = jnp.where(slots == at, scalar, 0.0)
    return jax.lax.psum(scalar, tuple(axes)).reshape(-1) if axes else scalar


# -- correctly rounded norms of traced and sharded arrays, over all devices
#
# A float64 sum with an error bound is enough to round nearly every norm. If a midpoint between two float32 numbers is
# inside the error interval, a loop compares the exact sum with the midpoint.

LOWEST, WIDTH, WINDOWS = -300, 16, 38
"""A sum is stored as 38 integers (windows) of 16 bits each, from the bit 2**-300 to the bit 2**307.

The square of the smallest float32 number is above 2**-300. float64 represents the sum of up to 2**37 of these
16-bit integers exactly.
"""

BASE = 2.0**WIDTH

UNITS = np.ldexp(1.0, -(LOWEST + WIDTH * np.arange(WINDOWS + 1)))


def norms(groups: Sequence[Sequence[Tensor]], p: int, sharded_axes: Callable[[Tensor], Axes]) -> Scalar:
    """p is 1 or 2. The norms are rounded to float32, and stored as float64."""
    axes_of = [[sharded_axes(tensor) for tensor in group] for group in groups]
    all_axes = tuple(sorted({axis for group in axes_of for axes in group for axis in axes}))
    owned = tuple(tuple(tuple(a for a in all_axes if a not in axes) for axes in group) for group in axes_of)
    sums = [[_sum(tensor, p) for tensor in group] for group in groups]
    total = _over_devices(_stacked([[total for total, _ in group] for group in sums], owned), all_axes)
    lost = np.array([max((count for _, count in group), default=0) + len(group) + WINDOWS for group in sums]) * 2.0**-52
    is_zero = total <= 0
    root = jnp.where(is_zero, 1.0, total)
    root = jnp.where(is_zero, 0.0, jnp.sqrt(root) if p == 2 else root)
    fixed = tuple(tuple(map(jax.lax.stop_gradient, group)) for group in groups)
    nearest = _nearest(jax.lax.stop_gradient(total), jax.lax.stop_gradient(root), lost, fixed, p, owned, all_axes)
    return root * jax.lax.stop_gradient(jnp.where(jnp.isfinite(nearest) & ~is_zero, nearest / root, 1.0))


def _sum(tensor: Tensor, p: int) -> tuple[Scalar, int]:
    """Return (sum of |g|**p, number of additions). The relative error is at most additions * 2**-53."""
    powers = _powers(tensor, p)
    if tensor.size <= BLOCK:
        return jnp.sum(powers), tensor.size
    lengths = [(math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis:])) for axis in range(tensor.ndim)]
    split = min(range(tensor.ndim), key=lambda axis: sum(lengths[axis]))
    return jnp.sum(computed_once(jnp.sum(powers, axis=tuple(range(split, tensor.ndim))))), sum(lengths[split])


def _powers(tensor: Tensor, p: int) -> Tensor:
    numbers = tensor.astype(jnp.float64)
    if p == 2:
        return numbers * numbers
    return numbers * jax.lax.stop_gradient(jnp.sign(numbers))


def computed_once(scalar: Scalar) -> Scalar:
    """Keep XLA from computing the scalar again for each use: multiply and divide it by the same factor."""
    factor = jnp.where(jnp.isnan(scalar), 2.0, 1.0)  # XLA cannot simplify this, although NaN stays NaN
    return jax.lax.div(scalar * factor, factor)


def _stacked(sums: Sequence[Sequence[Scalar]], owned: Sequence[Sequence[Axes]]) -> Scalar:
    return jnp.stack([
        sum(
            (counted(scalar, axes) for scalar, axes in zip(group, own, strict=True)), start=jnp.zeros((), jnp.float64)
        )
        for group, own in zip(sums, owned, strict=True)
    ])  # fmt: skip


def counted(value: Scalar, axes: Axes) -> Scalar:
    for axis in axes:
        value = jnp.where(jax.lax.axis_index(axis) == 0, value, 0.0)
    return value


def _over_devices(own: Scalar, axes: Axes) -> Scalar:
    """Return the sums over all devices. Integers are added, so every order of devices gives the same sums."""
    if not axes:
        return computed_once(own)
    fixed = jax.lax.stop_gradient(own)
    finite = jnp.isfinite(fixed)
    integers = _windows(jnp.where(finite, fixed, 0.0))
    zero = jnp.where(finite, own - fixed, 0.0)  # with the derivative of the sums
    sent = jnp.stack([*integers, jnp.isnan(fixed).astype(own.dtype), jnp.isinf(fixed).astype(own.dtype), zero])
    reduced = jax.lax.psum(sent, axes)
    # A slice's derivative would need float64 outside of the scope with float64.
    total = jnp.sum(reduced * jnp.asarray([*1 / UNITS[:-1], 0.0, 0.0, 1.0])[:, None], axis=0)
    nan, inf = jax.lax.stop_gradient(reduced)[WINDOWS : WINDOWS + 2]
    return computed_once(jnp.where(nan > 0, math.nan, jnp.where(inf > 0, math.inf, total)))


def _windows(numbers: Tensor) -> Tensor:
    units = jnp.asarray(UNITS).reshape(-1, *[1] * numbers.ndim)
    return _window(jnp.expand_dims(numbers, 0), units[:-1], units[1:])


def _window(numbers: Tensor, unit: Any, above: Any) -> Tensor:
    return jnp.floor(numbers * unit) - jnp.floor(numbers * above) * BASE


@functools.partial(jax.jit, static_argnums=(4, 5, 6))
def _nearest(
    total: Scalar, root: Scalar, lost: Any, groups: Any, p: int, owned: Sequence[Sequence[Axes]], axes: Axes
) -> Scalar:
    """Return the float32 numbers that are nearest to the roots of the exact sums.

    lost: A bound on the relative error of each number in `total`.
    """
    bits = jax.lax.bitcast_convert_type(root, jnp.uint64) & np.uint64(0x7FF << 52)
    unit = jnp.maximum(jax.lax.bitcast_convert_type(bits, jnp.float64) * 2.0**-23, 2.0**-149)
    below = jnp.floor(root / unit)
    middle = (below + 0.5) * unit
    middle = middle * middle if p == 2 else middle  # exact in float64
    doubt = jnp.isfinite(total) & (total > 0) & (jnp.abs(total - middle) <= total * lost)

    def decide(state: tuple[Any, Scalar]) -> tuple[Any, Scalar]:
        inputs = jax.lax.optimization_barrier((groups, state[1]))[0]  # else XLA moves work out of the loop
        exact = _exact_windows(inputs, p, owned, axes)
        return state[0] & False, _sign(exact - _windows(middle))

    side = jax.lax.while_loop(lambda state: state[0], decide, (jnp.any(doubt), jnp.sign(total - middle)))[1]
    above = (side > 0) | ((side == 0) & (below % 2 == 1))
    return jnp.where(jnp.isfinite(total) & (total > 0), (below + above.astype(below.dtype)) * unit, root)


def _exact_windows(groups: Any, p: int, owned: Sequence[Sequence[Axes]], axes: Axes) -> Tensor:
    """Return the windows of the exact sums of |g|**p. Without carries, a window can have more than 16 bits."""

    def window(_: None, units: tuple[Scalar, Scalar]) -> tuple[None, Scalar]:
        return None, _stacked([[jnp.sum(_window(_powers(g, p), *units)) for g in group] for group in groups], owned)

    own = jax.lax.scan(window, None, (jnp.asarray(UNITS[:-1]), jnp.asarray(UNITS[1:])))[1]
    return jax.lax.psum(own, axes) if axes else own


def _sign(windows: Tensor) -> Scalar:
    def carried(carry: Scalar, window: Scalar) -> tuple[Scalar, Scalar]:
        new_carry = jnp.floor((window + carry) / BASE)
        return new_carry, window + carry - new_carry * BASE

    top, rest = jax.lax.scan(carried, windows[0] * 0, windows)
    return jnp.where(top == 0, jnp.any(rest != 0, axis=0).astype(top.dtype), jnp.sign(top))
