"""Norms in graphs of a strategy, correctly rounded: where a float64 sum leaves that open, integers decide.

A float64 sum is off by a known share at most. Where both ends of that interval have the same root in float32, it is the
nearest one. Where not, the exact sum is compared with the power of the middle between the two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from ..._core.types import Scalar, Tensor

WORDS = 18
"""Of 32 bits, which hold the squares of all float32 and of the middles between them."""

LOWEST = -304
"""The exponent of the lowest bit: squares of float32 are 2**-298 or more, or 0."""

INFINITY = 2.0**128
"""What stands for it: the float32 that would follow the largest."""

PIECE = 1 << 18
"""The elements that are taken apart at a time."""

SCALAR = tf.TensorSpec([], tf.float64)
SIGNATURE = [SCALAR, SCALAR, tf.TensorSpec([WORDS], tf.int64), SCALAR]

Terms = Callable[[Tensor, float], Tensor]
"""A function of a tensor and p: its |g|**p in float64, exact, flat, and from 2**-300 to 2**256, or 0."""


def settled(total: Scalar, additions: Scalar | float, tensors: Sequence[Tensor], p: float, terms: Terms) -> Scalar:
    """The sum of the terms of all tensors, or a number near it whose root of order p (1 or 2) is the correct norm.

    Args:
        total: The float64 sum, which alone has derivatives.
        additions: How many of them a term has gone through, at most.
    """
    here = tf.stop_gradient(total)
    slack = (additions + 16.0) * 2.0**-53  # 16: for the roots, and for what two errors make together
    low, high = (_root(here * end, p) for end in (1.0 - slack, 1.0 + slack))
    is_open = low < high

    def nearest() -> Scalar:
        words = tf.zeros([WORDS], tf.int64)
        for tensor in tensors:
            with tf.control_dependencies([words]):  # one after the other, for the memory that they take
                words += _sum(terms, tensor.dtype, p)(tf.reshape(tf.stop_gradient(tensor), [-1]))
        return _nearer(low, tf.minimum(high, INFINITY), words, tf.constant(p, tf.float64))

    n = tf.cond(is_open, nearest, lambda: tf.identity(low))
    # Both sums are so near that their difference is exact, and so what is added comes out as the other.
    change = tf.where(is_open, (n * n if p == 2 else n) - here, tf.zeros_like(here))
    return total + tf.stop_gradient(change)


def _root(total: Scalar, p: float) -> Scalar:
    return tf.cast(tf.cast(tf.sqrt(total) if p == 2 else total, tf.float32), tf.float64)


@functools.partial(tf.function, input_signature=SIGNATURE, autograph=False)
def _nearer(low: Scalar, high: Scalar, words: Tensor, p: Scalar) -> Scalar:
    """Which of two neighbours in float32 is nearer to the root of a sum; of both, the even one."""
    middle = (low + high) / 2.0
    words -= _words(tf.reshape(tf.where(p > 1.0, middle * middle, middle), [1]))
    carry, rest = tf.constant(0, tf.int64), tf.constant(0, tf.int64)
    for word in tf.unstack(words):
        carry, rest = (word + carry) // 2**32, tf.maximum(rest, (word + carry) % 2**32)
    is_odd = low / (high - low) % 2.0 > 0.0
    return tf.where((carry > 0) | ((carry >= 0) & ((rest > 0) | is_odd)), high, low)


@functools.cache
def _sum(terms: Terms, dtype: tf.DType, p: float) -> Callable[[Tensor], Tensor]:
    """A function of a flat tensor: the exact sum of its terms, in words. It is traced once, whatever the length."""

    def words(elements: Tensor) -> Tensor:
        def added(start: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
            return start + PIECE, total + _words(terms(elements[start : start + PIECE], p))

        begun = (tf.constant(0, tf.int64), tf.zeros([WORDS], tf.int64))
        count = tf.shape(elements, tf.int64)[0]
        return tf.while_loop(lambda start, _: start < count, added, begun, parallel_iterations=1)[1]

    function: Callable[[Tensor], Tensor] = tf.function(words, [tf.TensorSpec([None], dtype)], autograph=False)
    return function


def _words(terms: Tensor) -> Tensor:
    """The exact sum of terms, in words that may each be larger than 32 bits, by arithmetic that loses nothing."""
    words: list[Tensor] = []
    for exponent in range(LOWEST + 32 * (WORDS - 1), LOWEST - 1, -32):
        word = tf.floor(terms * 2.0**-exponent)
        terms -= word * 2.0**exponent
        words.insert(0, tf.reduce_sum(tf.cast(word, tf.int64)))
    return tf.stack(words)
