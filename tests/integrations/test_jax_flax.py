"""Flax: `TrainState` and `nnx.Optimizer` take `ClipConfig.as_optax()` in the chain that they take anyway."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training.train_state import TrainState
from support.clip_cases import LINEAR, assert_reported, clip_by_numpy

from unified_clip import ClipConfig
from unified_clip.integrations.optax_transforms import last, rate

pytestmark = pytest.mark.usefixtures("kit")

CONFIG = ClipConfig(rule="global_norm", threshold=LINEAR, exclude=["*.bias"])
INPUTS = np.random.default_rng(1).standard_normal((8, 3)).astype("float32")
TARGETS = 30 * INPUTS.sum(1, keepdims=True)


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(1, name="output")(linen.tanh(linen.Dense(4, name="hidden")(x)))


class Nnx(nnx.Module):
    def __init__(self) -> None:
        self.hidden = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
        self.output = nnx.Linear(4, 1, rngs=nnx.Rngs(1))

    def __call__(self, x: Any) -> Any:
        return self.output(nnx.tanh(self.hidden(x)))


def numpy_leaves(grads: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(grads)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


@pytest.mark.graphs
def test_a_train_state_under_jit() -> None:
    model = Linen()
    optimizer = optax.chain(CONFIG.as_optax(), optax.adam(0.1))
    state = TrainState.create(apply_fn=model.apply, params=model.init(jax.random.key(0), INPUTS), tx=optimizer)

    @jax.jit
    def step(state: Any) -> Any:
        grads = jax.grad(lambda params: ((state.apply_fn(params, INPUTS) - TARGETS) ** 2).mean())(state.params)
        return state.apply_gradients(grads=grads), grads

    given = []
    for _ in range(6):
        state, grads = step(state)
        given.append(numpy_leaves(grads))
        assert_reported(last(state), clip_by_numpy(CONFIG, given)[-1], len(given) - 1, ulp=1)
    assert set(given[0]) == {f"params.{layer}.{leaf}" for layer in ("hidden", "output") for leaf in ("kernel", "bias")}
    assert rate(state) > 0


@pytest.mark.graphs
def test_an_optimizer_of_nnx_under_jit() -> None:
    model = Nnx()
    optimizer = nnx.Optimizer(model, optax.chain(CONFIG.as_optax(), optax.adam(0.1)), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any) -> Any:
        grads = nnx.grad(lambda model: ((model(INPUTS) - TARGETS) ** 2).mean())(model)
        optimizer.update(model, grads)
        return grads

    given = []
    for _ in range(3):
        given.append(numpy_leaves(nnx.as_pure(nnx.state(step(model, optimizer)))))
        expected = clip_by_numpy(CONFIG, given)[-1]
        assert_reported(last(optimizer.opt_state), expected, len(given) - 1, ulp=1)
    assert set(given[0]) == {"hidden.kernel", "hidden.bias", "output.kernel", "output.bias"}


@pytest.mark.skipif(not hasattr(nnx, "as_pure"), reason="this release of flax lacks as_pure")
def test_a_skipped_step_leaves_nnx_as_it_was() -> None:
    model = Nnx()
    config = ClipConfig(rule="global_norm", threshold=1.0, nonfinite="skip")
    optimizer = nnx.Optimizer(model, config.as_optax(optax.adam(0.1)), wrt=nnx.Param)
    grads = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), nnx.state(model, nnx.Param))
    before = jax.tree.map(np.array, nnx.as_pure(nnx.state(model, nnx.Param)))
    optimizer.update(model, grads)
    assert last(optimizer.opt_state).skipped
    jax.tree.map(np.testing.assert_array_equal, before, nnx.as_pure(nnx.state(model, nnx.Param)))
