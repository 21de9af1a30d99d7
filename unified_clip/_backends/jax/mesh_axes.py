"""Inside `shard_map`: over which axes an array is cut, and sums and lists over the devices along them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ..._core.types import Scalar, Tensor
from .block_sums import Axes, counted


def spread(tensor: Tensor, stated: Axes | None) -> Axes:
    """The axes along which devices have parts of an array: those that its type varies over. Over others they have the
    same. `stated`: the axes that are to count; needed where types do not tell."""
    manual = sorted(_manual_axes())
    if unknown := [axis for axis in stated or () if axis not in manual]:
        raise ValueError(
            f"process_group names {', '.join(map(repr, unknown))}, and the axes of shard_map are "
            f"{', '.join(map(repr, manual)) or 'none here'}; name those along which the gradients are cut"
        )
    if not manual:
        return ()
    if not _are_tracked(manual):
        if stated is None:
            raise ValueError(
                "inside pmap, and shard_map with check_vma=False, arrays do not tell along which axes they are cut; "
                "leave check_vma=False out, or state it with process_group: None where each device has whole gradients "
                "(as after pmean), or the axes' names where devices along them have parts"
            )
        return tuple(stated)
    varying = _varying(tensor)
    return tuple(axis for axis in manual if axis in varying and (stated is None or axis in stated))


def refuse_terms(tensor: Tensor) -> None:
    """ValueError for an array of which devices have terms, in `shard_map` or with `Explicit` axes."""
    of = jax.typeof(tensor)
    unreduced = set(getattr(of.sharding.spec, "unreduced", ()))
    if hasattr(of, "manual_axis_type"):  # before JAX 0.10 there are none
        unreduced |= of.manual_axis_type.unreduced
    if unreduced:
        raise ValueError(
            f"a gradient is {of}, unreduced over {', '.join(map(repr, sorted(unreduced)))}: each device has a term of "
            "it; add them up first (by jax.lax.psum inside shard_map, else by jax.sharding.reshard)"
        )


def anywhere(found: Sequence[tuple[Tensor, Axes]]) -> Tensor:
    """Whether any device found something, of what each looked for in its part of several arrays; in one exchange."""
    everywhere = tuple(sorted({axis for _, axes in found for axis in axes}))
    own = functools.reduce(jnp.logical_or, (each for each, _ in found))
    return jax.lax.psum(own.astype(jnp.int32), everywhere) > 0 if everywhere else own


def _manual_axes() -> tuple[str, ...]:
    mesh = jax.sharding.get_abstract_mesh()
    return () if mesh is None or mesh.empty else tuple(mesh.manual_axes)


def _are_tracked(manual: Sequence[str]) -> bool:
    """Return whether types say what varies: here, what surely does."""
    return bool(_varying(jax.lax.axis_index(manual[0])))


def _varying(tensor: Tensor) -> frozenset[str]:
    """Return the axes that an array varies over."""
    of = jax.typeof(tensor)
    found: frozenset[str] = of.manual_axis_type.varying if hasattr(of, "manual_axis_type") else of.vma  # before 0.10
    return found


def total(parts: Sequence[tuple[Scalar, Axes]]) -> Scalar:
    """Return the sum of what devices have of each, in one exchange."""
    everywhere = tuple(sorted({axis for _, axes in parts for axis in axes}))
    own = sum(
        (counted(each, tuple(axis for axis in everywhere if axis not in axes)) for each, axes in parts),
        start=jnp.zeros((), jnp.float64),
    )
    return jax.lax.psum(own, everywhere) if everywhere else own


def of_every_device(own: Scalar, axes: Sequence[str]) -> Tensor:
    """A number, of shape (1,), of every device along these axes. As a sum: unlike a maximum over devices, that has a
    derivative, and keeps NaN."""
    for axis in axes:
        at = jax.lax.axis_index(axis)
        slots = jnp.arange(jax.lax.axis_size(axis)).reshape(-1, *[1] * own.ndim)
        own = jnp.where(slots == at, own, 0.0)
    return jax.lax.psum(own, tuple(axes)).reshape(-1) if axes else own
