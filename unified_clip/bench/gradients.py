"""Create the gradients to clip, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from .lists import Shape

Array = npt.NDArray[np.generic]


def create_gradients(shapes: Sequence[Shape], dtype: str) -> list[Array]:
    """Return gradients of normally distributed numbers. All gradients repeat the same random block, to save time."""
    block: Array = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
    if dtype == "bfloat16":
        import ml_dtypes

        block = block.astype(ml_dtypes.bfloat16)
    return [np.resize(block[: prod(shape)], shape) for shape in shapes]


def rough_norm(arrays: Sequence[Array]) -> float:
    """Return the approximate total norm of the arrays."""
    return float(np.linalg.norm([np.linalg.norm(array.astype(np.float32)) for array in arrays]))
