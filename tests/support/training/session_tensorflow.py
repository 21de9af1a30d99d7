"""A regression in a session of TensorFlow 1: an optimizer of `tf.train`, clipped pairs, and a decay by global steps."""

from __future__ import annotations

import setting
import tensorflow.compat.v1 as tf

from unified_clip.recording import log

tf.disable_eager_execution()
SHAPES = {"hidden/kernel": (8, 8), "hidden/bias": (8,), "out/kernel": (8, 2), "out/bias": (2,)}
weights = {name: tf.Variable(setting.weight(name, *shape), name=name) for name, shape in SHAPES.items()}
inputs, targets = tf.placeholder(tf.float32, (None, 8)), tf.placeholder(tf.float32, (None, 2))
hidden = tf.tanh(inputs @ weights["hidden/kernel"] + weights["hidden/bias"])
loss = tf.reduce_mean(tf.square(hidden @ weights["out/kernel"] + weights["out/bias"] - targets))
step = tf.train.get_or_create_global_step()
rate = tf.train.exponential_decay(0.05, step, decay_steps=3, decay_rate=0.5, staircase=True)
optimizer = tf.train.RMSPropOptimizer(rate, decay=0.95, epsilon=1e-4)
grads, variables = zip(*optimizer.compute_gradients(loss), strict=True)
grads, _ = tf.clip_by_global_norm(grads, 1.5)
train = optimizer.apply_gradients(zip(grads, variables, strict=True), global_step=step)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for first in range(0, len(setting.INPUTS), 12):
        batch = slice(first, first + 12)
        value, _ = session.run([loss, train], {inputs: setting.INPUTS[batch], targets: setting.TARGETS[batch]})
        log(loss=value.item())
