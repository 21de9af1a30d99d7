"""The functions as gradient transformations of optax, by `optax.stateless`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unified_clip.jax as uc

UNIT = np.array([0.6, 0.8], np.float32)
"""[3, 4], clipped to a norm of 1."""


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    weight: Any
    bias: Any


class Pair(NamedTuple):
    first: Any
    second: Any


def tree() -> Any:
    """Return parameters in many kinds of containers: dicts of Flax, dataclasses, named and plain tuples, and None."""
    random = np.random.default_rng(3)

    def some(*shape: int, dtype: str = "float32") -> Any:
        return jnp.asarray(random.standard_normal(shape), dtype)

    dense = {"params": {"Dense_0": {"kernel": some(4, 3), "bias": some(3)}}}
    return {
        "dense": dense,
        "layer": Layer(some(2, 2, dtype="bfloat16"), None),
        "more": (some(3), Pair(some(), [some(1)])),
    }


CLIPS: dict[str, Callable[[Any, Any], Any]] = {
    "clip_by_global_norm": lambda updates, limit: uc.clip_by_global_norm(updates, limit)[0],
    "clip_by_norm": lambda updates, limit: jax.tree.map(lambda each: uc.clip_by_norm(each, limit), updates),
    "clip_by_value": lambda updates, limit: jax.tree.map(lambda each: uc.clip_by_value(each, -limit, limit), updates),
}


def transformation(name: str, limit: Any) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, params: CLIPS[name](updates, limit))


def assert_same(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(np.asarray(one, "float64"), np.asarray(other, "float64"), rtol=3e-7)


@pytest.mark.parametrize("name", CLIPS)
def test_every_container_of_updates_is_clipped_and_keeps_its_structure(name: str) -> None:
    clip, updates = transformation(name, 0.3), tree()
    expected = CLIPS[name](updates, 0.3)
    assert not all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (expected, updates)), strict=True))
    for update in (clip.update, jax.jit(clip.update)):
        assert_same(update(updates, clip.init(updates))[0], expected)
    for empty in ({}, None):
        assert clip.update(empty, clip.init(empty))[0] == empty


def test_masked_out_updates_are_neither_counted_nor_scaled() -> None:
    updates = {"w": jnp.array([3.0, 4.0], "float32"), "b": jnp.array([100.0], "float32")}
    clip = optax.masked(transformation("clip_by_global_norm", 1.0), {"w": True, "b": False})
    assert_same(jax.jit(clip.update)(updates, clip.init(updates))[0], {"w": UNIT, "b": updates["b"]})


@pytest.mark.parametrize("name", CLIPS)
def test_a_threshold_that_changes_needs_no_new_trace(name: str) -> None:
    updates = {"w": jnp.array([3.0, 4.0], "float32")}
    clip = optax.inject_hyperparams(lambda limit: transformation(name, limit))(limit=1.0)
    state, update = clip.init(updates), jax.jit(clip.update)
    for limit in (1.0, 0.5):
        state.hyperparams["limit"] = jnp.asarray(limit)
        assert_same(update(updates, state)[0], CLIPS[name](updates, limit))
    assert update._cache_size() == 1
