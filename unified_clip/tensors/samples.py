"""Compare samples of tensors, which `recorder.samples` chooses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .._core.validation import COMPLEX
from ..recorder.samples import axis_orders, parts, positions
from .arithmetic import Float64s
from .types import Dense

SAME = 1e-5
"""Equal samples of weights differ by at most this fraction of their largest element."""

SLICE = 1 << 20
"""A whole embedding in float64 would need too much memory, so at most SLICE elements are converted at a time."""

Order = Literal["same", "transposed", "reshaped", "other"]


class Sample(NamedTuple):
    """Some elements of a tensor, as `positions` chooses them."""

    shape: Sequence[int]
    elements: Float64s

    def parts(self) -> list[Float64s]:
        """Return the elements of the flattened tensor, those in the order of the axes, and in each other order."""
        ends = np.cumsum([len(each) for each in parts(tuple(self.shape))])
        return np.split(self.elements, ends[:-1])

    def common_parts(self, other: Sample) -> list[tuple[int, int]]:
        """Return the parts that can have the same elements: in the same order of axes, or in that of the other."""
        if _kept(self.shape) == _kept(other.shape) and len(_kept(self.shape)) < 2:
            return [(place, place) for place in range(min(1, len(self.parts()) - 1), len(self.parts()))]
        same = [(1, 1)] if list(self.shape) == list(other.shape) else []
        moved = [(1, place) for place in range(2, len(other.parts()))]
        moved += [(place, 1) for place in range(2, len(self.parts()))]
        return same + [(i, j) for i, j in moved if _shape_of(self.shape, i) == _shape_of(other.shape, j)]

    def pairings(self, other: Sample) -> list[tuple[Float64s, Float64s]]:
        """Return the elements of both samples in each order that fits."""
        left, right = self.parts(), other.parts()
        return [(left[i], right[j]) for i, j in self.common_parts(other)]

    def is_square(self) -> bool:
        return len(self.shape) == 2 and self.shape[0] == self.shape[1] > 1


def sample_of(array: npt.NDArray[Any]) -> Sample:
    return Sample(array.shape, array.reshape(-1)[positions(array.shape)].astype(np.float64))


def order_of(a: Sample, b: Sample, slack: float = SAME) -> Order:
    """Compare the order of the elements of two weights with as many elements."""
    limit = slack * max(np.abs(each.elements).max(initial=0.0) for each in (a, b))
    if places := _places(a, b, limit):
        return "same" if places[0] == places[1] else "transposed"
    return "reshaped" if _are_equal(a.parts()[0], b.parts()[0], limit) else "other"


def aligned(a: Sample, b: Sample, weights: tuple[Sample, Sample]) -> tuple[Float64s, Float64s] | None:
    """Return the common elements of two gradients, whose weights are the same or transposed."""
    limit = SAME * max(np.abs(each.elements).max(initial=0.0) for each in weights)
    places = _places(*weights, limit)
    if places is None or list(a.shape) != list(weights[0].shape) or list(b.shape) != list(weights[1].shape):
        return None
    return a.parts()[places[0]], b.parts()[places[1]]


def _places(a: Sample, b: Sample, limit: float) -> tuple[int, int] | None:
    """Return the equal parts of two samples."""
    left, right = a.parts(), b.parts()
    return next(((i, j) for i, j in a.common_parts(b) if _are_equal(left[i], right[j], limit)), None)


def _are_equal(a: Float64s, b: Float64s, limit: float) -> bool:
    return len(a) == len(b) and bool((np.abs(a - b) <= limit).all())


def _kept(shape: Sequence[int]) -> list[int]:
    return [length for length in shape if length != 1]


def _shape_of(shape: Sequence[int], part: int) -> list[int]:
    return [_kept(shape)[axis] for axis in axis_orders(shape)[part - 1]]


def sums_of(array: npt.NDArray[Any], dtype: str) -> tuple[float, float] | None:
    """Return the sum of the elements and the sum of their cubes, for a real matrix."""
    if dtype in COMPLEX or array.ndim != 2:
        return None
    flat = array.reshape(-1)
    parts = (Dense(dtype, flat[start : start + SLICE]).values() for start in range(0, flat.size, SLICE))
    totals = [(float(part.sum()), float((part**3).sum())) for part in parts]
    return math.fsum(total for total, _ in totals), math.fsum(cubes for _, cubes in totals)


def have_same_elements(a: Sequence[float], b: Sequence[float], norm: float) -> bool:
    """Compare the sums of the elements and of their cubes, for two matrices with the same norm.

    The elements can be in different orders, because frameworks store the gates of a GRU in different orders.
    """
    return all(abs(x - y) <= SAME * norm**power for x, y, power in zip(a, b, (1, 3), strict=True))
