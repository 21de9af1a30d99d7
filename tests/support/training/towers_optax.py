"""Two towers with a contrastive loss and a learned temperature, in Flax: a `TrainState`, and a masked weight decay."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import setting
from flax.training.train_state import TrainState

from unified_clip.recording import log

IMAGE, TEXT, WIDTH, BATCH, STEPS = 10, 8, 6, 12, 8


class Towers(nn.Module):
    @nn.compact
    def __call__(self, images: jax.Array, texts: jax.Array) -> jax.Array:
        scale = self.param("logit_scale", nn.initializers.constant(np.log(1 / 0.07)), ())
        images, texts = nn.Dense(WIDTH, name="image")(images), nn.Dense(WIDTH, name="text")(texts)
        images, texts = (each / jnp.linalg.norm(each, axis=-1, keepdims=True) for each in (images, texts))
        return jnp.exp(scale) * images @ texts.T


def loss(params, state: TrainState, images: jax.Array, texts: jax.Array) -> jax.Array:
    logits, labels = state.apply_fn({"params": params}, images, texts), jnp.arange(BATCH)
    both = [optax.softmax_cross_entropy_with_integer_labels(each, labels).mean() for each in (logits, logits.T)]
    return (both[0] + both[1]) / 2


@jax.jit
def train(state: TrainState, images: jax.Array, texts: jax.Array) -> tuple[TrainState, jax.Array]:
    value, grads = jax.value_and_grad(loss)(state.params, state, images, texts)
    return state.apply_gradients(grads=grads), value


def tower(name: str, inputs: int) -> dict[str, jax.Array]:
    weights = {"kernel": setting.weight(f"towers.{name}", inputs, WIDTH), "bias": setting.weight(f"{name} bias", WIDTH)}
    return {key: jnp.asarray(weight) for key, weight in weights.items()}


optimizer = optax.chain(
    optax.clip_by_global_norm(0.8),
    optax.scale_by_adam(b1=0.9, b2=0.98, eps=1e-6),
    optax.add_decayed_weights(0.2, mask=lambda params: jax.tree.map(lambda each: each.ndim > 1, params)),
    optax.scale_by_learning_rate(0.02),
)
model = Towers()
params = model.init(jax.random.key(0), jnp.ones((BATCH, IMAGE)), jnp.ones((BATCH, TEXT)))["params"]
params = {**params, "image": tower("image", IMAGE), "text": tower("text", TEXT)}
state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)
for step in range(STEPS):
    batch = [setting.array(f"towers {name} {step}", BATCH, size) for name, size in (("image", IMAGE), ("text", TEXT))]
    state, value = train(state, *batch)
    log(loss=float(value))
