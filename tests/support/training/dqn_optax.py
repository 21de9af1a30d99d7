"""The DQN of `dqn_torch.py` in JAX: a chain of `optax.clip` and `optax.rmsprop` in a compiled step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import setting

from unified_clip.recording import log

OBSERVATIONS, HIDDEN, ACTIONS, BATCH, DISCOUNT, STEPS, COPIED = 6, 12, 3, 16, 0.95, 9, 3
SHAPES = {
    "hidden.weight": (OBSERVATIONS, HIDDEN),
    "hidden.bias": (HIDDEN,),
    "out.weight": (HIDDEN, ACTIONS),
    "out.bias": (ACTIONS,),
}


def network(params: dict[str, jax.Array], obs: jax.Array) -> jax.Array:
    hidden = jnp.tanh(obs @ params["hidden.weight"] + params["hidden.bias"])
    return hidden @ params["out.weight"] + params["out.bias"]


def loss(params: dict[str, jax.Array], target: dict[str, jax.Array], obs, action, reward, following, done):
    bootstrapped = reward + DISCOUNT * (1 - done) * network(target, following).max(-1)
    value = jnp.take_along_axis(network(params, obs), action[:, None], 1)[:, 0]
    return optax.huber_loss(value, jax.lax.stop_gradient(bootstrapped)).mean()


def replayed(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(100 + step)
    obs, following = (setting.array(f"dqn {name} {step}", BATCH, OBSERVATIONS) for name in ("obs", "following"))
    reward, done = setting.array(f"dqn reward {step}", BATCH, scale=2.0), random.random(BATCH) < 0.2
    return obs, random.integers(0, ACTIONS, BATCH), reward, following, done.astype(np.float32)


optimizer = optax.chain(optax.clip(0.05), optax.rmsprop(0.01, decay=0.95, eps=0.01, centered=True, eps_in_sqrt=False))


@jax.jit
def train(params, target, state, batch):
    value, grads = jax.value_and_grad(loss)(params, target, *batch)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, value


params = {name: jnp.asarray(setting.weight(f"dqn.{name}", *shape)) for name, shape in SHAPES.items()}
target, state = params, optimizer.init(params)
for step in range(STEPS):
    params, state, value = train(params, target, state, replayed(step))
    log(loss=float(value))
    target = params if (step + 1) % COPIED == 0 else target
