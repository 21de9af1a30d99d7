"""A regression in JAX with `optax.adaptive_grad_clip`, whose bound is a part of the norm of each unit's weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import setting

from unified_clip.recording import log

SHAPES = {"hidden.weight": (8, 8), "hidden.bias": (8,), "out.weight": (8, 2), "out.bias": (2,)}
params = {name: jnp.asarray(setting.weight(name, *shape)) for name, shape in SHAPES.items()}
optimizer = optax.chain(optax.adaptive_grad_clip(0.1, eps=1e-3), optax.sgd(0.2, momentum=0.9))


def loss(params: dict[str, jax.Array], inputs: jax.Array, targets: jax.Array) -> jax.Array:
    hidden = jnp.tanh(inputs @ params["hidden.weight"] + params["hidden.bias"])
    return jnp.mean((hidden @ params["out.weight"] + params["out.bias"] - targets) ** 2)


state = optimizer.init(params)
for first in range(0, len(setting.INPUTS), 12):
    batch = slice(first, first + 12)
    value, grads = jax.value_and_grad(loss)(params, setting.INPUTS[batch], setting.TARGETS[batch])
    updates, state = optimizer.update(grads, state, params)
    params = optax.apply_updates(params, updates)
    log(loss=float(value))
