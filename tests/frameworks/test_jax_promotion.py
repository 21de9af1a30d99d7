"""JAX: strict promotion of ranks and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import unified_clip.jax as uc

Tree = dict[str, jax.Array]

NAMES: dict[str, Callable[[Tree], Any]] = {
    "clip_by_global_norm": lambda tree: uc.clip_by_global_norm(tree, 1.0),
    "clip_by_norm": lambda tree: uc.clip_by_norm(tree["kernel"], 1.0),
    "clip_by_norm of slices": lambda tree: uc.clip_by_norm(tree["kernel"], 1.0, axes=-1),
}


def gradients() -> Tree:
    return {"kernel": jnp.full((3, 4), 2.0), "bias": jnp.ones(5, jnp.bfloat16), "scale": jnp.float32(3.0)}


def batch() -> Tree:
    return jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), gradients())


MODES: dict[str, Callable[[Callable[[Tree], Any]], Any]] = {
    "jit": lambda clip: jax.jit(clip)(gradients()),
    "vmap": lambda clip: jax.vmap(clip)(batch()),
}


@pytest.fixture
def _strict() -> Iterator[None]:
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


@pytest.mark.nightly
@pytest.mark.usefixtures("_strict")
@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_graphs_work_under_strict_promotion(
    monkeypatch: pytest.MonkeyPatch, name: str, mode: str, devices: int
) -> None:
    monkeypatch.setattr(jax, "device_count", lambda: devices)  # by which norms in graphs choose how they are added up
    leaves = jax.tree.leaves(MODES[mode](NAMES[name]))
    assert leaves
    assert all(bool(jnp.isfinite(leaf.astype(jnp.float32)).all()) for leaf in leaves)
