"""Exact sums of float64 numbers in NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._core.exact import BLOCK, Accumulator

CHUNK = 16 * BLOCK
"""This many float64 numbers fit into the cache."""

LIMB = 18
"""A mantissa of 53 bits is split into three limbs of 18, 18 and 17 bits.

A limb, or a sum of products of two limbs, is below 2**37. A sum of CHUNK such numbers is below 2**53.
"""


def sum_exactly(values: npt.NDArray[np.float64], p: int) -> Accumulator:
    """Return the exact sum of |x|**p of finite numbers, for p of 1 or 2."""
    total = 0
    for start in range(0, values.size, CHUNK):
        bits = np.ascontiguousarray(values[start : start + CHUNK]).view(np.uint64)
        exponent = ((bits >> np.uint64(52)) & np.uint64(0x7FF)).astype(np.int64)
        mantissa = bits & np.uint64((1 << 52) - 1) | (exponent > 0).astype(np.uint64) << np.uint64(52)
        exponent = np.maximum(exponent, 1) - 1  # |x| is mantissa * 2**exponent in units of 2**-1074
        a, b, c = (
            ((mantissa >> np.uint64(k * LIMB)) & np.uint64((1 << LIMB) - 1)).astype(np.float64) for k in range(3)
        )
        limbs = [a, b, c] if p == 1 else [a * a, 2 * a * b, 2 * a * c + b * b, 2 * b * c, c * c]
        for k, limb in enumerate(limbs):
            sums = np.bincount(exponent, weights=limb)  # exact: integers below 2**53
            for e in np.flatnonzero(sums):
                total += int(sums[e]) << (p * int(e) + k * LIMB + (1074 if p == 1 else 0))
    return Accumulator(total)
