#: rule = "global_norm"
#: threshold = 1.0
#: family = "paddle"
import jax.numpy as jnp
import optax

weights = jnp.ones([4])
actor, critic = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)), optax.adam(0.1)
states = [each.init(weights) for each in (actor, critic)]
for _ in range(3):
    updates, states[0] = actor.update(10 * weights, states[0], weights)
    updates, states[1] = critic.update(10 * weights, states[1], weights)  # found: missing 1 to 3
