"""Differentially private training."""
import jax
import jax.numpy as jnp
import optax
from optax.contrib import differentially_private_aggregate as dp_aggregate


def loss(params, x, y):
    logit = x @ params['w'] + params['b']
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logit, y))


def noisy_optimizer(lr, l2_norm_clip, noise_multiplier, seed=0):
    return optax.chain(
        dp_aggregate(l2_norm_clip=l2_norm_clip, noise_multiplier=noise_multiplier, key=seed),
        optax.sgd(lr),
    )


def per_example(params, x, y, clip):
    grads = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x[:, None], y[:, None])
    leaves, treedef = jax.tree_util.tree_flatten(grads)
    summed, clipped = optax.per_example_global_norm_clip(leaves, clip)
    layered, _ = optax.per_example_layer_norm_clip(leaves, clip, uniform=True)
    return treedef.unflatten(summed), clipped / x.shape[0], layered


def fit(x, y, steps=100, clip=1.0):
    params = {'w': jnp.zeros(x.shape[1]), 'b': jnp.zeros(())}
    tx = noisy_optimizer(.1, clip, 1.1)
    state = tx.init(params)
    for _ in range(steps):
        grads = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x[:, None], y[:, None])
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params
