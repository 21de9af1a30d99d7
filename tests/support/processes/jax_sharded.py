"""Functions that processes of a `World` run: JAX's arrays over the devices of several processes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from support.calls import CALLS
from support.jax_layouts import arrays, mesh_of, specs_of
from support.kits import JaxKit
from support.processes.worlds import World, worlds_of_any_size

import unified_clip.jax as uc

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


def worlds() -> AbstractContextManager[Callable[[int], World]]:
    return worlds_of_any_size(start)


KIT = JaxKit()

Shards = list[tuple[Any, np.ndarray]]
"""The indices of each shard, and its numbers."""


def placed(gradients: list[np.ndarray], layout: str) -> list[jax.Array]:
    """Return arrays over the devices of all processes."""
    mesh, specs = mesh_of(jax.device_count()), specs_of(layout, len(gradients))
    return [
        jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), array.__getitem__)
        for array, spec in zip(gradients, specs, strict=True)
    ]


def clip_by_each_function(layout: str) -> dict[str, tuple[np.ndarray | None, list[Shards]]]:
    """Return, for each function, the norm and this process's shards of the results."""
    found = {}
    for name, call in CALLS.items():

        def clip(gradients: list[Any], call: Any = call) -> Any:
            argument = call.prepare(KIT, gradients)
            return call.read(KIT, argument, call.run(KIT, argument, 1.5))

        results, norm = jax.jit(clip)(placed(arrays(), layout))
        shards = [[(each.index, np.asarray(each.data)) for each in result.addressable_shards] for result in results]
        found[name] = None if norm is None else np.asarray(norm), shards
    return found


def norm_of_own() -> float:
    return float(uc.global_norm([jnp.full((), 3.0 + jax.process_index())]))


def norm_with_nan() -> float:
    """Raise an error on all processes: the last one has a NaN."""
    array = np.ones((4, 4), np.float32)
    array[3, 3] = np.nan
    gradients = placed([arrays()[0], array], "rows")
    return float(uc.clip_grad_norm_(gradients, 1.0, error_if_nonfinite=True))
