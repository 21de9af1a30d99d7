"""Choose some elements of a tensor, so that samples of a tensor and of its transpose have common elements."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Positions = npt.NDArray[np.int64]

ELEMENTS, FLAT = 32, 8
"""The number of elements that are spread over the axes, and over the flattened tensor."""


def axis_orders(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the orders of axes in which frameworks store a weight, without axes of length 1. The first is that of
    `shape`.

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


@functools.lru_cache(maxsize=4096)
def positions(shape: tuple[int, ...]) -> Positions:
    """Return the positions of the sample in the flattened tensor. Positions can repeat in a small tensor."""
    return np.concatenate(parts(shape))


def parts(shape: tuple[int, ...]) -> list[Positions]:
    """Return the positions over the flattened tensor, and over the axes in each order."""
    lengths, size = [length for length in shape if length != 1], functools.reduce(int.__mul__, shape, 1)
    if not size:
        return [np.zeros(0, np.int64)]
    orders = axis_orders(shape)
    count = min(ELEMENTS // len(orders), size)
    found = [np.arange(min(FLAT, size)) * size // min(FLAT, size)]
    for order in orders:
        spread = dict(zip(order, _spread([lengths[axis] for axis in order], count)))
        indices = tuple(spread[axis] for axis in range(len(lengths)))
        found.append(np.ravel_multi_index(indices, lengths) if lengths else np.zeros(1, np.int64))
    return found


def _spread(lengths: Sequence[int], count: int) -> list[Positions]:
    """Return indices for each axis, by the additive recurrence of the root of x^(d + 1) = x + 1, which fills d axes
    evenly."""
    root = 2.0
    for _ in range(50):
        root = (1 + root) ** (1 / (len(lengths) + 1))
    steps = np.arange(1, count + 1)
    return [((0.5 + steps / root**axis) % 1 * length).astype(np.int64) for axis, length in enumerate(lengths, start=1)]


def sample(array: npt.NDArray[Any]) -> list[float]:
    elements: list[float] = array.reshape(-1)[positions(array.shape)].astype(np.float64).tolist()
    return elements
