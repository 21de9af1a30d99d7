"""Correctly rounded norms in graphs of a `tf.distribute` strategy.

A float64 sum has a lower and an upper bound. Usually, both bounds have the same rounded norm. Otherwise, integer
operations compute the exact sum, which decides between the two norms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from ..._core.types import Scalar, Tensor

WORDS = 18
"""Squares of float32 numbers, and of midpoints between neighbouring float32 numbers, fit into 18 words of 32 bits."""

LOWEST = -304
"""The exponent of the lowest bit of a sum. The square of a float32 number is 0, or at least 2**-298."""

INFINITY = 2.0**128
"""The number that would follow the largest float32 number, used instead of infinity."""

PIECE = 1 << 18

SCALAR = tf.TensorSpec([], tf.float64)
SIGNATURE = [SCALAR, SCALAR, tf.TensorSpec([WORDS], tf.int64), SCALAR]

Powers = Callable[[Tensor, float], Tensor]
"""Returns |g|**p of each element as a flat float64 tensor, without rounding errors.

Each power is 0, or between 2**-300 and 2**256.
"""


def certified(total: Scalar, additions: Scalar | float, tensors: Sequence[Tensor], p: float, powers: Powers) -> Scalar:
    """Correct a float64 sum of |g|**p, so that its p-th root rounds to the correct norm. p is 1 or 2.

    total: The sum. The result has the derivatives of `total`.
    additions: Each element takes part in at most this number of additions.
    """
    fixed = tf.stop_gradient(total)
    slack = (additions + 16.0) * 2.0**-53  # 16 covers the roots, and products of errors
    low, high = (_root(fixed * end, p) for end in (1.0 - slack, 1.0 + slack))
    is_open = low < high

    def nearest() -> Scalar:
        words = tf.zeros([WORDS], tf.int64)
        for tensor in tensors:
            with tf.control_dependencies([words]):  # one tensor after the other, to save memory
                words += _sum(powers, tensor.dtype, p)(tf.reshape(tf.stop_gradient(tensor), [-1]))
        return _nearer(low, tf.minimum(high, INFINITY), words, tf.constant(p, tf.float64))

    n = tf.cond(is_open, nearest, lambda: tf.identity(low))
    # Both sums are so close that their difference is exact.
    change = tf.where(is_open, (n * n if p == 2 else n) - fixed, tf.zeros_like(fixed))
    return total + tf.stop_gradient(change)


def _root(total: Scalar, p: float) -> Scalar:
    return tf.cast(tf.cast(tf.sqrt(total) if p == 2 else total, tf.float32), tf.float64)


@functools.partial(tf.function, input_signature=SIGNATURE, autograph=False)
def _nearer(low: Scalar, high: Scalar, words: Tensor, p: Scalar) -> Scalar:
    """Return `low` or `high`, whichever is nearer to the root of the exact sum. In a tie, return the even mantissa."""
    middle = (low + high) / 2.0
    words -= _words(tf.reshape(tf.where(p > 1.0, middle * middle, middle), [1]))
    carry, rest = tf.constant(0, tf.int64), tf.constant(0, tf.int64)
    for word in tf.unstack(words):
        carry, rest = (word + carry) // 2**32, tf.maximum(rest, (word + carry) % 2**32)
    is_odd = low / (high - low) % 2.0 > 0.0
    return tf.where((carry > 0) | ((carry >= 0) & ((rest > 0) | is_odd)), high, low)


@functools.cache
def _sum(powers: Powers, dtype: tf.DType, p: float) -> Callable[[Tensor], Tensor]:
    def words(elements: Tensor) -> Tensor:
        def added(start: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
            return start + PIECE, total + _words(powers(elements[start : start + PIECE], p))

        begun = (tf.constant(0, tf.int64), tf.zeros([WORDS], tf.int64))
        count = tf.shape(elements, tf.int64)[0]
        return tf.while_loop(lambda start, _: start < count, added, begun, parallel_iterations=1)[1]

    function: Callable[[Tensor], Tensor] = tf.function(words, [tf.TensorSpec([None], dtype)], autograph=False)
    return function


def _words(powers: Tensor) -> Tensor:
    """Split the exact sum of |g|**p into words, beginning with the lowest.

    A word can have more than 32 bits, because carries are not added to the next word.
    """
    words: list[Tensor] = []
    for exponent in range(LOWEST + 32 * (WORDS - 1), LOWEST - 1, -32):
        word = tf.floor(powers * 2.0**-exponent)
        powers -= word * 2.0**exponent
        words.insert(0, tf.reduce_sum(tf.cast(word, tf.int64)))
    return tf.stack(words)
