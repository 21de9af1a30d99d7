"""Training with an embedding, whose gradient has repeated rows. TensorFlow does not sum them."""

import numpy as np
import tensorflow as tf

random = np.random.default_rng(0)
table = tf.Variable(random.normal(size=(50, 8)).astype("float32"), name="table")
kernel = tf.Variable(random.normal(size=(8, 1)).astype("float32"), name="kernel")
tokens = np.minimum(random.geometric(0.2, size=(16, 8, 12)), 49)
targets = random.normal(size=(16, 8, 1)).astype("float32")
optimizer = tf.keras.optimizers.Adam(0.01)
for batch, y in zip(tokens, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.reduce_mean(tf.gather(table, batch), 1) @ kernel - y) ** 2)
    grads = tape.gradient(loss, [table, kernel])
    grads, norm = tf.clip_by_global_norm(grads, 0.3)
    optimizer.apply_gradients(zip(grads, [table, kernel]))
