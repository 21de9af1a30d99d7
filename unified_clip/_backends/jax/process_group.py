"""Process groups of `jax.distributed`, and their all-reduce."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..._core.types import Tensor
from ..._distributed.groups import ProcessGroup
from ..._distributed.ranks import Ranks
from .releases import enable_x64


class JaxGroup(ProcessGroup):
    def __init__(self, ranks: tuple[int, ...]) -> None:
        super().__init__(self, Ranks(ranks), here=jax.process_index())

    def all_reduce(self, numbers: Sequence[int], op: str) -> list[int]:
        if self.size == 1:
            return list(numbers)
        return all_reduce(tuple(self.ranks), numbers, jnp.sum if op == "SUM" else jnp.max)


Job = tuple[Any, int]
"""The device client of JAX, and the rank of this process. A new `jax.distributed.initialize` changes both."""


def _job() -> Job:
    return jax.devices()[0].client, jax.process_index()


def group_of(ranks: tuple[int, ...]) -> JaxGroup:
    return _group_of(ranks, _job())


@functools.cache
def _group_of(ranks: tuple[int, ...], job: Job) -> JaxGroup:
    return JaxGroup(ranks)


@functools.cache
def _mesh_of(ranks: tuple[int, ...], job: Job) -> Mesh:
    """`job` is only a key for the cache."""
    first = {device.process_index: device for device in reversed(jax.devices())}
    return Mesh(np.array([first[rank] for rank in ranks]), ("process",))


def all_reduce(ranks: tuple[int, ...], numbers: Sequence[int], reduce: Callable[..., Tensor]) -> list[int]:
    job = _job()
    mesh = _mesh_of(ranks, job)
    with enable_x64(True), jax.set_mesh(mesh):  # replaces a mesh that the caller has set
        own = np.asarray(numbers, np.int64)[None]
        rows = jax.make_array_from_callback(
            (mesh.size, own.size), NamedSharding(mesh, PartitionSpec("process")), lambda _: own
        )
        reduced: list[int] = np.asarray(_compiled(ranks, reduce, job)(rows).addressable_data(0)).tolist()
        return reduced


@functools.cache
def _compiled(ranks: tuple[int, ...], reduce: Callable[..., Tensor], job: Job) -> Callable[[Tensor], Tensor]:
    replicated = NamedSharding(_mesh_of(ranks, job), PartitionSpec())
    compiled: Callable[[Tensor], Tensor] = jax.jit(functools.partial(reduce, axis=0), out_shardings=replicated)
    return compiled


# -- what callers pass as process_group


def declared_axes(process_group: Any) -> tuple[str, ...] | None:
    """Return the names of mesh axes, or None for a mesh or process indices."""
    if process_group is None:
        return ()
    if isinstance(process_group, str):
        return (process_group,)
    if isinstance(process_group, Mesh):
        return None
    if isinstance(process_group, list | tuple | range):
        if all(isinstance(member, str) for member in process_group):
            return tuple(process_group)
        if all(isinstance(member, numbers.Integral) and not isinstance(member, bool) for member in process_group):
            return None
    raise TypeError(
        f"process_group is {process_group!r}. Pass the name of a mesh axis, a tuple of such names, None, or 'auto'. "
        "With several processes, outside of shard_map, pass a jax.sharding.Mesh or a list of process indices"
    )


def declared_group(process_group: Any) -> JaxGroup:
    count = jax.process_count()
    if isinstance(process_group, str) and process_group == "auto":
        return group_of(tuple(range(count)))
    if isinstance(process_group, Mesh):
        return group_of(_on_mesh(process_group))
    if not process_group:
        raise ValueError(
            f"process_group is {process_group!r}, which contains no process. To use only the gradients of this "
            "process, pass None"
        )
    if declared_axes(process_group):
        raise ValueError(
            f"process_group is {process_group!r}, but this call is not inside shard_map, where axes have names. Pass a "
            "jax.sharding.Mesh, or a list of process indices"
        )
    ranks = tuple(sorted(set(map(int, process_group))))
    if ranks[0] < 0 or ranks[-1] >= count:
        raise ValueError(
            f"process_group is {process_group!r}, but there are {count} processes. Pass process indices from 0 to "
            f"{count - 1}"
        )
    return group_of(ranks)


@functools.cache
def _on_mesh(mesh: Mesh) -> tuple[int, ...]:
    return tuple(sorted({device.process_index for device in mesh.devices.flat}))
