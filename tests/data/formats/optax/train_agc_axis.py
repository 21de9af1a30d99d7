import optax

optimizer = optax.chain(optax.adaptive_grad_clip(0.01, axis=(0, 1, 2)), optax.sgd(0.1))
