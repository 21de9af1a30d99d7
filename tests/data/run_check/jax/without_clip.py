#: rule = "global_norm"
#: threshold = 1.0
#: family = "paddle"
import jax
import jax.numpy as jnp
import optax

weights = {"a": jnp.ones([4, 8]), "b": jnp.ones([8, 1])}
optimizer = optax.sgd(0.1)
state = optimizer.init(weights)


@jax.jit
def step(weights, state):
    gradients = jax.grad(lambda w: ((jnp.ones([8, 4]) @ w["a"] @ w["b"]) ** 2).sum())(weights)
    updates, state = optimizer.update(gradients, state, weights)  # found: missing 1 to 3
    return optax.apply_updates(weights, updates), state


for _ in range(3):
    weights, state = step(weights, state)
