"""DDPG in JAX: an actor and a critic with an optimizer each, and a target network that follows slowly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import setting

from unified_clip.recording import log

TAU, DISCOUNT, OBSERVATIONS, HIDDEN, ACTIONS = 0.1, 0.9, 5, 11, 2
Network = dict[str, jax.Array]


def network(name: str, inputs: int, outputs: int) -> Network:
    shapes = {
        "hidden.weight": (inputs, HIDDEN),
        "hidden.bias": (HIDDEN,),
        "out.weight": (HIDDEN, outputs),
        "out.bias": (outputs,),
    }
    return {key: jnp.asarray(setting.weight(f"{name}.{key}", *shape)) for key, shape in shapes.items()}


def apply(params: Network, inputs: jax.Array) -> jax.Array:
    hidden = jnp.tanh(inputs @ params["hidden.weight"] + params["hidden.bias"])
    return hidden @ params["out.weight"] + params["out.bias"]


def critic_loss(critic: Network, target: Network, actor: Network, obs, action, reward, following) -> jax.Array:
    bootstrapped = apply(target, jnp.concatenate([following, jnp.tanh(apply(actor, following))], -1))[:, 0]
    value = apply(critic, jnp.concatenate([obs, action], -1))[:, 0]
    return jnp.square(value - reward - DISCOUNT * bootstrapped).mean()


def actor_loss(actor: Network, critic: Network, obs: jax.Array) -> jax.Array:
    return -apply(critic, jnp.concatenate([obs, jnp.tanh(apply(actor, obs))], -1)).mean()


actor, critic = network("actor", OBSERVATIONS, ACTIONS), network("critic", OBSERVATIONS + ACTIONS, 1)
target = critic
of_actor = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.01))
of_critic = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.02))
actor_state, critic_state = of_actor.init(actor), of_critic.init(critic)
for step in range(8):
    obs, following = (setting.array(f"{name} {step}", 16, OBSERVATIONS) for name in ("obs", "following"))
    action, reward = setting.array(f"action {step}", 16, ACTIONS, scale=0.5), setting.array(f"reward {step}", 16)
    value, grads = jax.value_and_grad(critic_loss)(critic, target, actor, obs, action, reward, following)
    log(loss=float(value))
    updates, critic_state = of_critic.update(grads, critic_state, critic)
    critic = optax.apply_updates(critic, updates)
    value, grads = jax.value_and_grad(actor_loss)(actor, critic, obs)
    log(loss=float(value))
    updates, actor_state = of_actor.update(grads, actor_state, actor)
    actor = optax.apply_updates(actor, updates)
    target = jax.tree.map(lambda old, new: old + TAU * (new - old), target, critic)
