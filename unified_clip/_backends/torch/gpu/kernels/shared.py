"""Functions that several kernels call."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

INF: Any = tl.constexpr(0)
"""The value of `order` for p = inf, where the norm is the largest magnitude."""

RUNTIME = ("tensors", "first_chunk", "end_chunk", "low", "high")
"""Triton does not compile a kernel again for new values of these arguments."""

HIGH_BITS: Any = tl.constexpr(-(2**27))
NARROW_HIGH_BITS: Any = tl.constexpr(-(2**12))
"""Masks for the upper 26 bits of a float64 significand, and the upper 12 bits of a float32 significand."""


@triton.jit
def chunk_at(
    table: tl.tensor, tensors: tl.tensor, chunk: tl.tensor, chunk_size: tl.constexpr, dtype: tl.constexpr
) -> tl.tensor:
    """Return (index of the chunk's tensor, address of the chunk, address of its result, length of the chunk).

    The table starts with the addresses of all tensors, the addresses of all results, and the lengths of all tensors.
    Then it has two numbers for each chunk: the index of its tensor, and the position of the chunk in the tensor.
    `tensors` is the number of tensors.
    """
    rows = table + 3 * tensors + 2 * chunk
    tensor, first = tl.load(rows), tl.load(rows + 1) * chunk_size
    start = first * (dtype.primitive_bitwidth // 8)
    length = tl.minimum(tl.load(table + 2 * tensors + tensor) - first, chunk_size).to(tl.int32)
    return tensor, tl.load(table + tensor) + start, tl.load(table + tensors + tensor) + start, length


@triton.jit
def in_vectors(addresses: tl.tensor, length: tl.tensor, width: tl.constexpr) -> tl.tensor:
    """Return how many elements can be read in vectors of 16 bytes.

    The number is a multiple of `width`, and 0 if an address is not a multiple of 16.
    `addresses` is one address, or the bitwise OR of several addresses.
    """
    return tl.where(addresses % 16 == 0, length // width * width, 0)


@triton.jit
def vectors_at(address: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Return a pointer that Triton recognises as a multiple of 16."""
    return tl.multiple_of((address // 16 * 16).to(tl.pointer_type(dtype)), 16)


@triton.jit
def magnitude_bits(values: tl.tensor, wide: tl.constexpr) -> tl.tensor:
    """Return the bits of magnitudes as integers. The magnitudes are float64 if `wide`, else float32.

    The integer for NaN is larger than the integer for inf. So the maximum of a list with NaN is NaN.
    """
    if wide:
        bits = values.to(tl.float64).to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    else:
        bits = values.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return bits


@triton.jit
def two_sum(left: tl.tensor, right: tl.tensor) -> tl.tensor:
    total = left + right
    added = total - left
    return total, (left - (total - added)) + (right - added)


@triton.jit
def squared(numbers: tl.tensor) -> tl.tensor:
    """Return the squares and their rounding errors.

    The returned rounding errors are accurate to 2**-104 * square for float64, and to 2**-148 for float32.
    """
    square = numbers * numbers
    if numbers.dtype == tl.float64:
        high = (numbers.to(tl.int64, bitcast=True) & HIGH_BITS).to(tl.float64, bitcast=True)
    else:
        high = (numbers.to(tl.int32, bitcast=True) & NARROW_HIGH_BITS).to(tl.float32, bitcast=True)
    low = numbers - high
    return square, ((high * high - square) + 2.0 * high * low) + low * low


@triton.jit
def add_pairs(high: tl.tensor, low: tl.tensor, other_high: tl.tensor, other_low: tl.tensor) -> tl.tensor:
    """Add two sums. Each sum is a pair (high, low) with the value high + low."""
    total = high + other_high
    added = total - high  # as in `two_sum`, without a call, which is slow in the interpreter
    error = (high - (total - added)) + (other_high - added)
    return total, low + (error + other_low)


@triton.jit
def add_rounded_pairs(high: tl.tensor, low: tl.tensor, other_high: tl.tensor, other_low: tl.tensor) -> tl.tensor:
    """In the result, `high` is the floating-point number nearest to the sum."""
    high, low = add_pairs(high, low, other_high, other_low)
    total = high + low
    return total, low - (total - high)
