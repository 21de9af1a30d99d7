"""The encoder of `encoder_tensorflow.py` in JAX without optax: the clip and Adam are the script's own code."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import setting

from unified_clip.recording import log

WIDTH, LENGTH, SEQUENCES, STEPS, WARMUP, FACTOR = 16, 6, 8, 8, 3, 0.2
SQUARE = (WIDTH, WIDTH)
SHAPES = {"embedding": (setting.VOCABULARY, WIDTH), "positions": (LENGTH, WIDTH), "query": SQUARE, "key": SQUARE}
SHAPES |= {"value": SQUARE, "project": SQUARE, "expand": (WIDTH, 2 * WIDTH), "shrink": (2 * WIDTH, WIDTH)}
SHAPES |= {"head": (WIDTH, setting.VOCABULARY)}
Weights = dict[str, jax.Array]


def normalize(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def forward(w: Weights, tokens: jax.Array) -> jax.Array:
    x = w["embedding"][tokens] * WIDTH**0.5 + w["positions"]
    y = normalize(x)
    scores = jnp.einsum("bqd,bkd->bqk", y @ w["query"], y @ w["key"]) / jnp.sqrt(WIDTH)
    x = x + jax.nn.softmax(scores, -1) @ (y @ w["value"]) @ w["project"]
    x = x + jax.nn.relu(normalize(x) @ w["expand"]) @ w["shrink"]
    return normalize(x) @ w["head"]


def loss(w: Weights, tokens: jax.Array) -> jax.Array:
    logprobs = jax.nn.log_softmax(forward(w, tokens))
    return -jnp.take_along_axis(logprobs, tokens[:, ::-1, None], -1).mean()


@jax.jit
def step(w: Weights, m: Weights, v: Weights, t: jax.Array, tokens: jax.Array):
    value, grads = jax.value_and_grad(loss)(w, tokens)
    norm = jnp.sqrt(sum(jnp.sum(grad**2) for grad in grads.values()))
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.4 / norm), grads)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.98 * v + 0.02 * g**2, v, grads)
    rate = FACTOR * WIDTH**-0.5 * jnp.minimum(t**-0.5, t * WARMUP**-1.5)
    corrected = jax.tree.map(lambda m, v: m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.98**t)) + 1e-9), m, v)
    return jax.tree.map(lambda p, c: p - rate * c, w, corrected), m, v, value


w = {name: jnp.asarray(setting.weight(f"encoder.{name}", *shape)) for name, shape in SHAPES.items()}
m = v = jax.tree.map(jnp.zeros_like, w)
for number, batch in enumerate(setting.text(STEPS, SEQUENCES, LENGTH, seed=3)):
    w, m, v, value = step(w, m, v, jnp.float32(number + 1), jnp.asarray(batch[:, 1:]))
    log(loss=float(value))
