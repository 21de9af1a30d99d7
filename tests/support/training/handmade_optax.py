"""A regression in JAX without optax: the momentum is the script's own code, and unified_clip clips."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import setting

import unified_clip.jax as uc
from unified_clip.recording import log

SHAPES = {"hidden.weight": (8, 8), "hidden.bias": (8,), "out.weight": (8, 2), "out.bias": (2,)}
params = {name: jnp.asarray(setting.weight(name, *shape)) for name, shape in SHAPES.items()}
velocity = jax.tree.map(jnp.zeros_like, params)


def loss(params: dict[str, jax.Array], inputs: jax.Array, targets: jax.Array) -> jax.Array:
    hidden = jnp.tanh(inputs @ params["hidden.weight"] + params["hidden.bias"])
    return jnp.mean((hidden @ params["out.weight"] + params["out.bias"] - targets) ** 2)


for first in range(0, len(setting.INPUTS), 12):
    batch = slice(first, first + 12)
    value, grads = jax.value_and_grad(loss)(params, setting.INPUTS[batch], setting.TARGETS[batch])
    log(loss=float(value))
    grads, _ = uc.clip_by_global_norm(grads, 0.5)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = jax.tree.map(lambda p, v: p - 0.2 * v, params, velocity)
