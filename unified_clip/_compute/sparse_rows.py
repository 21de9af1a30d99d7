"""Sum the repeated rows of sparse gradients."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core.exact import FORMATS, nearest
from .kernels import Array, decode, encode, part_dtype, round_to, wider_than
from .processor import ieee_arithmetic


def merge_rows(indices: npt.NDArray[Any], values: Array, dtype: str) -> tuple[npt.NDArray[Any], Array]:
    """Sum the rows that have equal indices. Return (unique indices, sums), with each sum rounded once.

    indices: An array of shape (k, n). Column i has the k indices of `values[i]`.
    values: An array of shape (n, ...).
    """
    unique, inverse = np.unique(indices, axis=1, return_inverse=True) if len(indices) > 1 else unique_row(indices)
    order = np.argsort(inverse, kind="stable", axis=None)
    starts = np.searchsorted(inverse.ravel()[order], np.arange(unique.shape[1]))
    with ieee_arithmetic():
        return unique, sum_segments(values[order], starts, dtype)


def unique_row(indices: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.intp]]:
    unique, inverse = np.unique(indices[0], return_inverse=True)
    return unique[np.newaxis], inverse


def sum_segments(rows: Array, starts: npt.NDArray[np.intp], dtype: str) -> Array:
    """Sum the rows from each index in `starts` to the next index. Each sum is correctly rounded."""
    if dtype.startswith("complex"):
        result = np.empty((len(starts), *rows.shape[1:]), rows.dtype)
        result.real, result.imag = (sum_segments(part, starts, part_dtype(dtype)) for part in (rows.real, rows.imag))
        return result
    if len(starts) == len(rows):
        return rows
    if dtype not in FORMATS:  # integers
        sums: Array = np.add.reduceat(rows, starts, axis=0, dtype=rows.dtype)
        return sums
    lengths = np.diff(starts, append=len(rows))
    wide = wider_than(dtype) or np.float64
    numbers = decode(rows, dtype).astype(wide)
    totals = np.add.reduceat(numbers, starts, axis=0)
    finite = np.logical_and.reduceat(np.isfinite(numbers), starts, axis=0)
    counts = lengths.reshape(-1, *[1] * (rows.ndim - 1))
    error = np.add.reduceat(np.abs(numbers), starts, axis=0) * (counts * np.finfo(wide).eps)
    rounded = round_to(np.where(finite, totals - error, totals), dtype)
    unsure = finite & (counts > 1) & (rounded != round_to(totals + error, dtype))
    for segment, *rest in np.argwhere(unsure):
        column = numbers[(slice(starts[segment], starts[segment] + lengths[segment]), *rest)]
        rounded[(segment, *rest)] = nearest(sum(map(Fraction, map(float, column)), Fraction(0)), dtype)
    return np.where(counts > 1, encode(rounded, dtype), rows[starts])
