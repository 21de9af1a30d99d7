"""Float64 arithmetic on TensorFlow's tensors. Results have the same bits in eager mode and in graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.ops import control_flow_util

from ..._compute.device import relative_powers
from ..._core.types import Scalar, Tensor

EAGER = tf.__internal__.EagerTensor
"""The type of eager tensors. A call of `tf.constant` here would start the runtime before users configure it."""

PIECE = 1 << 18
"""A piece of 2**18 elements takes 2 MiB in float64, which fits into a cache."""


LANES = 4
"""The maximum number of pieces of PIECE elements in memory."""


SHORT = 1 << 12
"""Copying a tensor up to this length is faster than starting an operation for it."""


def constant(number: float, dtype: Any) -> Tensor:
    """TensorFlow's cache for Python numbers would return 0.0 for -0.0, so NumPy converts the number."""
    return tf.constant(np.array(number, dtype.as_numpy_dtype))


def count_elements(tensor: Tensor) -> float:
    count = tensor.shape.num_elements()
    return math.inf if count is None else count


def is_for_xla() -> bool:
    if tf.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def computed_once(scalar: Scalar) -> Scalar:
    """Keep XLA from computing the scalar again for each use: multiply and divide it by the same factor."""
    if not is_for_xla():
        return scalar
    one, two = (constant(number, tf.float64) for number in (1.0, 2.0))
    factor = tf.where(tf.math.is_nan(scalar), two, one)  # XLA cannot simplify this, although NaN stays NaN
    return scalar * factor / factor


BARRIER = "XlaOptimizationBarrier"


def barrier(tensor: Tensor) -> Tensor:
    """Return the same tensor. XLA computes it before operations that use the returned tensor, if its shape is known."""
    is_known = tensor.shape.is_fully_defined()  # XLA has no barrier for other tensors
    return gen_xla_ops.xla_optimization_barrier([tensor])[0] if is_known else tensor


def pays_to_branch(tensors: Sequence[Tensor], coef: Scalar) -> bool:
    long = sum(map(count_elements, tensors)) > PIECE
    return long and coef.shape.rank == 0 and not tf.executing_eagerly() and not is_for_xla()


def split_long(tensors: Sequence[Tensor]) -> list[Tensor]:
    return list(tensors) if is_for_xla() else [piece for tensor in tensors for piece in split_one(tensor)]


def split_one(tensor: Tensor) -> list[Tensor]:
    elements = count_elements(tensor)
    if not PIECE < elements < math.inf:
        return [tensor]
    count, rest = divmod(int(elements), PIECE)
    pieces: list[Tensor] = tf.split(tf.reshape(tensor, [-1]), [PIECE] * count + [rest])
    return pieces


def join_short(tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[list[Tensor]], list[Tensor]]]:
    """Join the short tensors of each dtype. Return (joined tensors, function that splits results of joined tensors)."""
    groups: dict[object, list[int]] = {}
    max_short = 0 if is_for_xla() else SHORT
    for index, tensor in enumerate(tensors):
        joins = count_elements(tensor) <= max_short
        groups.setdefault((tensor.dtype, tensor.device) if joins else index, []).append(index)

    def split(results: list[Tensor]) -> list[Tensor]:
        by_index: dict[int, Tensor] = {}
        for result, group in zip(results, groups.values(), strict=True):
            by_index.update(zip(group, split_joined(result, [tensors[index].shape for index in group]), strict=True))
        return [by_index[index] for index in range(len(tensors))]

    return [concatenate([tensors[index] for index in group]) for group in groups.values()], split


def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat([reshape(tensor, [-1]) for tensor in tensors], axis=0)


def split_joined(joined: Tensor, shapes: Sequence[tf.TensorShape]) -> list[Tensor]:
    if len(shapes) == 1:
        return [joined]
    parts = tf.split(joined, [shape.num_elements() for shape in shapes])
    return [reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def reshape(tensor: Tensor, shape: Any) -> Tensor:
    return tensor if tensor.shape.rank == len(shape) == 1 else tf.reshape(tensor, shape)


def is_half(tensor: Tensor) -> bool:
    return tensor.dtype in (tf.float16, tf.bfloat16)


def real_parts(tensor: Tensor, p: float) -> list[Tensor]:
    if not tensor.dtype.is_complex:
        return [tf.cast(tensor, tf.float64)]
    if p == 2:
        return [tf.cast(part, tf.float64) for part in (tf.math.real(tensor), tf.math.imag(tensor))]
    return [magnitude(tensor)]


def magnitude(tensor: Tensor) -> Tensor:
    if not tensor.dtype.is_complex:
        return tf.abs(tf.cast(tensor, tf.float64))
    nan = tf.math.is_nan(tf.math.real(tensor)) | tf.math.is_nan(tf.math.imag(tensor))
    # abs(inf + nan j) is inf
    return tf.where(nan, constant(np.nan, tf.float64), tf.abs(tf.cast(tensor, tf.complex128)))


def powers(part: Tensor, p: float, divisor: Scalar) -> Tensor:
    """For p = 1, the caller has already divided `part`, and `divisor` is not used."""

    def where(condition: Tensor, yes: Any, no: Any) -> Tensor:
        return tf.where(condition, *(tf.convert_to_tensor(value, tf.float64) for value in (yes, no)))

    magnitudes = tf.abs(part)
    return magnitudes if p == 1 else relative_powers(magnitudes, p, divisor, where=where, log=tf.math.log, exp=tf.exp)


def max_abs(magnitudes: Tensor, **over: Any) -> Tensor:
    """Return 0 if there are no elements, and NaN if an element is NaN."""
    nan = tf.reduce_any(tf.math.is_nan(magnitudes), **over)
    top = tf.maximum(tf.reduce_max(magnitudes, **over), constant(0.0, tf.float64))
    return tf.where(nan, constant(np.nan, tf.float64), top)


def product(tensor: Tensor, coef: Scalar) -> Tensor:
    if tensor.dtype.is_complex:  # separately, because a complex product of inf and coef has NaN
        return tf.complex(product(tf.math.real(tensor), coef), product(tf.math.imag(tensor), coef))
    wide = tf.float32 if is_half(tensor) else tensor.dtype
    return tf.cast(tf.cast(tensor, wide) * tf.cast(coef, wide), tensor.dtype)


def in_host_memory(tensors: Sequence[Any]) -> bool:
    """Return False in a graph, because eager tensors become constants there."""
    return tf.executing_eagerly() and all(
        type(tensor) is EAGER and "/device:CPU:" in tensor.backing_device for tensor in tensors
    )
