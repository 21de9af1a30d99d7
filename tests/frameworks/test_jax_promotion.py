"""JAX: strict promotion of ranks and dtypes, on one device and on four."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.calls import CALLS, function
from support.kits import JaxKit
from support.tiers import nightly, quick

import unified_clip.jax as uc
from unified_clip import ClipConfig
from unified_clip._backends.jax import mesh_axes

Tree = dict[str, jax.Array]
Clip = Callable[[Tree], Any]


def called(name: str) -> Clip:
    return lambda tree: tuple(function(JaxKit.__new__(JaxKit), name, 1.0)(list(tree.values())))


NAMES: dict[str, Clip] = {name: called(name) for name in CALLS} | {
    "clip_by_global_norm with tensors": lambda tree: uc.clip_by_global_norm(tree, jnp.float32(1.0), jnp.float32(9.0)),
    "clip_by_norm of slices": lambda tree: uc.clip_by_norm(tree["kernel"], 1.0, axes=-1),
    "bounds that are tensors": lambda tree: uc.clip_by_value(tree["kernel"], -1.0, jnp.full_like(tree["kernel"], 1.0)),
    "ClipConfig": lambda tree: ClipConfig(
        rule="global_norm",
        threshold=1.0,
        groups=[{"name": "own", "rule": "norm", "threshold": 0.5, "include": ["kernel"]}],
    ).clipper()(tree),
}


def gradients() -> Tree:
    return {"kernel": jnp.full((4, 8), 2.0), "bias": jnp.ones(8, jnp.bfloat16), "scale": jnp.float32(3.0)}


SPECS = {"kernel": PartitionSpec("x", "y"), "bias": PartitionSpec("x"), "scale": PartitionSpec()}


def mesh() -> Mesh:
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def sharded() -> Tree:
    return {name: jax.device_put(leaf, NamedSharding(mesh(), SPECS[name])) for name, leaf in gradients().items()}


def copies(number: int) -> Tree:
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * number), gradients())


def total(clip: Clip) -> Callable[[Tree], jax.Array]:
    """Sum all results, for derivatives. The last result of the list has other weights than the first."""

    def run(tree: Tree) -> jax.Array:
        leaves = jax.tree.leaves(clip(tree))
        return sum((weight * jnp.sum(leaf.astype(jnp.float32)) for weight, leaf in enumerate(leaves)), jnp.float32(0))

    return run


def first(clip: Clip) -> Callable[[Tree], jax.Array]:
    return lambda tree: jnp.sum(jax.tree.leaves(clip(tree))[0].astype(jnp.float32))


def second(function: Callable[[Tree], jax.Array]) -> Any:
    return jax.jit(jax.grad(total(jax.grad(function))))(gradients())


def in_shard_map(clip: Clip) -> Any:
    def run(tree: Tree) -> jax.Array:
        sums = [jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(clip(tree))]
        return jnp.stack([jax.lax.psum(number, tuple(mesh_axes.sharded_axes(number, None))) for number in sums])

    return jax.jit(jax.shard_map(run, mesh=mesh(), in_specs=(SPECS,), out_specs=PartitionSpec()))(sharded())


ONE_DEVICE: dict[str, Callable[[Clip], Any]] = {
    "jit": lambda clip: jax.jit(clip)(gradients()),
    "vmap": lambda clip: jax.vmap(clip)(copies(2)),
    "grad": lambda clip: jax.grad(total(clip))(gradients()),
}
DEVICES: dict[str, Callable[[Clip], Any]] = {
    **ONE_DEVICE,
    "eager and sharded": lambda clip: clip(sharded()),
    "jit and sharded": lambda clip: jax.jit(clip)(sharded()),
    "grad and sharded": lambda clip: jax.grad(total(clip))(sharded()),
    "grad under jit, sharded": lambda clip: jax.jit(jax.grad(total(clip)))(sharded()),
    "second derivative": lambda clip: second(total(clip)),
    "second derivative of one result": lambda clip: second(first(clip)),
    "shard_map": in_shard_map,
}


QUICK = ("eager and sharded", "shard_map")


@pytest.fixture
def _strict() -> Iterator[None]:
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def check(result: Any) -> None:
    leaves = jax.tree.leaves(result)
    assert leaves
    assert all(np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in leaves)


@pytest.mark.usefixtures("_strict")
@pytest.mark.parametrize("mode", [*QUICK, *nightly(*sorted(DEVICES.keys() - QUICK))])
@pytest.mark.parametrize("name", quick(NAMES, "clip_by_global_norm with tensors", "GradientClipByNorm", "ClipConfig"))
def test_four_devices_work_under_strict_promotion(name: str, mode: str) -> None:
    assert jax.device_count() == 4
    check(DEVICES[mode](NAMES[name]))
