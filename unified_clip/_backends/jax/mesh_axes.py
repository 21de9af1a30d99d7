"""The axes of `shard_map` over which an array is sharded, and sums along them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

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


def check_declared(axes: Axes) -> None:
    manual = sorted(_manual_axes())
    if unknown := [axis for axis in axes if axis not in manual]:
        listed = ", ".join(map(repr, manual))
        problem = f"the axes of shard_map are {listed}" if manual else "this call is not inside shard_map"
        remedy = "Pass the names of the axes over which the gradients are sharded" if manual else "Leave it out"
        raise ValueError(f"process_group contains {', '.join(map(repr, unknown))}, but {problem}. {remedy}")


def sharded_axes(tensor: Tensor, declared: Axes | None) -> Axes:
    """`declared` is None if the caller does not pass process_group. `check_declared` has accepted its axes."""
    manual = sorted(_manual_axes())
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


def counted(value: Scalar, axes: Axes) -> Scalar:
    for axis in axes:
        value = jnp.where(jax.lax.axis_index(axis) == 0, value, 0.0)
    return value


def computed_once(scalar: Scalar) -> Scalar:
    """Keep XLA from computing the scalar again for each use: multiply and divide it by the same factor."""
    factor = jnp.where(jnp.isnan(scalar), 2.0, 1.0)  # XLA cannot simplify this, although NaN stays NaN
    return jax.lax.div(scalar * factor, factor)
