"""Twenty small batches and the first weights of a small model: the same numbers in every framework.

The model is `output(tanh(hidden(x)))`, both dense layers; its loss is the mean squared error. Everything is float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

STEPS, BATCH, INPUTS, UNITS = 20, 8, 4, 6
LEARNING_RATE = 0.125


def _numbers(seed: int, *shape: int) -> np.ndarray:
    """Return eighths from -1 to 1, by the recurrence of Park and Miller (1988)."""
    numbers = []
    for _ in range(int(np.prod(shape))):
        seed = seed * 48271 % 2147483647
        numbers.append(seed % 17 - 8)
    return (np.array(numbers, np.float32) / 8).reshape(shape)


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return inputs of shape (8, 4), and targets of shape (8, 1)."""
    for step in range(STEPS):
        inputs = _numbers(step + 1, BATCH, INPUTS)
        yield inputs, 2 * inputs[:, :1] - inputs[:, 1:2] + 1


def weights() -> dict[str, np.ndarray]:
    """Return the first weights by name. A weight has the shape (inputs, outputs). PyTorch's is its transpose."""
    return {
        "hidden.weight": _numbers(101, INPUTS, UNITS),
        "hidden.bias": np.zeros(UNITS, np.float32),
        "output.weight": _numbers(102, UNITS, 1),
        "output.bias": np.zeros(1, np.float32),
    }
