"""Training loop and step of a language model in JAX."""
import functools
from typing import Any, Sequence

import jax
import jax.numpy as jnp
import optax
from flax.training import train_state

import max_utils
import pyconfig


def calculate_norm(tree):
  return jnp.sqrt(jax.tree_util.tree_reduce(lambda x, y: x + jnp.sum(jnp.square(y)), tree, initializer=0.0))


def apply_gradient_clipping(raw_grads, state, clipping_threshold):
  """Clips by global norm; the state of the transformation is empty."""
  gradient_clip_transformation = optax.clip_by_global_norm(clipping_threshold)
  grads, _ = gradient_clip_transformation.update(raw_grads, state, None)
  return grads


def train_step(model, config, state: train_state.TrainState, data: Any, dropout_rng):
  def loss_fn(params):
    logits = model.apply(params, data["inputs"], rngs={"dropout": dropout_rng})
    xent = -jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(data["targets"], config.vocab_size), -1)
    return jnp.mean(jnp.clip(xent, 0, 1e4))

  loss, raw_grads = jax.value_and_grad(loss_fn)(state.params)
  if config.gradient_clipping_threshold > 0:
    grads = apply_gradient_clipping(raw_grads, state, config.gradient_clipping_threshold)
  else:
    grads = raw_grads
  new_state = state.apply_gradients(grads=grads)
  metrics = {
      "learning/loss": loss,
      "learning/grad_norm": calculate_norm(grads),
      "learning/raw_grad_norm": calculate_norm(raw_grads),
  }
  return new_state, metrics


def main(argv: Sequence[str]) -> None:
  config = pyconfig.initialize(argv)
  model, state, data = max_utils.setup(config)
  p_train_step = jax.jit(functools.partial(train_step, model, config), donate_argnums=(0,))
  for step in range(config.steps):
    state, metrics = p_train_step(state, next(data), jax.random.PRNGKey(step))
