"""Makes `weights.npz` and `batches.npz`, which all pairs train on: python docs/porting/make_data.py"""

from __future__ import annotations

from pathlib import Path

import numpy as np

STEPS, BATCH, INPUTS, UNITS, OUTPUTS = 10, 4, 6, 8, 2

SEED = 6

HERE = Path(__file__).parent


def numbers(source: np.random.Generator, *shape: int) -> np.ndarray:
    """Eighths from -1 to 1: with these, the first step's sums are exact, whatever their order."""
    return (source.integers(-8, 9, shape) / 8).astype(np.float32)


def weights(source: np.random.Generator) -> dict[str, np.ndarray]:
    """A layer's weight has the shape (inputs, outputs), as in Paddle and TensorFlow; PyTorch's is its transpose."""
    return {
        "hidden.weight": numbers(source, INPUTS, UNITS),
        "hidden.bias": np.zeros(UNITS, np.float32),
        "out.weight": numbers(source, UNITS, OUTPUTS),
        "out.bias": np.zeros(OUTPUTS, np.float32),
    }


def batches(source: np.random.Generator) -> dict[str, np.ndarray]:
    """Inputs, and what the network is to learn of them: x0 + x1 and x2 - x3."""
    x = numbers(source, STEPS, BATCH, INPUTS)
    return {"x": x, "y": np.stack([x[..., 0] + x[..., 1], x[..., 2] - x[..., 3]], axis=-1)}


if __name__ == "__main__":
    generator = np.random.default_rng(SEED)
    np.savez(HERE / "weights.npz", **weights(generator))
    np.savez(HERE / "batches.npz", **batches(generator))
