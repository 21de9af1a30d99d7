"""Create the gradients to clip, and read the shapes of gradients from a file."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..tensors import files
from ..tensors.types import UnreadableError
from .lists import Shape

Array = npt.NDArray[np.generic]


def create_gradients(shapes: Sequence[Shape], dtype: str) -> list[Array]:
    """All gradients repeat the same numbers, which saves time."""
    block: Array = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
    if dtype == "bfloat16":
        import ml_dtypes

        block = block.astype(ml_dtypes.bfloat16)
    return [np.resize(block[: prod(shape)], shape) for shape in shapes]


def shapes_in(path: Path) -> list[Shape]:
    gradients = files.read(path, files.scratch()).values()
    all_shapes: list[Shape] = [gradient.shape for gradient in gradients if gradient is not None]
    shapes = [shape for shape in all_shapes if prod(shape)]
    if not shapes:
        raise UnreadableError(f"{path}: the file has no tensor with elements. Pass a file with the weights of a model.")
    return shapes


def rough_norm(arrays: Sequence[Array]) -> float:
    return float(np.linalg.norm([np.linalg.norm(array.astype(np.float32)) for array in arrays]))
