"""The regression of `regression_paddle.py` in TensorFlow: a loop of `tf.clip_by_norm`."""

from __future__ import annotations

import setting
import tensorflow as tf

SHAPES = {"hidden.weight": (8, 8), "hidden.bias": (8,), "out.weight": (8, 2), "out.bias": (2,)}
weights = {name: tf.Variable(setting.weight(name, *shape)) for name, shape in SHAPES.items()}
optimizer = tf.keras.optimizers.SGD(0.2, momentum=0.9)
for first in range(0, len(setting.INPUTS), 12):
    inputs, targets = (tf.constant(array[first : first + 12]) for array in (setting.INPUTS, setting.TARGETS))
    with tf.GradientTape() as tape:
        hidden = tf.tanh(inputs @ weights["hidden.weight"] + weights["hidden.bias"])
        outputs = hidden @ weights["out.weight"] + weights["out.bias"]
        loss = tf.reduce_mean(tf.square(outputs - targets))
    grads = tape.gradient(loss, list(weights.values()))
    grads = [tf.clip_by_norm(grad, 0.5) for grad in grads]
    optimizer.apply_gradients(zip(grads, weights.values(), strict=True))
