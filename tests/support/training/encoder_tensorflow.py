"""A transformer's encoder in TensorFlow: the rate of "Attention is all you need", as a `LearningRateSchedule`."""

from __future__ import annotations

import setting
import tensorflow as tf

WIDTH, LENGTH, SEQUENCES, STEPS, WARMUP, FACTOR = 16, 6, 8, 8, 3, 0.2
SHAPES = {
    "embedding": (setting.VOCABULARY, WIDTH),
    "positions": (LENGTH, WIDTH),
    "query": (WIDTH, WIDTH),
    "key": (WIDTH, WIDTH),
    "value": (WIDTH, WIDTH),
    "project": (WIDTH, WIDTH),
    "expand": (WIDTH, 2 * WIDTH),
    "shrink": (2 * WIDTH, WIDTH),
    "head": (WIDTH, setting.VOCABULARY),
}


class Noam(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        number = tf.cast(step, tf.float32) + 1.0
        return FACTOR * WIDTH**-0.5 * tf.minimum(number**-0.5, number * WARMUP**-1.5)


def normalize(inputs: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(inputs, -1, keepdims=True)
    return (inputs - mean) / tf.sqrt(variance + 1e-5)


w = {name: tf.Variable(setting.weight(f"encoder.{name}", *shape), name=name) for name, shape in SHAPES.items()}
optimizer = tf.keras.optimizers.Adam(Noam(), beta_1=0.9, beta_2=0.98, epsilon=1e-9)


@tf.function
def train(tokens: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        x = tf.one_hot(tokens, setting.VOCABULARY) @ w["embedding"] * WIDTH**0.5 + w["positions"]
        y = normalize(x)
        scores = tf.matmul(y @ w["query"], y @ w["key"], transpose_b=True) * WIDTH**-0.5
        x += tf.nn.softmax(scores) @ (y @ w["value"]) @ w["project"]
        x += tf.nn.relu(normalize(x) @ w["expand"]) @ w["shrink"]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tokens[:, ::-1], normalize(x) @ w["head"])
        loss = tf.reduce_mean(losses)
    grads, _ = tf.clip_by_global_norm(tape.gradient(loss, list(w.values())), 0.4)
    optimizer.apply_gradients(zip(grads, w.values(), strict=True))
    return loss


for batch in setting.text(STEPS, SEQUENCES, LENGTH, seed=3):
    train(tf.constant(batch[:, 1:]))
