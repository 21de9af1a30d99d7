"""The classifier of `multisteps_torch.py` in JAX: `optax.MultiSteps` averages the gradients of two micro-batches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import setting

from unified_clip.recording import log

HIDDEN, ROWS, ACCUMULATED = 10, 10, 2
SHAPES = {
    "hidden.weight": (8, HIDDEN),
    "hidden.bias": (HIDDEN,),
    "out.weight": (HIDDEN, setting.CLASSES),
    "out.bias": (setting.CLASSES,),
}
clip, sgd = optax.clip_by_global_norm(0.5), optax.sgd(0.1, momentum=0.9, nesterov=True)
optimizer = optax.MultiSteps(optax.chain(clip, sgd), every_k_schedule=ACCUMULATED)


def loss(params: dict[str, jax.Array], features: jax.Array, labels: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(features @ params["hidden.weight"] + params["hidden.bias"])
    logits = hidden @ params["out.weight"] + params["out.bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.jit
def step(params: dict[str, jax.Array], state: optax.OptState, features: jax.Array, labels: jax.Array):
    value, grads = jax.value_and_grad(loss)(params, features, labels)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value / ACCUMULATED


params = {name: jnp.asarray(setting.weight(f"multisteps.{name}", *shape)) for name, shape in SHAPES.items()}
state = optimizer.init(params)
for first in range(0, len(setting.FEATURES), ROWS):
    batch = slice(first, first + ROWS)
    params, state, value = step(params, state, setting.FEATURES[batch], setting.LABELS[batch])
    log(loss=float(value))
