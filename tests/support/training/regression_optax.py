"""A regression in JAX: a compiled step with a chain of optax' transformations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import setting

SHAPES = {"hidden.weight": (8, 8), "hidden.bias": (8,), "out.weight": (8, 2), "out.bias": (2,)}
params = {name: jnp.asarray(setting.weight(name, *shape)) for name, shape in SHAPES.items()}
optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.05, weight_decay=0.01))


def loss(params: dict[str, jax.Array], inputs: jax.Array, targets: jax.Array) -> jax.Array:
    hidden = jnp.tanh(inputs @ params["hidden.weight"] + params["hidden.bias"])
    return jnp.mean((hidden @ params["out.weight"] + params["out.bias"] - targets) ** 2)


@jax.jit
def step(params: dict[str, jax.Array], state: optax.OptState, inputs: jax.Array, targets: jax.Array):
    updates, state = optimizer.update(jax.grad(loss)(params, inputs, targets), state, params)
    return optax.apply_updates(params, updates), state


state = optimizer.init(params)
for first in range(0, len(setting.INPUTS), 12):
    batch = slice(first, first + 12)
    params, state = step(params, state, setting.INPUTS[batch], setting.TARGETS[batch])
