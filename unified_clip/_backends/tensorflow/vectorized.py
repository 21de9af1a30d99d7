"""Register a rule for `tf.nn.l2_loss`, so that `tf.vectorized_map` can vectorize the operation."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor


def _half_sums_of_squares(loop: Any) -> Any:
    """Return half of the sum of squares for each row.

    The squares are halved before the addition, because their sum can exceed the range of float16.
    """
    rows = loop.stacked_input(0)
    return pfor.wrap(tf.reduce_sum(0.5 * tf.square(rows), axis=tf.range(1, tf.rank(rows))), True)


def register() -> None:
    with suppress(KeyError):
        pfor.RegisterPFor("L2Loss")(_half_sums_of_squares)
