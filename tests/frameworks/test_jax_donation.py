"""JAX: a caller can donate the memory of a result, and keeps the gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import unified_clip.jax as uc

NAMES: dict[str, Callable[[Any, float], Any]] = {
    "clip_by_global_norm": lambda gradient, limit: uc.clip_by_global_norm([gradient], limit)[0][0],
    "clip_by_global_norm of a dict": lambda gradient, limit: uc.clip_by_global_norm({"w": gradient}, limit)[0]["w"],
    "clip_by_norm": uc.clip_by_norm,
    "clip_by_norm of slices": lambda gradient, limit: uc.clip_by_norm(gradient, limit, axes=0),
    "clip_by_value": lambda gradient, limit: uc.clip_by_value(gradient, -limit, limit),
}


def place_whole(gradient: jax.Array) -> jax.Array:
    return gradient


def place_on_a_mesh(gradient: jax.Array) -> jax.Array:
    return jax.device_put(gradient, NamedSharding(Mesh(jax.devices(), ("x",)), PartitionSpec()))


@pytest.mark.parametrize("place", [place_whole, place_on_a_mesh])
@pytest.mark.parametrize("limit", [1.0, 1e9, math.inf])
@pytest.mark.parametrize("path", ["", "framework"])
@pytest.mark.parametrize("name", NAMES)
def test_donating_a_result_keeps_the_gradient(
    monkeypatch: pytest.MonkeyPatch, name: str, path: str, limit: float, place: Callable[[jax.Array], jax.Array]
) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
    gradient = place(jnp.full((1000,), 3.0))
    result = NAMES[name](gradient, limit)
    assert result.sharding == gradient.sharding
    jax.jit(jnp.negative, donate_argnums=0)(result)
    assert result.is_deleted()
    assert not gradient.is_deleted()
    assert gradient.tolist() == [3.0] * 1000


def test_a_class_instance_returns_the_given_gradient_where_nothing_is_clipped() -> None:
    gradient = jnp.array([3.0, 4.0])
    for clip in (uc.GradientClipByGlobalNorm(10.0), uc.GradientClipByNorm(10.0)):
        [(_, result)] = clip([(jnp.ones(2), gradient)])
        assert result is gradient


def test_in_place_names_keep_the_array_where_nothing_is_clipped() -> None:
    gradients = [jnp.array([3.0, 4.0])]
    [before] = gradients
    uc.clip_grad_norm_(gradients, 10.0)
    assert gradients[0] is before
