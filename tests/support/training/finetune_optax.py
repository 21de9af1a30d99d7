"""The model of `finetune_paddle.py` in JAX: `optax.masked` clips and decays, and `optax.partition` has two rates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import setting

from unified_clip.recording import log

WORDS, WIDTH, LENGTH, TEXTS, STEPS = 12, 6, 4, 10, 8
SHAPES = {
    "words.weight": (WORDS, WIDTH),
    "hidden.weight": (WIDTH, WIDTH),
    "hidden.bias": (WIDTH,),
    "head.weight": (WIDTH, setting.CLASSES),
    "head.bias": (setting.CLASSES,),
}


def loss(params: dict[str, jax.Array], texts: jax.Array, labels: jax.Array) -> jax.Array:
    mean = params["words.weight"][texts].mean(1)
    hidden = jnp.tanh(mean @ params["hidden.weight"] + params["hidden.bias"])
    logits = hidden @ params["head.weight"] + params["head.bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def sgd(factor: float) -> optax.GradientTransformation:
    return optax.sgd(optax.cosine_decay_schedule(0.4 * factor, STEPS, alpha=0.1), momentum=0.9)


optimizer = optax.chain(
    optax.masked(optax.clip_by_global_norm(0.15), {name: name != "words.weight" for name in SHAPES}),
    optax.masked(optax.add_decayed_weights(0.1), {name: name == "hidden.weight" for name in SHAPES}),
    optax.partition(
        {"slow": sgd(0.2), "fast": sgd(1.0)}, {name: "slow" if name == "words.weight" else "fast" for name in SHAPES}
    ),
)


@jax.jit
def step(params: dict[str, jax.Array], state: optax.OptState, texts: jax.Array, labels: jax.Array):
    value, grads = jax.value_and_grad(loss)(params, texts, labels)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


params = {name: jnp.asarray(setting.array(f"finetune.{name}", *shape, scale=0.8)) for name, shape in SHAPES.items()}
state = optimizer.init(params)
for number, texts in enumerate(setting.text(STEPS, TEXTS, LENGTH, seed=5)[:, :, 1:] % WORDS):
    params, state, value = step(params, state, texts, setting.LABELS[number * TEXTS : (number + 1) * TEXTS])
    log(loss=float(value))
