"""Float64 arithmetic on TensorFlow's tensors: sums, products and roundings that graphs do not change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from ..._compute.device import odd_bits
from ..._core.types import Scalar, Tensor

EAGER = tf.__internal__.EagerTensor
"""The type itself: making a tensor to ask for its type would start the runtime, which cannot be configured then."""

PIECE = 1 << 18
"""The elements of a long tensor that are cast to float64 at a time: 2 MiB, which stay in a cache."""


LANES = 4
"""How many pieces are in memory as float64 at a time."""


SHORT = 1 << 12
"""Up to so many elements, an operation takes longer to start than the elements to be copied."""


def constant(number: float, dtype: Any) -> Tensor:
    """Return a number that `dtype` holds, as a tensor.

    By way of an array: eager TensorFlow keeps small constants of Python numbers, and gives -0.0 the one of 0.0.
    """
    return tf.constant(np.array(number, dtype.as_numpy_dtype))


def count_elements(tensor: Tensor) -> float:
    """Return how many there are; inf where that is not known."""
    count = tensor.shape.num_elements()
    return math.inf if count is None else count


def is_for_xla() -> bool:
    """Return whether a graph is being made that XLA compiles: it fuses what reads a tensor, however long or short."""
    if tf.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def computed_once(scalar: Scalar) -> Scalar:
    """The same numbers; for XLA as a quotient. It computes divisions once, but repeats cheaper operations, the sum over
    all tensors among them, in every loop that needs their result: in the scaling of every tensor."""
    if not is_for_xla():
        return scalar
    one, two = (constant(number, tf.float64) for number in (1.0, 2.0))
    factor = tf.where(tf.math.is_nan(scalar), two, one)  # that NaN stays NaN anyway is not known to XLA
    return scalar * factor / factor


def has_to_be_exact(tensors: Sequence[Tensor]) -> bool:
    """Return whether to make sure of the last bit by a branch, so that it is that of one process: under a strategy.

    XLA would compile the branch every time, and an eager one waits for the device.
    """
    if not tf.distribute.has_strategy():
        return False
    return in_host_memory(tensors) if tf.executing_eagerly() else not is_for_xla()


def additions(pieces: Sequence[Tensor]) -> Any:
    """Return how many additions any element of the pieces goes through, at most, until all are summed."""
    known = [count for count in map(count_elements, pieces) if count < math.inf]
    unknown = [tf.size(piece, tf.int64) for piece in pieces if count_elements(piece) == math.inf]
    return max(known, default=0.0) + 2.0 * len(pieces) + sum(tf.cast(size, tf.float64) for size in unknown)


def terms(piece: Tensor, p: float) -> Tensor:
    """|g|**p of a flat piece, of which float64 holds all bits."""
    parts = real_parts(piece, p)
    return tf.concat([tf.square(part) if p == 2 else tf.abs(part) for part in parts], axis=0)


def pays_to_branch(tensors: Sequence[Tensor], coef: Scalar) -> bool:
    """Whether to leave out a multiplication by 1: a branch has to be built, and an eager one waits for the device."""
    long = sum(map(count_elements, tensors)) > PIECE
    return long and coef.shape.rank == 0 and not tf.executing_eagerly() and not is_for_xla()


def split_long(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the same elements, in tensors that are not very long."""
    return list(tensors) if is_for_xla() else [piece for tensor in tensors for piece in split_one(tensor)]


def split_one(tensor: Tensor) -> list[Tensor]:
    elements = count_elements(tensor)
    if not PIECE < elements < math.inf:
        return [tensor]
    whole, rest = divmod(int(elements), PIECE)
    pieces: list[Tensor] = tf.split(tf.reshape(tensor, [-1]), [PIECE] * whole + [rest])
    return pieces


def join_short(tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[list[Tensor]], list[Tensor]]]:
    """The tensors with the short ones of a dtype in one, and a function that takes as many results apart again."""
    groups: dict[object, list[int]] = {}
    most = 0 if is_for_xla() else SHORT
    for index, tensor in enumerate(tensors):
        together = count_elements(tensor) <= most
        groups.setdefault((tensor.dtype, tensor.device) if together else index, []).append(index)

    def apart(results: list[Tensor]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for result, group in zip(results, groups.values(), strict=True):
            found.update(zip(group, separate(result, [tensors[index].shape for index in group]), strict=True))
        return [found[index] for index in range(len(tensors))]

    return [end_to_end([tensors[index] for index in group]) for group in groups.values()], apart


def end_to_end(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat([of_shape(tensor, [-1]) for tensor in tensors], axis=0)


def separate(joined: Tensor, shapes: Sequence[tf.TensorShape]) -> list[Tensor]:
    if len(shapes) == 1:
        return [joined]
    parts = tf.split(joined, [shape.num_elements() for shape in shapes])
    return [of_shape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def of_shape(tensor: Tensor, shape: Any) -> Tensor:
    return tensor if tensor.shape.rank == len(shape) == 1 else tf.reshape(tensor, shape)


def is_short(tensor: Tensor) -> bool:
    return tensor.dtype in (tf.float16, tf.bfloat16)


def real_parts(tensor: Tensor, p: float) -> list[Tensor]:
    """Real float64 tensors with the same sum of |g|**p: for a complex tensor its two parts (p = 2) or its magnitude."""
    if not tensor.dtype.is_complex:
        return [tf.cast(tensor, tf.float64)]
    if p == 2:
        return [tf.cast(part, tf.float64) for part in (tf.math.real(tensor), tf.math.imag(tensor))]
    return [magnitude(tensor)]


def magnitude(tensor: Tensor) -> Tensor:
    if not tensor.dtype.is_complex:
        return tf.abs(tf.cast(tensor, tf.float64))
    nan = tf.math.is_nan(tf.math.real(tensor)) | tf.math.is_nan(tf.math.imag(tensor))
    return tf.where(nan, constant(np.nan, tf.float64), tf.abs(tf.cast(tensor, tf.complex128)))  # of inf + nan j: inf


def powers(part: Tensor, p: float, divisor: Scalar) -> Tensor:
    """|x / divisor|**p, but |x| for p = 1; where x is 0, so is the derivative."""
    magnitudes = tf.abs(part)
    if p == 1:
        return magnitudes
    zero = tf.equal(magnitudes, 0.0)
    below = tf.math.log(tf.where(zero, divisor, magnitudes)) - tf.math.log(divisor)
    rounding = (below > 0.0) & (magnitudes < np.inf)  # it is at most 0
    powers = tf.exp(constant(p, tf.float64) * tf.where(rounding, tf.zeros_like(part), below))
    return tf.where(zero, tf.zeros_like(part), powers)


def max_abs(magnitudes: Tensor, **over: Any) -> Tensor:
    """Return the greatest; 0 for none, NaN if there is any."""
    nan = tf.reduce_any(tf.math.is_nan(magnitudes), **over)
    greatest = tf.maximum(tf.reduce_max(magnitudes, **over), constant(0.0, tf.float64))
    return tf.where(nan, constant(np.nan, tf.float64), greatest)


def product(tensor: Tensor, coef: Scalar) -> Tensor:
    """tensor * coef, in float32 with coef rounded to it, but for float64 and complex128."""
    if tensor.dtype.is_complex:  # each part on its own: a complex product makes NaN of inf * coef
        return tf.complex(product(tf.math.real(tensor), coef), product(tf.math.imag(tensor), coef))
    wide = tf.float32 if is_short(tensor) else tensor.dtype
    return tf.cast(tf.cast(tensor, wide) * tf.cast(coef, wide), tensor.dtype)


def rounded_bound(bound: Any, dtype: Any) -> Tensor:
    if not isinstance(bound, tf.Tensor):
        return constant(bound, dtype)
    if dtype not in (tf.float16, tf.bfloat16):
        return tf.cast(bound, dtype)
    once, twice = tf.cast(rounded_to_odd(tf.cast(bound, tf.float64)), dtype), tf.cast(bound, dtype)
    return tf.where(tf.equal(once, twice), twice, once)  # `twice`, nearly always, has the derivative


def rounded_to_odd(wide: Tensor) -> Tensor:
    near = tf.cast(wide, tf.float32)
    return tf.bitcast(odd_bits(wide, tf.cast(near, tf.float64), tf.bitcast(near, tf.int32), tf.where), tf.float32)


def in_host_memory(tensors: Sequence[Any]) -> bool:
    """Whether all are eager tensors on the CPU, seen from eager code: inside a graph, one is a constant to trace."""
    return tf.executing_eagerly() and all(
        type(tensor) is EAGER and "/device:CPU:" in tensor.backing_device for tensor in tensors
    )
