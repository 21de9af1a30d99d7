import optax

optimizer = optax.chain(optax.clip(1.0), optax.adamw(3e-4))
