"""Compare the order of the elements in two weights, to detect that one weight has to be transposed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from .._core.validation import COMPLEX
from .arithmetic import Float64s
from .types import Dense

Fingerprints = Sequence[float]
"""Weighted sums of the elements: one for the stored order of axes, one for the flattened weight, and one for every
further order that `axis_orders` returns."""

Order = Literal["same", "transposed", "reshaped", "other"]

SLICE = 1 << 20
"""A whole embedding in float64 would need too much memory, so at most SLICE elements are converted at a time."""

CHANNELS_LAST: Mapping[str | None, bool] = {"tensorflow": True, "jax": True, "torch": False, "paddle": False}
"""Whether the channels are the last axes of a framework's convolution kernels."""

SAME_TOLERANCE = 1e-6
"""Equal weights have fingerprints that differ by at most SAME_TOLERANCE times the norm."""


def fingerprints_of(array: Any, dtype: str) -> Fingerprints | None:
    """Return sums of the elements, weighted by factors that depend on the indices."""
    if dtype in COMPLEX:
        return None
    orders = axis_orders(array.shape)
    weight = array.reshape([length for length in array.shape if length != 1])
    shape = weight.shape
    split = min(range(weight.ndim + 1), key=lambda axis: math.prod(shape[:axis]) + math.prod(shape[axis:]))
    rows, columns = math.prod(shape[:split]), math.prod(shape[split:])
    places = [{axis: place for place, axis in enumerate(order)} for order in orders]
    of_rows = [*_cosines_and_sines(rows, columns), *(_factors(shape[:split], 0, each) for each in places)]
    of_columns = [*_cosines_and_sines(columns, 1, sign=1), *(_factors(shape[split:], split, each) for each in places)]
    sums, height = np.zeros(len(of_rows)), max(1, SLICE // max(1, columns))
    matrix, left, right = weight.reshape(rows, columns), np.stack(of_rows), np.stack(of_columns)
    for start in range(0, rows, height):
        part = slice(start, start + height)
        sums += ((right @ Dense(dtype, matrix[part]).values().T) * left[:, part]).sum(axis=1)
    own, *others = (float(total) for total in sums[2:])
    return [own, float(sums[0] + sums[1]), *others]


def sums_of(array: Any, dtype: str) -> tuple[float, float] | None:
    """Return the sum of the elements and the sum of their cubes, for a real matrix.

    Two matrices with the same norm and sums probably have the same elements. The elements can be in
    different orders, because frameworks store the gates of a GRU in different orders.
    """
    if dtype in COMPLEX or array.ndim != 2:
        return None
    flat = array.reshape(-1)
    parts = (Dense(dtype, flat[start : start + SLICE]).values() for start in range(0, flat.size, SLICE))
    totals = [(float(part.sum()), float((part**3).sum())) for part in parts]
    return math.fsum(total for total, _ in totals), math.fsum(cubes for _, cubes in totals)


def have_same_elements(a: Sequence[float], b: Sequence[float], norm: float) -> bool:
    """Compare the results of `sums_of` for two matrices with the same norm."""
    return all(abs(x - y) <= SAME_TOLERANCE * norm**power for x, y, power in zip(a, b, (1, 3), strict=True))


def without_ones(shape: Sequence[int | None]) -> list[int | None]:
    return [length for length in shape if length != 1]


def axis_orders(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the orders of axes in which frameworks store a weight. The first item is the order of `shape`.

    A convolution kernel has the axes (output, input, height, width) in PyTorch and Paddle, and (height, width, input,
    output) in Keras, TensorFlow and JAX.
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
    """Return a factor for each element. The factor is the product of a cosine for each axis."""
    product: Float64s = np.ones(1)
    for axis, length in enumerate(shape, first):
        place = places[axis] + 1
        product = np.outer(product, np.cos(place + math.sqrt(place + 1) * np.arange(length))).ravel()
    return product


def _cosines_and_sines(length: int, stride: int, *, sign: int = -1) -> Iterator[Float64s]:
    """Yield factors for rows or columns. Together, they multiply element k of the flattened weight by cos(sqrt(7) k):
    cos(x + y) = cos(x) cos(y) - sin(x) sin(y).
    """
    angles = math.sqrt(7) * stride * np.arange(length)
    yield np.cos(angles)
    yield sign * np.sin(angles)


Frameworks = tuple[str | None, str | None]


def may_be_channels_last(frameworks: Frameworks) -> tuple[bool, bool]:
    of_a, of_b = (CHANNELS_LAST.get(framework) for framework in frameworks)
    return (True, True) if None in (of_a, of_b) or of_a == of_b else (bool(of_a), bool(of_b))


def order_of(a: Fingerprints, b: Fingerprints, norm: float, frameworks: Frameworks = (None, None)) -> Order:
    """Compare the order of the elements in two weights with the same norm.

    The result "reshaped" means that the weights are equal only after both are flattened.
    """
    tolerance = SAME_TOLERANCE * norm
    if abs(a[0] - b[0]) <= tolerance:
        return "same"
    converted = [each[2:] if can else () for each, can in zip((a, b), may_be_channels_last(frameworks), strict=True)]
    if any(
        abs(own - other) <= tolerance
        for own, others in ((b[0], converted[0]), (a[0], converted[1]))
        for other in others
    ):
        return "transposed"
    return "reshaped" if abs(a[1] - b[1]) <= tolerance else "other"
