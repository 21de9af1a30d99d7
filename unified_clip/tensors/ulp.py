"""Distances between tensors in units in the last place (ULP)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .arithmetic import Float64s
from .types import Dense

Bits = npt.NDArray[np.unsignedinteger]


def ulps(left: Sequence[Dense | None], right: Sequence[Dense | None]) -> float:
    """Return the largest distance between elements with the same index, in ULP."""
    pairs = zip(left, right, strict=True)
    distances = (differences(a, b)[1] for a, b in pairs if a is not None and b is not None)
    return max((float(each.max(initial=0.0)) for each in distances), default=0.0)


def differences(left: Dense, right: Dense) -> tuple[npt.NDArray[np.intp], Float64s]:
    """Return the positions of the elements that differ, and their distances in ULP.

    Real and imaginary parts are separate elements. NaN and NaN do not differ. NaN differs from a number by inf. 0
    differs from -0 by 1.
    """
    left_bits, right_bits = left.bits().reshape(-1), right.bits().reshape(-1)
    differ = np.flatnonzero(left_bits != right_bits)
    if not differ.size:
        return differ, np.zeros(0)
    a, b = (_ordered(bits[differ], whole=left.dtype == "int64") for bits in (left_bits, right_bits))
    distances = np.where(a > b, a - b, b - a).astype(np.float64)
    for side in (left, right):
        distances[np.isnan(side.values().reshape(-1)[differ])] = math.inf
    return differ, distances


def _ordered(bits: Bits, *, whole: bool) -> Bits:
    sign = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    return bits ^ sign if whole else np.where(bits & sign, ~bits, bits ^ sign)
