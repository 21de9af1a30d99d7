"""The data, the initial weights and the numbers that both training runs share."""

from __future__ import annotations

import numpy as np

STEPS = 12
RATE = 0.25
LIMIT = 0.5

_source = np.random.default_rng(6)


def _numbers(*shape: int) -> np.ndarray:
    """Return multiples of 1/8 from -1 to 1, with which all sums of the first step are exact in any order."""
    return (_source.integers(-8, 9, shape) / 8).astype(np.float32)


BATCHES, TARGETS = _numbers(STEPS, 4, 6), _numbers(STEPS, 4, 2)
WEIGHTS = {
    "hidden.weight": _numbers(6, 8),
    "hidden.bias": np.zeros(8, np.float32),
    "out.weight": _numbers(8, 2),
    "out.bias": np.zeros(2, np.float32),
}
"""The initial weights by name. A matrix has the shape (inputs, outputs), and PyTorch's matrices are transposed."""
