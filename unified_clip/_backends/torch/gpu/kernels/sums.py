"""The kernels for sums and norms. The error of each sum is bounded."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .exact_sums import STATE
from .shared import (
    INF,
    RUNTIME,
    add_pairs,
    add_rounded_pairs,
    chunk_at,
    in_vectors,
    magnitude_bits,
    squared,
    two_sum,
    vectors_at,
)

INFINITY: Any = tl.constexpr(float("inf"))
LEAST: Any = tl.constexpr(2.0**-900)
LARGEST: Any = tl.constexpr(2.0**1000)
"""The error bound of a float64 sum of squares requires a sum between LEAST and LARGEST.

In this range, no sum overflows, and no square loses bits as a subnormal number.
"""

NARROW_LEAST: Any = tl.constexpr(2.0**-72)
NARROW_LARGEST: Any = tl.constexpr(2.0**120)
"""The error bound holds for sums of float32 squares between NARROW_LEAST and NARROW_LARGEST.

There are at most 2**36 squares. Underflow changes each square by at most 2**-148.
"""


@triton.jit
def _zeros(order: tl.constexpr, width: tl.constexpr, wide: tl.constexpr, number: tl.constexpr) -> tl.tensor:
    """Return zeros for the arguments `high` and `low` of `_added`. `number` is the dtype of the sums."""
    low = tl.zeros([width], number)
    if order == INF:
        high = tl.zeros([width], tl.int64 if wide else tl.int32)
    else:
        high = low
    return high, low


@triton.jit
def _added(high: tl.tensor, low: tl.tensor, values: tl.tensor, order: tl.constexpr, wide: tl.constexpr) -> tl.tensor:
    """Add |values|**p to the sum (high, low). For INF, return the bits of the largest magnitude as `high`."""
    if order == INF:
        high = tl.maximum(high, magnitude_bits(values, wide))
    elif wide or high.dtype == tl.float32:
        numbers = values.to(high.dtype)
        if order == 2 and 2 * values.dtype.primitive_bitwidth > high.dtype.primitive_bitwidth:
            square, error = squared(numbers)
            high, low = add_pairs(high, low, square, error)
        else:
            high, error = two_sum(high, numbers * numbers if order == 2 else tl.abs(numbers))
            low += error
    elif order == 2:
        numbers = values.to(tl.float32).to(tl.float64)
        high = tl.fma(numbers, numbers, high)  # a square is exact in float64, so `fma` changes no bit
    else:
        high += tl.abs(values.to(tl.float32).to(tl.float64))
    return high, low


@triton.jit
def _total(high: tl.tensor, low: tl.tensor, order: tl.constexpr, wide: tl.constexpr) -> tl.tensor:
    if order == INF:
        total = tl.max(high, 0).to(tl.float64 if wide else tl.float32, bitcast=True)
        rest = tl.zeros([], low.dtype)
    elif wide or high.dtype == tl.float32:
        total, rest = tl.reduce((high, low), 0, add_rounded_pairs)
    else:
        total = tl.sum(high, 0)
        rest = tl.zeros([], tl.float64)
    return total, rest


@triton.jit(do_not_specialize=RUNTIME)
def add(
    table: tl.tensor, tensors: tl.tensor, first_chunk: tl.tensor, sums: tl.tensor,
    dtype: tl.constexpr, order: tl.constexpr, chunk_size: tl.constexpr, width: tl.constexpr, wide: tl.constexpr,
) -> None:  # fmt: skip
    """Store the sum of |g|**p of each chunk as two numbers. For INF, store the largest magnitude.

    If `sums` is float32, the kernel does not use float64.
    """
    chunk = first_chunk + tl.program_id(0).to(tl.int64)
    _, source, _, length = chunk_at(table, tensors, chunk, chunk_size, dtype)
    lanes = tl.arange(0, width)
    high, low = _zeros(order, width, wide, sums.dtype.element_ty)
    vectors = in_vectors(source, length, width)
    start = vectors_at(source, dtype)
    for at in range(0, vectors, width):
        high, low = _added(high, low, tl.load(start + at + lanes), order, wide)
    start = source.to(tl.pointer_type(dtype))
    for at in range(vectors, length, width):
        values = tl.load(start + at + lanes, mask=at + lanes < length, other=0.0)
        high, low = _added(high, low, values, order, wide)
    high, low = _total(high, low, order, wide)
    tl.store(sums + 2 * chunk, high)
    tl.store(sums + 2 * chunk + 1, low)


@triton.jit
def round_sums(
    groups: tl.tensor,
    sums: tl.tensor,
    norms: tl.tensor,
    states: tl.tensor,
    error: tl.constexpr,
    order: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Store the norm of each group of chunks. If p is not inf, also store whether the norm might be rounded wrongly.

    groups: Two numbers for each group: the index of the first chunk, and the index after the last chunk.
    """
    group = tl.program_id(0)
    begin, end = tl.load(groups + 2 * group), tl.load(groups + 2 * group + 1)
    lanes = tl.arange(0, width)
    high, low = tl.zeros([width], tl.float64), tl.zeros([width], tl.float64)
    for at in range(begin, end, width):
        mask = at + lanes < end
        here = sums + 2 * (at + lanes)
        other_high = tl.load(here, mask=mask, other=0.0).to(tl.float64)
        other_low = tl.load(here + 1, mask=mask, other=0.0).to(tl.float64)
        if order == INF:
            larger = tl.maximum(high.to(tl.int64, bitcast=True), other_high.to(tl.int64, bitcast=True))
            high = larger.to(tl.float64, bitcast=True)
        elif wide:
            high, low = add_pairs(high, low, other_high, other_low)
        else:
            high += other_high + other_low
    if order == INF:
        tl.store(norms + group, tl.max(high.to(tl.int64, bitcast=True), 0).to(tl.float64, bitcast=True))
    else:
        high, low = _total(high, low, order, wide)
        if wide:
            n, in_doubt = rounded_pair(high, low, error, order)
        else:
            n, in_doubt = _rounded(high, error, order)
            if sums.dtype.element_ty == tl.float32:
                in_doubt |= (high < NARROW_LEAST) | (high > NARROW_LARGEST) | (high != high)
        tl.store(norms + group, n)
        places = tl.arange(0, 256)
        state = tl.where(places == 0, in_doubt.to(tl.int64), tl.zeros([256], tl.int64))
        tl.store(states + group * STATE + places, state, mask=places < tl.where(in_doubt, STATE, 1))


@triton.jit
def _rounded(total: tl.tensor, error: tl.constexpr, order: tl.constexpr) -> tl.tensor:
    n = tl.sqrt(total) if order == 2 else total
    low, high = (n * (1.0 - error)).to(tl.float32), (n * (1.0 + error)).to(tl.float32)
    return low.to(tl.float64), (low != high) & (n < INFINITY)  # NaN is certain


@triton.jit
def rounded_pair(high: tl.tensor, low: tl.tensor, error: tl.constexpr, order: tl.constexpr) -> tl.tensor:
    """Return (norm rounded to float64, whether this norm might be rounded wrongly).

    The second value is also true if the sum is outside the range in which the error bound holds.
    """
    high, low = two_sum(high, low)
    is_bounded = (high >= LEAST) & (high <= LARGEST)
    if order == 2:
        n = tl.sqrt(high)
        square, rest = squared(n)
        low = ((high - square) - rest + low) / (2.0 * n)
    else:
        n = high
    least, most = n + (low - n * error), n + (low + n * error)
    return least, (least != most) | (is_bounded == 0)
