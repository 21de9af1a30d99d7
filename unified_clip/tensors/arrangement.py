"""Compare the order of the elements of two weights by fingerprints, to find a weight that a port should transpose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from .._core.validation import COMPLEX
from .arithmetic import Float64s
from .types import Dense

Arrangement = Sequence[float]
"""Fingerprints of a weight. The first is for the weight's own order of axes. The second is for the flat sequence of its
elements, and does not depend on the shape. The next ones are for the further results of `axis_orders`.
"""

Order = Literal["same", "transposed", "reshaped", "other"]

SLICE = 1 << 20
"""The number of elements that are converted to float64 at once, so that large embeddings are not copied whole."""

CHANNELS_LAST: Mapping[str | None, bool] = {"tensorflow": True, "jax": True, "torch": False, "paddle": False}
"""By framework: whether the channels of a convolution's kernel are the last axes of the kernel."""

SAME_TOLERANCE = 1e-6
"""The fingerprints of equal weights differ by rounding only: by at most SAME_TOLERANCE times the norm of the weight."""


def arrangement(array: Any, dtype: str) -> Arrangement | None:
    """Return the fingerprints of a weight, or None if it is complex.

    A fingerprint is the sum of the elements times factors that depend on the indices. Axes of length 1 do not count.

    array: The elements of the weight, as in `Dense`: for bfloat16, an array of uint16.
    dtype: The name of its dtype, such as "bfloat16".
    """
    if dtype in COMPLEX:
        return None
    orders = axis_orders(array.shape)
    weight = array.reshape([length for length in array.shape if length != 1])
    shape = weight.shape
    split = min(range(weight.ndim + 1), key=lambda axis: math.prod(shape[:axis]) + math.prod(shape[axis:]))
    rows, columns = math.prod(shape[:split]), math.prod(shape[split:])
    places = [{axis: place for place, axis in enumerate(order)} for order in orders]
    of_rows = [*_turned(rows, columns), *(_factors(shape[:split], 0, each) for each in places)]
    of_columns = [*_turned(columns, 1, sign=1), *(_factors(shape[split:], split, each) for each in places)]
    sums, height = np.zeros(len(of_rows)), max(1, SLICE // max(1, columns))
    matrix, left, right = weight.reshape(rows, columns), np.stack(of_rows), np.stack(of_columns)
    for start in range(0, rows, height):
        part = slice(start, start + height)
        sums += ((right @ Dense(dtype, matrix[part]).values().T) * left[:, part]).sum(axis=1)
    own, *others = (float(total) for total in sums[2:])
    return [own, float(sums[0] + sums[1]), *others]


def sums_of(array: Any, dtype: str) -> tuple[float, float] | None:
    """Return the sums of the elements of a matrix and of their cubes, or None for any other weight.

    Together with the norm, the sums show whether two matrices have the same elements in different orders, as the gates
    of a GRU may have. For the kernel of a convolution, no framework uses such an order.
    """
    if dtype in COMPLEX or array.ndim != 2:
        return None
    flat = array.reshape(-1)
    parts = (Dense(dtype, flat[start : start + SLICE]).values() for start in range(0, flat.size, SLICE))
    totals = [(float(part.sum()), float((part**3).sum())) for part in parts]
    return math.fsum(total for total, _ in totals), math.fsum(cubes for _, cubes in totals)


def have_same_elements(a: Sequence[float], b: Sequence[float], norm: float) -> bool:
    """Return whether two weights of the same norm have the same elements, by the results of `sums_of`."""
    return all(abs(x - y) <= SAME_TOLERANCE * norm**power for x, y, power in zip(a, b, (1, 3), strict=True))


def without_ones(shape: Sequence[int | None]) -> list[int | None]:
    """Return a shape without the axes of length 1."""
    return [length for length in shape if length != 1]


def axis_orders(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the orders of axes that a weight of this shape may have in frameworks, its own order first.

    The kernel of a convolution has the axes (output, input, height, width) in PyTorch and Paddle, and the axes (height,
    width, input, output) in Keras, TensorFlow and JAX. The axes are numbered without axes of length 1.
    """
    last = len(shape) - 1
    orders = [tuple(range(len(shape)))]
    if last > 0:
        orders.append((last, last - 1, *range(last - 1)))
    if last == 2:
        orders.append((0, 2, 1))  # a batch of matrices, such as those of experts
    kept = [axis for axis, length in enumerate(shape) if length != 1]
    return list(dict.fromkeys(tuple(kept.index(axis) for axis in order if axis in kept) for order in orders))


def _factors(shape: Sequence[int], first: int, places: dict[int, int]) -> Float64s:
    """Return the factors of a block of neighbouring axes, for all their indices, as a flat array.

    A factor is a product with one cosine for each axis. The cosine depends on the index and on the place of the axis.

    shape: The lengths of these axes.
    first: The number of the first of these axes.
    places: For each axis, its place in an order of axes.
    """
    product: Float64s = np.ones(1)
    for axis, length in enumerate(shape, first):
        place = places[axis] + 1
        product = np.outer(product, np.cos(place + math.sqrt(place + 1) * np.arange(length))).ravel()
    return product


def _turned(length: int, stride: int, *, sign: int = -1) -> Iterator[Float64s]:
    """Yield the factors of rows or columns for the fingerprint without axes: the cosines, and then the sines.

    The factor of an element is the cosine of its position x + y: cos(x + y) = cos(x) cos(y) - sin(x) sin(y).

    stride: The distance of neighbouring rows or columns in the flat sequence of elements.
    """
    angles = math.sqrt(7) * stride * np.arange(length)
    yield np.cos(angles)
    yield sign * np.sin(angles)


Frameworks = tuple[str | None, str | None]


def convertible(frameworks: Frameworks) -> tuple[bool, bool]:
    """Return, for each of two weights, whether it may be a kernel with the channels last, given both frameworks.

    If one framework has the channels last and the other has them first, only the weight with the channels last may be
    such a kernel. Otherwise, both weights may be.
    """
    of_a, of_b = (CHANNELS_LAST.get(framework) for framework in frameworks)
    return (True, True) if None in (of_a, of_b) or of_a == of_b else (bool(of_a), bool(of_b))


def order_of(a: Arrangement, b: Arrangement, norm: float, frameworks: Frameworks = (None, None)) -> Order:
    """Compare the order of the elements of two weights, by their fingerprints `a` and `b`.

    Return "same" if both have the same order of axes, or if both orders give the same weight, as for a symmetric
    matrix. Return "transposed" if one weight has the order of axes that the other weight may have in another framework.
    Return "reshaped" if only the flat sequences of their elements are the same. Otherwise, return "other".

    norm: The norm of the weights, which is the same for both.
    frameworks: The framework of each weight, or None if it is unknown.
    """
    tolerance = SAME_TOLERANCE * norm
    if abs(a[0] - b[0]) <= tolerance:
        return "same"
    converted = [each[2:] if can else () for each, can in zip((a, b), convertible(frameworks), strict=True)]
    if any(
        abs(own - other) <= tolerance
        for own, others in ((b[0], converted[0]), (a[0], converted[1]))
        for other in others
    ):
        return "transposed"
    return "reshaped" if abs(a[1] - b[1]) <= tolerance else "other"
