"""Functions that processes of a `World` run: JAX's arrays over the devices of several processes."""

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


def mesh() -> Mesh:
    return jax.make_mesh((jax.process_count(), DEVICES), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def sharded(array: np.ndarray, spec: Sequence[Any]) -> jax.Array:
    place = NamedSharding(mesh(), PartitionSpec(*spec))
    return jax.make_array_from_callback(array.shape, place, lambda index: array[index])


def gathered(array: jax.Array) -> np.ndarray:
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def clip_over_devices(
    arrays: Sequence[np.ndarray], specs: Sequence[Sequence[Any]], p: float, threshold: float, **options: Any
) -> tuple[float, list[np.ndarray], list[str]]:
    """Return the norm, the clipped gradients (gathered), and the kinds of all-reduces."""
    gradients = [sharded(array, spec) for array, spec in zip(arrays, specs, strict=True)]
    clipped_gradients, calls, all_reduce = list(gradients), [], backend.process_group.all_reduce

    def counting(ranks: Any, numbers: Any, reduce: Any) -> list[int]:
        calls.append(reduce.__name__)
        return all_reduce(ranks, numbers, reduce)

    backend.process_group.all_reduce = counting
    try:
        norm = uc.clip_grad_norm_(clipped_gradients, threshold, p, check_numel=True, **options)
    finally:
        backend.process_group.all_reduce = all_reduce
    assert [new.sharding for new in clipped_gradients] == [old.sharding for old in gradients]
    return float(norm), [gathered(array) for array in clipped_gradients], calls


def clip_by_own_norms(
    arrays: Sequence[np.ndarray], specs: Sequence[Sequence[Any]], threshold: float
) -> list[np.ndarray]:
    param_grads = [(None, sharded(array, spec)) for array, spec in zip(arrays, specs, strict=True)]
    return [gathered(clipped) for _, clipped in uc.GradientClipByNorm(threshold)(param_grads)]


def norm_with_own_array(committed: bool, options: dict[str, Any]) -> float:
    own = jnp.full((), 4.0)
    if committed:
        own = jax.device_put(own, jax.local_devices()[0])
    return float(uc.get_total_norm([sharded(np.array([3.0, 0, 0, 0], np.float32), ["x"]), own], **options))


def norm_with_unequal_copy(options: dict[str, Any]) -> float:
    own = jnp.full((), 3.0 + jax.process_index())
    return float(uc.get_total_norm([sharded(np.array([3.0, 0, 0, 4.0], np.float32), ["x"]), own], **options))


def norm_where_one_rejects(p: float) -> tuple[str, float]:
    sharded_gradient = sharded(np.array([3.0, 0, 0, 4.0], np.float32), ["x"])
    own = jnp.ones(2, jnp.int32 if jax.process_index() == 1 else jnp.float32)
    try:
        uc.get_total_norm([sharded_gradient, own], p)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}", float(uc.get_total_norm([sharded_gradient]))
    raise AssertionError("integers are no gradients")


def norm_in_another_order() -> float:
    named_gradients = [("a", sharded(np.ones(4, np.float32), ["x"])), ("b", sharded(np.ones(8, np.float32), ["x"]))]
    return float(uc.get_total_norm(dict(reversed(named_gradients) if jax.process_index() == 1 else named_gradients)))


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


def clip_by_threshold_of_rank() -> float:
    return float(uc.clip_grad_norm_([sharded(np.ones(4, np.float32), ["x"])], 1.0 + jax.process_index()))


def clip_copy_by_threshold_of_rank() -> float:
    devices = [jax.local_devices(process_index=rank)[0] for rank in range(jax.process_count())]
    place = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec())
    copy = jax.make_array_from_callback((4,), place, lambda _: np.ones(4, np.float32))
    return float(uc.clip_grad_norm_([copy], 1.0 + jax.process_index()))


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


def clip_with_nan_on_the_last() -> tuple[float, str]:
    array = sharded(np.array([1.0, 2.0, 3.0, np.nan], np.float32), ["x"])
    try:
        uc.clip_grad_norm_([array], 1.0, error_if_nonfinite=True)
    except NonFiniteNormError as error:
        return float(uc.get_total_norm([array])), str(error)
    raise AssertionError("NaN is not finite")


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
