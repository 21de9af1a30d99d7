"""A character-level recurrent network in TensorFlow 2: a compiled step, `tf.clip_by_global_norm`, a decaying rate."""

from __future__ import annotations

import setting
import tensorflow as tf

UNITS, LENGTH, SEQUENCES, DECAY = setting.UNITS, 12, 8, 0.9


class CharRNN:
    def __init__(self, grad_clip: float = 0.5) -> None:
        weights = {name: setting.weight(name, *shape) for name, shape in setting.CHAR_RNN.items()}
        self.weights = {name: tf.Variable(weight, name=name) for name, weight in weights.items()}
        self.grad_clip = grad_clip
        self.optimizer = tf.keras.optimizers.SGD(0.5)

    @tf.function
    def train(self, tokens: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        w = self.weights
        with tf.GradientTape() as tape:
            state, loss = tf.zeros((SEQUENCES, UNITS)), 0.0
            for t in range(LENGTH):
                embedded = tf.gather(w["embedding"], tokens[:, t])
                state = tf.tanh(embedded @ w["inputs"] + state @ w["states"] + w["bias"])
                logits = state @ w["softmax"]
                loss += tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets[:, t], logits))
            loss /= LENGTH
        tvars = list(w.values())
        grads, _ = tf.clip_by_global_norm(tape.gradient(loss, tvars), self.grad_clip)
        self.optimizer.apply_gradients(zip(grads, tvars, strict=True))
        return loss


def main(batches: int = 8) -> None:
    model = CharRNN()
    for number, batch in enumerate(setting.text(batches, SEQUENCES, LENGTH)):
        model.optimizer.learning_rate.assign(0.5 * DECAY**number)
        model.train(tf.constant(batch[:, :-1]), tf.constant(batch[:, 1:]))


main()
