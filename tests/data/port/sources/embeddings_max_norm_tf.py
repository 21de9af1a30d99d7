from __future__ import annotations

import tensorflow as tf
from tensorflow.keras import layers


class MaxNormEmbedding(layers.Layer):
    """Rows are kept within a ball; TransE's constraint."""

    def __init__(self, rows: int, dim: int, limit: float = 1.0, **kwargs):
        super().__init__(**kwargs)
        self.limit = limit
        self.table = self.add_weight(shape=(rows, dim), initializer="uniform", name="table")

    def call(self, ids):
        rows = tf.nn.embedding_lookup(self.table, ids)
        return tf.clip_by_norm(rows, self.limit, axes=[-1])

    def project(self) -> None:
        self.table.assign(tf.clip_by_norm(self.table, clip_norm=self.limit, axes=1))


class GaussianHead(layers.Layer):
    def __init__(self, actions, lo=-20., hi=2.):
        super().__init__()
        self.mean = layers.Dense(actions)
        self.log_std = layers.Dense(actions)
        self.lo, self.hi = lo, hi

    def call(self, h):
        log_std = tf.clip_by_value(self.log_std(h), self.lo, self.hi)
        noise = tf.random.normal(tf.shape(log_std))
        return self.mean(h) + noise * tf.exp(log_std)


relu6 = layers.Lambda(lambda x: tf.clip_by_value(x, 0., 6.))
clip_norm = layers.Lambda(lambda h: tf.clip_by_norm(h, 10., axes=-1), name="ball")
