#: rule = "global_norm"
#: threshold = 1.0
#: family = "paddle"
import jax
import jax.numpy as jnp
import optax

weights = {"a": jnp.ones([4, 8]), "b": jnp.ones([8, 1]), "c": jnp.ones([1])}
labels = {"a": "decayed", "b": "decayed", "c": "other"}
partitions = optax.multi_transform({"decayed": optax.adamw(0.1), "other": optax.adam(0.1)}, labels)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), partitions)
state = optimizer.init(weights)


@jax.jit
def step(weights, state):
    gradients = jax.grad(lambda w: ((jnp.ones([8, 4]) @ w["a"] @ w["b"] + w["c"]) ** 2).sum())(weights)
    updates, state = optimizer.update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state


for _ in range(3):
    weights, state = step(weights, state)
