"""Norms as they come out where squares are added up in float32: what a port or a framework may do, and ours never."""

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
    """How the squares of all gradients are added up, and the norm that this gives."""
    if not gradients:
        return
    for way, add in WAYS.items():
        sums = np.array([add(_squares(gradient)) for gradient in gradients], np.float32)
        for parts in (sums, np.sqrt(sums) ** 2):  # of sums, and of norms
            yield way, float(np.sqrt(np.add.accumulate(parts)[-1]))
    yield "one after the other", float(np.sqrt(_running(gradients)))


def own_norms(gradients: Sequence[Dense | None]) -> Iterator[tuple[str, list[float]]]:
    """The same for the norm of each gradient."""
    for way, add in WAYS.items():
        yield way, [0.0 if gradient is None else float(np.sqrt(add(_squares(gradient)))) for gradient in gradients]


def _running(gradients: Sequence[Dense]) -> np.float32:
    """One sum that goes on from gradient to gradient."""
    total = np.float32(0)
    for gradient in gradients:
        total = np.add.accumulate(np.append(total, _squares(gradient)))[-1]
    return total


def _squares(gradient: Dense) -> Float32s:
    """Of the elements, and a zero, so that there is something to add up."""
    numbers = np.append(gradient.values(), 0.0).astype(np.float32)
    squares: Float32s = numbers * numbers
    return squares


def bound(count: int) -> float:
    """How far, relatively, a norm may be off at most for as many squares: half as far as their sum."""
    return count * 2.0**-25


def noise(count: int) -> float:
    """How far it commonly is off at most, since roundings go both ways; the root's is one of them."""
    return 2.0**-24 * (1 + math.sqrt(count))
