"""Norms with squares accumulated in float32: ports and frameworks may compute these, unified_clip never does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ...tensors.types import Dense

Float32s = npt.NDArray[np.float32]

WAYS: dict[str, Callable[[Float32s], np.float32]] = {
    "one after the other": lambda squares: np.add.accumulate(squares)[-1],
    "by blocks": lambda squares: np.sum(squares),
}


def norms(gradients: Sequence[Dense]) -> Iterator[tuple[str, float]]:
    """Yield each way to accumulate the squares of all gradients, with its norm."""
    if not gradients:
        return
    for way, add in WAYS.items():
        sums = np.array([add(_squares(gradient)) for gradient in gradients], np.float32)
        for parts in (sums, np.sqrt(sums) ** 2):  # of sums, and of norms
            yield way, float(np.sqrt(np.add.accumulate(parts)[-1]))
    yield "one after the other", float(np.sqrt(_running(gradients)))


def own_norms(gradients: Sequence[Dense | None]) -> Iterator[tuple[str, list[float]]]:
    """For each way to add squares in float32, yield its name and the norm of each gradient."""
    for way, add in WAYS.items():
        yield way, [0.0 if gradient is None else float(np.sqrt(add(_squares(gradient)))) for gradient in gradients]


def _running(gradients: Sequence[Dense]) -> np.float32:
    """Return a single running sum over all gradients."""
    total = np.float32(0)
    for gradient in gradients:
        total = np.add.accumulate(np.append(total, _squares(gradient)))[-1]
    return total


def _squares(gradient: Dense) -> Float32s:
    """Return the squares of the elements, and a zero, so that the array is not empty."""
    numbers = np.append(gradient.values(), 0.0).astype(np.float32)
    squares: Float32s = numbers * numbers
    return squares


def bound(count: int) -> float:
    """Return the largest possible relative error of the norm of `count` squares: half that of their sum."""
    return count * 2.0**-25


def noise(count: int) -> float:
    """Return the usual largest relative error: roundings go both ways. The root is one of them."""
    return 2.0**-24 * (1 + math.sqrt(count))
