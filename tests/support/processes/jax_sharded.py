"""What processes of a `World` run: JAX's arrays over the devices of several processes."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.experimental.sparse import BCOO
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support import reference

import unified_clip.jax as uc
from unified_clip._backends import jax as backend
from unified_clip.errors import NonFiniteNormError

DEVICES = 2
"""Of each process."""


def start(rank: int, size: int, meeting: str) -> None:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"  # read with the first array
    place = Path(meeting)
    if rank == 0:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            place.with_suffix(".new").write_text(str(free.getsockname()[1]))
        place.with_suffix(".new").rename(place)
    while not place.exists():
        time.sleep(0.05)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{place.read_text()}", num_processes=size, process_id=rank)


def mesh() -> Mesh:
    return jax.make_mesh((jax.process_count(), DEVICES), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def sharded(array: np.ndarray, spec: Sequence[Any]) -> jax.Array:
    """An array that every process has, over all devices."""
    place = NamedSharding(mesh(), PartitionSpec(*spec))
    return jax.make_array_from_callback(array.shape, place, lambda index: array[index])


def gathered(array: jax.Array) -> np.ndarray:
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def clipped(
    arrays: Sequence[np.ndarray], specs: Sequence[Sequence[Any]], p: float, limit: float, **stated: Any
) -> tuple[float, list[np.ndarray], list[str]]:
    """The norm, the gradients afterwards, gathered, and what was reduced over the processes."""
    given = [sharded(array, spec) for array, spec in zip(arrays, specs, strict=True)]
    held, calls, own = list(given), [], backend.process_group.all_reduce

    def counting(ranks: Any, numbers: Any, reduce: Any) -> list[int]:
        calls.append(reduce.__name__)
        return own(ranks, numbers, reduce)

    backend.process_group.all_reduce = counting
    try:
        norm = uc.clip_grad_norm_(held, limit, p, check_numel=True, **stated)
    finally:
        backend.process_group.all_reduce = own
    assert [new.sharding for new in held] == [old.sharding for old in given]
    return float(norm), [gathered(array) for array in held], calls


def clipped_each(arrays: Sequence[np.ndarray], specs: Sequence[Sequence[Any]], limit: float) -> list[np.ndarray]:
    given = [(None, sharded(array, spec)) for array, spec in zip(arrays, specs, strict=True)]
    return [gathered(new) for _, new in uc.GradientClipByNorm(limit)(given)]


def with_own_array(committed: bool, stated: dict[str, Any]) -> float:
    """The norm of an array over all devices and one that is here alone, of 3 and 4."""
    own = jnp.full((), 4.0)
    if committed:
        own = jax.device_put(own, jax.local_devices()[0])
    return float(uc.get_total_norm([sharded(np.array([3.0, 0, 0, 0], np.float32), ["x"]), own], **stated))


def with_unequal_copy(stated: dict[str, Any]) -> float:
    """The norm of an array over all devices, and one that each process has with other numbers."""
    own = jnp.full((), 3.0 + jax.process_index())
    return float(uc.get_total_norm([sharded(np.array([3.0, 0, 0, 4.0], np.float32), ["x"]), own], **stated))


def rejecting(p: float) -> tuple[str, float]:
    """What is raised where one process has an array of integers, and the norm of the next call."""
    cut = sharded(np.array([3.0, 0, 0, 4.0], np.float32), ["x"])
    own = jnp.ones(2, jnp.int32 if jax.process_index() == 1 else jnp.float32)
    try:
        uc.get_total_norm([cut, own], p)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}", float(uc.get_total_norm([cut]))
    raise AssertionError("integers are no gradients")


def in_another_order() -> float:
    given = [("a", sharded(np.ones(4, np.float32), ["x"])), ("b", sharded(np.ones(8, np.float32), ["x"]))]
    return float(uc.get_total_norm(dict(reversed(given) if jax.process_index() == 1 else given)))


def clipped_with_a_copy(mesh_is_set: bool) -> tuple[float, float, list[bool]]:
    """The norm, that afterwards, and what is committed, of a number that every process has and an array over all."""
    held = [jnp.full((), 4.0), sharded(np.array([3.0, 0, 0, 0], np.float32), ["x"])]
    scope: Any = jax.set_mesh(mesh()) if mesh_is_set else nullcontext()
    with scope:
        clipped, norm = uc.clip_by_global_norm(held, 2.5)
        return float(norm), float(uc.get_total_norm(clipped)), [array.committed for array in clipped]


def norm_of_rows(spec: Sequence[Any], stated: dict[str, Any]) -> float:
    """Of a sparse array with rows of 2, of which the second is there twice, as parts of the processes."""
    data, indices = np.full((4, 2), 2.0, np.float32), np.array([[0], [1], [1], [3]], np.int32)
    rows = BCOO((sharded(data, spec), sharded(indices, spec[:1])), shape=(5, 2))
    return float(uc.get_total_norm([rows], check_numel=True, **stated))


def norm_of_own_rows(stated: dict[str, Any]) -> float:
    own = jax.device_put(jnp.full((1, 2), 4.0), jax.local_devices()[0])
    rows = BCOO((own, jnp.zeros((1, 1), jnp.int32)), shape=(5, 2))
    return float(uc.get_total_norm([sharded(np.full(4, 3.0, np.float32), ["x"]), rows], **stated))


def clipped_by_own_norm(stated: dict[str, Any]) -> Any:
    return uc.clip_by_norm(sharded(np.ones(4, np.float32), ["x"]), 1.0, **stated)


def norm_of_arrays_of_each() -> float:
    """All processes list the arrays of each, and say that they have copies."""
    given = [_on(np.ones(4, np.float32), rank) for rank in range(jax.process_count())]
    return float(uc.get_total_norm(given, ownership="replicated"))


def replicas(spec: Sequence[Any], drifted: int | None, p: float = 2.0) -> float:
    """A clip that compares the copies of an array. A device's copy differs in the last bit."""
    place = NamedSharding(mesh(), PartitionSpec(*spec))
    shards = []
    for device, index in place.addressable_devices_indices_map((4,)).items():
        own = np.arange(4, dtype=np.float32)[index]
        own[-1] = np.nextafter(own[-1], np.float32(9)) if device == jax.devices()[drifted or 0] and drifted else own[-1]
        shards.append(jax.device_put(own, device))
    array = jax.make_array_from_single_device_arrays((4,), place, shards)
    return float(uc.clip_grad_norm_({"weight": array}, 1.0, p, check_replicas=True))


def replicas_on_some(ownership: str) -> float:
    own = jax.device_put(jnp.ones(2), jax.local_devices()[0])
    return float(uc.get_total_norm([own], ownership=ownership, check_replicas=True))


def disagreeing() -> float:
    return float(uc.clip_grad_norm_([sharded(np.ones(4, np.float32), ["x"])], 1.0 + jax.process_index()))


def disagreeing_about_copies() -> float:
    """With one on each process."""
    devices = [jax.local_devices(process_index=rank)[0] for rank in range(jax.process_count())]
    place = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec())
    copy = jax.make_array_from_callback((4,), place, lambda _: np.ones(4, np.float32))
    return float(uc.clip_grad_norm_([copy], 1.0 + jax.process_index()))


def norm_of_four(stated: dict[str, Any]) -> float:
    return float(uc.get_total_norm([sharded(np.ones(4, np.float32), ["x"])], **stated))


def within_bounds() -> Any:
    return uc.clip_by_value(sharded(np.ones(4, np.float32), ["x"]), np.zeros(4, np.float32), 1.0)


def _on(array: np.ndarray, *ranks: int) -> jax.Array:
    """An array over the devices of some processes."""
    devices = [device for device in jax.devices() if device.process_index in ranks]
    place = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec("x"))
    return jax.make_array_from_callback(array.shape, place, lambda index: array[index], dtype=array.dtype)


def clipped_on_meshes_of_some(
    kind: str, first: np.ndarray, second: np.ndarray, limit: float, stated: dict[str, Any] | None
) -> tuple[float, list[np.ndarray]]:
    """The norm of gradients on the first of three processes, and on the others together; and what is here of them
    afterwards. Without a statement each is clipped by its own norm."""
    low, high = (lambda: _on(first, 0)), (lambda: _on(first if kind == "copies" else second, 1, 2))
    held = [low(), high()] if kind == "listed by all" else [low() if jax.process_index() == 0 else high()]
    if stated is None:
        held, norm = [new for _, new in uc.GradientClipByNorm(limit)([(None, old) for old in held])], math.nan
    else:
        norm = float(uc.clip_grad_norm_(held, limit, **stated))
    empty = np.zeros(0, np.float32)
    return norm, [np.concatenate([empty, *(shard.data for shard in array.addressable_shards)]) for array in held]


def norm_of_what_is_elsewhere(array: np.ndarray, devices: int) -> float:
    """All processes list an array of the last one."""
    place = NamedSharding(Mesh(np.array(jax.devices()[-devices:]), ("x",)), PartitionSpec("x"))
    given = jax.make_array_from_callback(array.shape, place, lambda index: array[index], dtype=array.dtype)
    return float(uc.get_total_norm([given], ownership="distinct"))


def is_counted(_: Any) -> bool:
    """With copies on the first process, and on the others together."""
    return jax.process_index() > 0


def with_nan_on_the_last() -> tuple[float, str]:
    array = sharded(np.array([1.0, 2.0, 3.0, np.nan], np.float32), ["x"])
    try:
        uc.clip_grad_norm_([array], 1.0, error_if_nonfinite=True)
    except NonFiniteNormError as error:
        return float(uc.get_total_norm([array])), str(error)
    raise AssertionError("NaN is not finite")


# -- what tests compare

COUNTER_EXAMPLE = np.array([2.0**24, 2.0**12, 2.0**12] + [2.0**-3] * 70 + [0.0] * 3, np.float32)
"""Its norm is just above the middle between two float32, where a float64 sum depends on who adds what."""


def arrays(dtype: str = "float32") -> list[np.ndarray]:
    """Each axis can be cut into four; one array is empty."""
    random = np.random.default_rng(3)
    shapes = [(8, 4), (4, 12), (16, 4), (4, 4), (4, 0), (8, 8)]
    return [reference.array(random.standard_normal(shape) * 3.0**number, dtype) for number, shape in enumerate(shapes)]


def assert_equal(got: list[Any], wanted: list[np.ndarray]) -> None:
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(one), other, strict=True)
