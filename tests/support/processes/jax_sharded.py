"""Functions that processes of a `World` run: JAX's arrays over the devices of several processes."""

from __future__ import annotations

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
from support.ranks import IN_HALVES, Gradient, dimensions, lengths
from support.ranks import LAYOUTS as RANK_LAYOUTS

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
DECLARED = {"", "WORLD", *IN_HALVES, "replicated", "distinct"}


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
    of_half = [device for device in jax.devices() if device.process_index in half()]
    lengths_of_mesh = [lengths(size())[each] for each in names]
    devices = np.array(of_half if name == "own" else jax.devices()).reshape(lengths_of_mesh)
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
    if declared in ("replicated", "distinct"):
        return {"ownership": declared}
    if declared == "mesh of a half":
        devices = [device for device in jax.devices() if device.process_index in half()]
        return {"process_group": Mesh(np.array(devices), ("own",))}
    return {"process_group": half() if declared == "half" else range(jax.process_count())} if declared else {}


def half() -> list[int]:
    """Return the half of the processes that contains this process."""
    length = max(jax.process_count() // 2, 1)
    return list(range(process() // length * length, (process() // length + 1) * length))


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


def norm_on_meshes_of_some(kind: str, first: np.ndarray, second: np.ndarray, options: dict[str, Any]) -> float:
    """Return the norm of a gradient on the first of three processes, and one on the two others."""
    on_first, on_last = (lambda: _on(first, 0)), (lambda: _on(first if kind == "copies" else second, 1, 2))
    gradients = [on_first(), on_last()] if kind == "listed by all" else [[on_last, on_first][process() == 0]()]
    return float(uc.clip_grad_norm_(gradients, 1.0, **options))


def norm_of_an_array_on_the_last(array: np.ndarray, devices: int) -> float:
    place = NamedSharding(Mesh(np.array(jax.devices()[-devices:]), ("x",)), PartitionSpec("x"))
    gradient = jax.make_array_from_callback(array.shape, place, lambda index: array[index], dtype=array.dtype)
    return float(uc.get_total_norm([gradient], ownership="distinct"))


def is_counted(_: Any) -> bool:
    """The `ownership` of copies. The first process has one copy. The second and third processes share another copy,
    which counts."""
    return jax.process_index() > 0


# -- norms over some of the processes


def cube() -> Mesh:
    """Rows of two processes, with both devices of each along the last axis."""
    shape = (jax.process_count() // 2, 2, DEVICES)
    return jax.make_mesh(shape, ("replica", "shard", "device"), axis_types=(AxisType.Auto,) * 3)


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


def norm_over(group: str) -> float:
    """Return the norm of an array that each half of the processes has completely."""
    array = placed(np.array([3.0, 4.0], np.float32), cube(), ["shard"])
    return float(uc.get_total_norm([array], process_group=GROUPS[group]()))


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


def replicas_in_group(group: str, drifted: int | None, spec: Sequence[Any] = ()) -> float:
    """Return the norm of copies on half of the processes. The copy of rank `drifted` differs."""
    mesh = mesh_of_half() if group == "indices" else cube()
    place = NamedSharding(mesh, PartitionSpec(*spec))
    own = np.array([3.0, 4.0 + (jax.process_index() == drifted)], np.float32)
    array = jax.make_array_from_callback((2,), place, lambda index: own[index], dtype=own.dtype)
    return float(uc.get_total_norm([array], process_group=GROUPS[group](), check_replicas=True))


def traced(group: str) -> Any:
    return jax.jit(lambda array: uc.get_total_norm([array], process_group=GROUPS[group]()))(jnp.ones(2))


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
