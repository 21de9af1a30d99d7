"""Compute fingerprints of the order of a weight's elements. They show a weight that a port has not transposed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from .._core.validation import COMPLEX
from .arithmetic import Float64s
from .types import Dense

Arrangement = Sequence[float]
"""Two fingerprints: of the weight, and of its transpose."""

SLICE = 1 << 20
"""The number of elements that are converted to float64 at once, so that large embeddings are not copied whole."""

SAME = 1e-6
"""Fingerprints of equal weights differ by rounding: by at most this factor of the norm of the weight."""


def arrangement(array: Any, dtype: str) -> Arrangement | None:
    """Return [fingerprint of a weight, fingerprint of its transpose].

    A fingerprint is the sum of the elements times factors that depend on the indices. A vector counts as a matrix with
    one row. Return None if the weight is complex, or has no axis or more than two.

    array: The elements of the weight.
    dtype: The name of its dtype, such as "bfloat16".
    """
    if array.ndim not in (1, 2) or dtype in COMPLEX:
        return None
    matrix = array if array.ndim == 2 else array[np.newaxis]
    rows, columns = matrix.shape
    of_rows = np.stack([_row_factors(rows), _column_factors(rows)])
    of_columns = np.stack([_column_factors(columns), _row_factors(columns)])
    sums, height = np.zeros(2), max(1, SLICE // max(1, columns))
    for start in range(0, rows, height):
        part = slice(start, start + height)
        sums += ((of_columns @ Dense(dtype, matrix[part]).values().T) * of_rows[:, part]).sum(axis=1)
    return [float(total) for total in sums]


def _row_factors(length: int) -> Float64s:
    factors: Float64s = np.cos(1.0 + math.sqrt(2) * np.arange(length))
    return factors


def _column_factors(length: int) -> Float64s:
    factors: Float64s = np.cos(2.0 + math.sqrt(3) * np.arange(length))
    return factors


def order_of(a: Arrangement, b: Arrangement, norm: float) -> Literal["same", "transposed", "other"]:
    """Compare the order of the elements of two weights, by their fingerprints `a` and `b`.

    Return "transposed" if the transpose of one weight has the order of the other weight. Else return "same" or "other".
    A symmetric weight is "same".

    norm: The norm of the weights, which is the same for both. Fingerprints of the same order differ by rounding only,
    which is a small share of the norm.
    """
    tolerance = SAME * norm
    if abs(a[0] - b[0]) <= tolerance:
        return "same"
    return "transposed" if abs(a[0] - b[1]) <= tolerance else "other"
