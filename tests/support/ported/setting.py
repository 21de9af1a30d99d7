"""What the two training runs have in common: the data, the initial weights, and the numbers."""

from __future__ import annotations

import numpy as np

STEPS = 12
RATE = 0.25
LIMIT = 0.5

_source = np.random.default_rng(6)


def _numbers(*shape: int) -> np.ndarray:
    """Multiples of 1/8 from -1 to 1: with these, the first step's sums are exact, whatever their order."""
    return (_source.integers(-8, 9, shape) / 8).astype(np.float32)


BATCHES, TARGETS = _numbers(STEPS, 4, 6), _numbers(STEPS, 4, 2)
WEIGHTS = {
    "hidden.weight": _numbers(6, 8),
    "hidden.bias": np.zeros(8, np.float32),
    "out.weight": _numbers(8, 2),
    "out.bias": np.zeros(2, np.float32),
}
"""By name; a matrix as inputs by outputs, which PyTorch has transposed."""
