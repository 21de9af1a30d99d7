"""A tagger in Keras with an own `train_step`: an LSTM over padded sentences, and the mean loss of real words."""

from __future__ import annotations

import keras
import numpy as np
import setting
import tensorflow as tf

WORDS, TAGS, UNITS, LENGTH, SENTENCES, STEPS = 20, 5, 8, 6, 8, 8


class Tagger(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embed = keras.layers.Dense(UNITS, use_bias=False)
        self.lstm = keras.layers.LSTM(UNITS, return_sequences=True)
        self.out = keras.layers.Dense(TAGS)

    def call(self, words: tf.Tensor) -> tf.Tensor:
        return self.out(self.lstm(self.embed(tf.one_hot(words, WORDS))))

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        words, tags = data
        with tf.GradientTape() as tape:
            logits = self(words, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(tags, logits, from_logits=True)
            real = tf.cast(words > 0, tf.float32)
            loss = tf.reduce_sum(losses * real) / tf.reduce_sum(real)
        grads = tape.gradient(loss, self.trainable_variables)
        grads, _ = tf.clip_by_global_norm(grads, 0.2)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        return {"loss": loss}


def sentences() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(11)
    words = random.integers(1, WORDS, (STEPS * SENTENCES, LENGTH)).astype(np.int32)
    words[np.arange(LENGTH) >= random.integers(2, LENGTH + 1, len(words))[:, None]] = 0
    return words, random.integers(0, TAGS, words.shape).astype(np.int32)


model, (words, tags) = Tagger(), sentences()
model(words[:1])
units = {"kernel": (UNITS, 4 * UNITS), "recurrent": (UNITS, 4 * UNITS)}
bias = np.repeat(np.float32([0, 1, 0, 0]), UNITS)
model.embed.set_weights([setting.weight("tagger.embed", WORDS, UNITS)])
model.lstm.set_weights([*(setting.weight(f"tagger.{name}", *shape) for name, shape in units.items()), bias])
model.out.set_weights([setting.weight("tagger.out", UNITS, TAGS), setting.weight("tagger.bias", TAGS)])
model.compile(keras.optimizers.Adam(0.02, beta_2=0.9, epsilon=1e-9))
model.fit(words, tags, batch_size=SENTENCES, shuffle=False, verbose=0)
