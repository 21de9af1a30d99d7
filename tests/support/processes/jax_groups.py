"""Functions that processes of a `World` run: norms over some of JAX's processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.processes.jax_sharded import COUNTER_EXAMPLE, DEVICES
from support.processes.worlds import error_message

import unified_clip.jax as uc
from unified_clip._backends import jax as backend


class Clip(NamedTuple):
    norm: float
    shards: list[dict[Any, np.ndarray]]
    """For each gradient, the shards of this process after the clip, by position."""

    ranks: list[tuple[int, ...]]


def cube() -> Mesh:
    """Rows of two processes, with both devices of each along the last axis."""
    shape = (jax.process_count() // 2, 2, DEVICES)
    return jax.make_mesh(shape, ("replica", "shard", "device"), axis_types=(AxisType.Auto,) * 3)


def half() -> list[int]:
    """Return the half of the four processes that contains this process."""
    first = jax.process_index() // 2 * 2
    return [first, first + 1]


def mesh_of_half() -> Mesh:
    devices = [device for device in jax.devices() if device.process_index in half()]
    return Mesh(np.array(devices).reshape(2, DEVICES), ("shard", "device"))


def placed(array: np.ndarray, mesh: Mesh, spec: Sequence[Any]) -> jax.Array:
    place = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.make_array_from_callback(array.shape, place, lambda index: array[index], dtype=array.dtype)


GROUPS: dict[str, Callable[[], Any]] = {
    "none given": lambda: "auto",
    "indices": half,
    "a tuple of indices": lambda: tuple(np.array(half())[::-1]),
    "a mesh": mesh_of_half,
    "an axis": lambda: "shard",
    "all indices": lambda: range(4),
    "this process": lambda: [jax.process_index()],
    "the other halves": lambda: [jax.process_index() % 2, jax.process_index() % 2 + 2],
    "the first process": lambda: [0],
    "the first two processes": lambda: [0, 1],
    "the last two processes": lambda: [2, 3],
    "a process too many": lambda: range(jax.process_count() + 1),
    "a negative index": lambda: [-1],
    "no axis": lambda: (),
    "a flag": lambda: [True],
    "devices": lambda: jax.devices()[:2],
    "an array": lambda: np.array([0, 1]),
}

SPECS: list[Any] = [("shard",), ("device", "shard"), (), (("shard", "device"),)]


def model(ranks: str, rank: int) -> list[np.ndarray]:
    """Return the gradients of one model on all processes ("all"), or of the model on this half of the processes."""
    random = np.random.default_rng(0 if ranks == "all" else rank // 2)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in ((8, 4), (4, 6), (2, 2), (12,))]
    return arrays if ranks == "all" else [*arrays[:-1], COUNTER_EXAMPLE.copy()]


def clip_model(on: str, group: str, p: float) -> Clip:
    mesh, arrays = cube() if on == "all" else mesh_of_half(), model(on, jax.process_index())
    clipped_arrays: list[Any] = [placed(array, mesh, spec) for array, spec in zip(arrays, SPECS, strict=True)]
    with_ranks, reduced_ranks = backend.sharded.all_reduce, []

    def counting(members: tuple[int, ...], numbers: Any, reduce: Any) -> list[int]:
        reduced_ranks.append(members)
        return with_ranks(members, numbers, reduce)

    backend.sharded.all_reduce = counting
    try:
        norm = float(uc.clip_grad_norm_(clipped_arrays, 1.5, p, process_group=GROUPS[group](), check_numel=True))
    finally:
        backend.sharded.all_reduce = with_ranks
    shards = [
        {_place(shard.index): np.asarray(shard.data) for shard in array.addressable_shards} for array in clipped_arrays
    ]
    return Clip(norm, shards, reduced_ranks)


def _place(index: Any) -> Any:
    return tuple((along.start, along.stop) for along in index)


def clip_by_own_norm(array: np.ndarray, spec: Sequence[Any], group: str) -> dict[Any, np.ndarray]:
    clipped = uc.clip_by_norm(placed(array, cube(), spec), 1.5, process_group=GROUPS[group]())
    return {_place(shard.index): np.asarray(shard.data) for shard in clipped.addressable_shards}


def norm_of_own(group: str, committed: bool, differs: bool, declared: dict[str, Any]) -> float:
    """Return the norm of 3 and 4 on each process. With `differs`, odd processes have other numbers."""
    own = jnp.array([3.0, 4.0]) * (1 + (differs and jax.process_index() % 2))
    if committed:
        own = jax.device_put(own, jax.local_devices()[0])
    return float(uc.get_total_norm([own], process_group=GROUPS[group](), **declared))


def clipped_by_the_first() -> float | None:
    if jax.process_index():
        return None
    return float(uc.get_total_norm([jnp.array([3.0, 4.0])], process_group=[0], ownership="replicated"))


def norm_of_the_other_half() -> float:
    """Return the norm of an array on two processes. The two others, which do not have it, form a group."""
    mesh = Mesh(np.array([device for device in jax.devices() if device.process_index < 2]), ("x",))
    gradient = placed(np.ones(4, np.float32), mesh, ["x"])
    return float(
        uc.get_total_norm([gradient], process_group=[2, 3] if jax.process_index() > 1 else [jax.process_index()])
    )


def replicas(group: str, drifted: int | None, spec: Sequence[Any] = ()) -> float:
    """Return the norm of copies on half of the processes. The copy of rank `drifted` differs."""
    mesh = mesh_of_half() if group == "indices" else cube()
    place = NamedSharding(mesh, PartitionSpec(*spec))
    own = np.array([3.0, 4.0 + (jax.process_index() == drifted)], np.float32)
    array = jax.make_array_from_callback((2,), place, lambda index: own[index], dtype=own.dtype)
    return float(uc.get_total_norm([array], process_group=GROUPS[group](), check_replicas=True))


def rejected_in_a_half() -> tuple[str, float]:
    array = placed(np.array([3.0, 4.0], np.float32), mesh_of_half(), ["shard"])
    threshold = float("nan") if jax.process_index() == 0 else 1.0
    error = error_message(lambda: uc.clip_grad_norm_([array], threshold, process_group=half()))
    return error, float(uc.get_total_norm([array], process_group=half()))


def traced(group: str) -> Any:
    return jax.jit(lambda array: uc.get_total_norm([array], process_group=GROUPS[group]()))(jnp.ones(2))
