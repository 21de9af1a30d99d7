"""Functions that processes of a `World` run: JAX's arrays over the devices of several processes."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support import reference
from support.kits import JaxKit
from support.processes.worlds import World, record_calls, worlds_of_any_size
from support.ranks import LAYOUTS as RANK_LAYOUTS
from support.ranks import Gradient, dimensions, lengths

import unified_clip.jax as uc
from unified_clip._backends import jax as backend

DEVICES = 2
"""The number of devices of each process."""


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


# -- for `support.ranks`, to which a device is a rank

KIT, DTYPES, SIZES = JaxKit(), ("float32", "bfloat16", "float16", "complex64"), (2,)
LAYOUTS = {name: each for name, each in RANK_LAYOUTS.items() if not {"P", "M"} & set(each[1].split())}
LAYOUTS = {name: each for name, each in LAYOUTS.items() if each[0] not in ("dp", "tp")}
DECLARED = {"", "WORLD"}


def ranks_of(processes: int) -> int:
    return processes * DEVICES


def fitting(array: np.ndarray, layout: str) -> np.ndarray:
    """Return a similar array whose axes the devices can divide."""
    array = array.reshape(1) if array.ndim == 0 and "S" in LAYOUTS[layout][1] else array
    array = array[:, None] if array.ndim == 1 and layout == "two dimensions" else array
    return np.pad(array, [(0, -length % 4) for length in array.shape]) if array.ndim else array


def size() -> int:
    return jax.device_count()


process = jax.process_index


def ranks() -> list[int]:
    return [index for index, device in enumerate(jax.devices()) if device.process_index == process()]


def tensor(parts: list[np.ndarray], gradient: Gradient) -> Any:
    name, _ = LAYOUTS[gradient.layout]
    if not name:
        return jnp.asarray(parts[0])
    names = list(dimensions(gradient.layout))
    devices = np.array(jax.devices()).reshape([lengths(size())[each] for each in names])
    axes: list[list[str]] = [[] for _ in gradient.array.shape]
    for each, placement in dimensions(gradient.layout).items():
        if placement != "R":
            axes[int(placement[1:])].append(each)
    spec = PartitionSpec(*(tuple(each) or None for each in axes))
    shards = [jax.device_put(part, device) for part, device in zip(parts, jax.local_devices(), strict=True)]
    place = NamedSharding(Mesh(devices, names), spec)
    return jax.make_array_from_single_device_arrays(gradient.array.shape, place, shards)


def parts(tensor: Any) -> list[np.ndarray]:
    shards = sorted(tensor.addressable_shards, key=lambda shard: shard.device.id)
    return [np.asarray(shard.data) for shard in shards] * (DEVICES // len(shards))


def is_plain(tensor: Any) -> bool:
    return tensor.is_fully_replicated


def keywords(declared: str) -> dict[str, Any]:
    return {"process_group": range(jax.process_count())} if declared else {}


def record_collectives() -> AbstractContextManager[list[str]]:
    return record_calls(backend.sharded, ("all_reduce",))


def worlds() -> AbstractContextManager[Callable[[int], World]]:
    return worlds_of_any_size(start)


def mesh() -> Mesh:
    return jax.make_mesh((jax.process_count(), DEVICES), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def sharded(array: np.ndarray, spec: Sequence[Any]) -> jax.Array:
    place = NamedSharding(mesh(), PartitionSpec(*spec))
    return jax.make_array_from_callback(array.shape, place, lambda index: array[index])


def norm_with_own_array(committed: bool, options: dict[str, Any]) -> float:
    own = jnp.full((), 4.0)
    if committed:
        own = jax.device_put(own, jax.local_devices()[0])
    return float(uc.get_total_norm([sharded(np.array([3.0, 0, 0, 0], np.float32), ["x"]), own], **options))


def norm_with_unequal_copy(options: dict[str, Any]) -> float:
    own = jnp.full((), 3.0 + jax.process_index())
    return float(uc.get_total_norm([sharded(np.array([3.0, 0, 0, 4.0], np.float32), ["x"]), own], **options))


def clip_with_a_copy(mesh_is_set: bool) -> tuple[float, float, list[bool]]:
    """Clip a number that every process has, and an array over all devices.

    Return the norm before and after the clip, and whether each result is committed.
    """
    gradients = [jnp.full((), 4.0), sharded(np.array([3.0, 0, 0, 0], np.float32), ["x"])]
    scope: Any = jax.set_mesh(mesh()) if mesh_is_set else nullcontext()
    with scope:
        clipped, norm = uc.clip_by_global_norm(gradients, 2.5)
        return float(norm), float(uc.get_total_norm(clipped)), [array.committed for array in clipped]


def norm_of_rows(spec: Sequence[Any], options: dict[str, Any]) -> float:
    """Return the norm of a sparse array, which has its second row twice, sharded over the processes."""
    data, indices = np.full((4, 2), 2.0, np.float32), np.array([[0], [1], [1], [3]], np.int32)
    rows = BCOO((sharded(data, spec), sharded(indices, spec[:1])), shape=(5, 2))
    return float(uc.get_total_norm([rows], check_numel=True, **options))


def norm_of_own_rows(options: dict[str, Any]) -> float:
    own = jax.device_put(jnp.full((1, 2), 4.0), jax.local_devices()[0])
    rows = BCOO((own, jnp.zeros((1, 1), jnp.int32)), shape=(5, 2))
    return float(uc.get_total_norm([sharded(np.full(4, 3.0, np.float32), ["x"]), rows], **options))


def clipped_by_own_norm(options: dict[str, Any]) -> Any:
    return uc.clip_by_norm(sharded(np.ones(4, np.float32), ["x"]), 1.0, **options)


def norm_of_arrays_of_each() -> float:
    gradients = [_on(np.ones(4, np.float32), rank) for rank in range(jax.process_count())]
    return float(uc.get_total_norm(gradients, ownership="replicated"))


def replicas(spec: Sequence[Any], drifted: int | None, p: float = 2.0) -> float:
    """Clip an array and compare its copies. The copy on device `drifted` differs in the last bit."""
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


def norm_of_four(options: dict[str, Any]) -> float:
    return float(uc.get_total_norm([sharded(np.ones(4, np.float32), ["x"])], **options))


def clip_within_bounds() -> Any:
    return uc.clip_by_value(sharded(np.ones(4, np.float32), ["x"]), np.zeros(4, np.float32), 1.0)


def _on(array: np.ndarray, *ranks: int) -> jax.Array:
    devices = [device for device in jax.devices() if device.process_index in ranks]
    place = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec("x"))
    return jax.make_array_from_callback(array.shape, place, lambda index: array[index], dtype=array.dtype)


def clip_on_meshes_of_some(
    kind: str, first: np.ndarray, second: np.ndarray, threshold: float, options: dict[str, Any] | None
) -> tuple[float, list[np.ndarray]]:
    """Clip a gradient on the first of three processes, and one on the two others.

    Return the norm, and the local shards after the clip. With `options=None`, clip each gradient by its own norm.
    """
    on_first, on_last = (lambda: _on(first, 0)), (lambda: _on(first if kind == "copies" else second, 1, 2))
    gradients = (
        [on_first(), on_last()] if kind == "listed by all" else [on_first() if jax.process_index() == 0 else on_last()]
    )
    if options is None:
        gradients, norm = (
            [clipped for _, clipped in uc.GradientClipByNorm(threshold)([(None, gradient) for gradient in gradients])],
            math.nan,
        )
    else:
        norm = float(uc.clip_grad_norm_(gradients, threshold, **options))
    empty = np.zeros(0, np.float32)
    return norm, [np.concatenate([empty, *(shard.data for shard in array.addressable_shards)]) for array in gradients]


def norm_of_an_array_on_the_last(array: np.ndarray, devices: int) -> float:
    place = NamedSharding(Mesh(np.array(jax.devices()[-devices:]), ("x",)), PartitionSpec("x"))
    gradient = jax.make_array_from_callback(array.shape, place, lambda index: array[index], dtype=array.dtype)
    return float(uc.get_total_norm([gradient], ownership="distinct"))


def is_counted(_: Any) -> bool:
    """The `ownership` of copies. The first process has one copy. The second and third processes share another copy,
    which counts."""
    return jax.process_index() > 0


# -- arrays and comparison

COUNTER_EXAMPLE = np.array([2.0**24, 2.0**12, 2.0**12] + [2.0**-3] * 70 + [0.0] * 3, np.float32)
"""Its norm is just above the midpoint of two float32, so a float64 sum depends on the order of additions."""


def arrays(dtype: str = "float32") -> list[np.ndarray]:
    """Return arrays whose axes can be sharded over four devices. One array is empty."""
    random = np.random.default_rng(3)
    shapes = [(8, 4), (4, 12), (16, 4), (4, 4), (4, 0), (8, 8)]
    return [reference.array(random.standard_normal(shape) * 3.0**number, dtype) for number, shape in enumerate(shapes)]


def assert_equal(results: list[Any], expected: list[np.ndarray]) -> None:
    for result, expected_result in zip(results, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(result), expected_result, strict=True)
