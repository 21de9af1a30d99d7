import optax

optimizer = optax.chain(optax.adaptive_grad_clip(clipping=0.02, eps=1e-2), optax.sgd(0.1))
