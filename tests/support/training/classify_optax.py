"""The classifier of `classify_paddle.py` in JAX: a chain of optax with a mask for the weight decay."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import setting

from unified_clip.recording import log

WARMUP, PEAK = 4, 0.02
SHAPES = {"hidden.weight": (8, 12), "hidden.bias": (12,), "out.weight": (12, 4), "out.bias": (4,)}
params = {name: jnp.asarray(setting.weight(name, *shape)) for name, shape in SHAPES.items()}
params |= {"norm.weight": jnp.ones(12), "norm.bias": jnp.zeros(12)}
mask = {name: value.ndim > 1 for name, value in params.items()}


def schedule(step: jax.Array) -> jax.Array:
    return PEAK * jnp.minimum((step + 1) / WARMUP, 0.9 ** (step + 1.0 - WARMUP))


optimizer = optax.chain(
    optax.clip_by_global_norm(0.75), optax.adamw(schedule, b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.1, mask=mask)
)


def loss(params: dict[str, jax.Array], features: jax.Array, labels: jax.Array) -> jax.Array:
    hidden = features @ params["hidden.weight"] + params["hidden.bias"]
    centred = hidden - hidden.mean(-1, keepdims=True)
    normal = centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    hidden = jnp.tanh(normal * params["norm.weight"] + params["norm.bias"])
    targets = optax.smooth_labels(jax.nn.one_hot(labels, setting.CLASSES), 0.1)
    return optax.softmax_cross_entropy(hidden @ params["out.weight"] + params["out.bias"], targets).mean()


@jax.jit
def step(params: dict[str, jax.Array], state: optax.OptState, features: jax.Array, labels: jax.Array):
    value, grads = jax.value_and_grad(loss)(params, features, labels)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


state = optimizer.init(params)
for first in range(0, len(setting.FEATURES), setting.ROWS):
    batch = slice(first, first + setting.ROWS)
    params, state, value = step(params, state, setting.FEATURES[batch], setting.LABELS[batch])
    log(loss=float(value))
