"""Parts of all kernels: chunks of tensors, float64 sums with their errors, and the bits of numbers."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

INF: Any = tl.constexpr(0)
"""The order of the norm that is the largest magnitude."""

RUNTIME = ("tensors", "first_chunk", "end_chunk", "low", "high")
"""Arguments that differ from call to call: kernels are not compiled anew for them."""

HIGH_BITS: Any = tl.constexpr(-(2**27))
"""A mask for the upper 26 bits of a float64 significand."""


@triton.jit
def chunk_at(
    table: tl.tensor, tensors: tl.tensor, chunk: tl.tensor, chunk_size: tl.constexpr, dtype: tl.constexpr
) -> tl.tensor:
    """Return the tensor of a chunk, the addresses of its first element and of that of its result, and its length.

    `table`: the addresses of all tensors and of all results, the lengths, and for each chunk its tensor and its number
    in it.
    """
    rows = table + 3 * tensors + 2 * chunk
    tensor, first = tl.load(rows), tl.load(rows + 1) * chunk_size
    start = first * (dtype.primitive_bitwidth // 8)
    length = tl.minimum(tl.load(table + 2 * tensors + tensor) - first, chunk_size).to(tl.int32)
    return tensor, tl.load(table + tensor) + start, tl.load(table + tensors + tensor) + start, length


@triton.jit
def in_vectors(addresses: tl.tensor, length: tl.tensor, width: tl.constexpr) -> tl.tensor:
    """Return how many elements are read and written in vectors of 16 bytes: a multiple of `width`.

    `addresses`: those that have to be multiples of 16, combined by |.
    """
    return tl.where(addresses % 16 == 0, length // width * width, 0)


@triton.jit
def vectors_at(address: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Return a pointer that Triton takes for a multiple of 16 bytes."""
    return tl.multiple_of((address // 16 * 16).to(tl.pointer_type(dtype)), 16)


@triton.jit
def magnitude_bits(values: tl.tensor, wide: tl.constexpr) -> tl.tensor:
    """Return the bits of magnitudes as integers, of which NaN has the largest: of float64, or of float32."""
    if wide:
        bits = values.to(tl.float64).to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    else:
        bits = values.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return bits


@triton.jit
def two_sum(left: tl.tensor, right: tl.tensor) -> tl.tensor:
    """Return a float64 sum and its error."""
    total = left + right
    added = total - left
    return total, (left - (total - added)) + (right - added)


@triton.jit
def squared(numbers: tl.tensor) -> tl.tensor:
    """Return float64 squares and their errors, which are off by at most 2**-104 of the square."""
    square = numbers * numbers
    high = (numbers.to(tl.int64, bitcast=True) & HIGH_BITS).to(tl.float64, bitcast=True)
    low = numbers - high
    return square, ((high * high - square) + 2.0 * high * low) + low * low


@triton.jit
def add_pairs(high: tl.tensor, low: tl.tensor, other_high: tl.tensor, other_low: tl.tensor) -> tl.tensor:
    """Return the sum of two sums, of two float64 numbers each."""
    total, error = two_sum(high, other_high)
    return total, low + (error + other_low)
