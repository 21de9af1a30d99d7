"""The kernels that compute exact sums. A sum is a long integer, stored in windows of 24 bits.

Each |g| equals significand * 2**exponent * unit. The unit is half of the smallest positive number in the norm's dtype.
A sum counts multiples of unit**p. So a sum can represent every |g|**p, and m**p for every midpoint m between
neighbouring norms.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .shared import RUNTIME, chunk_at, magnitude_bits

STATE: Any = tl.constexpr(180)
"""The number of int64 numbers in the state of a norm:

- 1 if the norm might be rounded wrongly, else 0
- the bits of the largest magnitude
- LAST minus the exponent of the smallest positive magnitude
- 177 windows, which are enough for the sum of 2**36 squares of the largest float64 number
"""

LAST: Any = tl.constexpr(4096)
MASK: Any = tl.constexpr(2**24 - 1)
NAN_BITS: Any = tl.constexpr(0x7FF8000000000000)


@triton.jit
def _split(bits: tl.tensor, wide: tl.constexpr) -> tl.tensor:
    """Return the significands and the exponents of magnitudes. The exponent of zero and of subnormal numbers is 1."""
    fraction_bits: tl.constexpr = 52 if wide else 23
    bits = bits.to(tl.int64)
    exponents = bits >> fraction_bits
    fractions = bits - (exponents << fraction_bits)
    normal = tl.full([], 1, tl.int64) << fraction_bits
    return tl.where(exponents > 0, fractions + normal, fractions), tl.maximum(exponents, 1)


@triton.jit
def _window_after(exponent: tl.tensor, more_bits: tl.constexpr, order: tl.constexpr, wide: tl.constexpr) -> tl.tensor:
    return (order * (exponent + (53 if wide else 24)) + more_bits + 23) // 24


@triton.jit
def _bits_in(window: tl.tensor, numbers: tl.tensor, places: tl.tensor) -> tl.tensor:
    """Return the 24 bits of numbers * 2**places that are in a window. The numbers have at most 56 bits."""
    shift = 24 * window - places
    right = numbers >> tl.minimum(tl.maximum(shift, 0), 63)
    left = right << tl.minimum(tl.maximum(-shift, 0), 24)
    return tl.where(shift > -24, left & MASK, 0)


@triton.jit
def _power_in(window: tl.tensor, significands: tl.tensor, exponents: tl.tensor, order: tl.constexpr) -> tl.tensor:
    """Return the part of |number|**p that is in a window. For p = 2, this part can have more than 24 bits.

    A square is the sum of three products, because the significand is split into two parts.
    """
    if order == 1:
        return _bits_in(window, significands, exponents)
    high = significands >> 27
    low = significands - (high << 27)
    squares = _bits_in(window, low * low, 2 * exponents) + _bits_in(window, high * high, 2 * exponents + 54)
    return squares + _bits_in(window, low * high, 2 * exponents + 28)


@triton.jit(do_not_specialize=RUNTIME)
def add_exactly(
    table: tl.tensor, tensors: tl.tensor, first_chunk: tl.tensor, end_chunk: tl.tensor, states: tl.tensor,
    dtype: tl.constexpr, order: tl.constexpr, chunk_size: tl.constexpr, width: tl.constexpr, wide: tl.constexpr,
    per_tensor: tl.constexpr,
) -> None:  # fmt: skip
    """The terms are added as integers, so the order of the additions does not matter."""
    begin = first_chunk + tl.program_id(0).to(tl.int64)
    end = begin * 0 + end_chunk
    if not per_tensor:
        end = tl.where(tl.load(states) != 0, end, begin)  # if the norm is certain, read no chunk
    for chunk in range(begin, end, tl.num_programs(0)):
        state = states + (tl.load(table + 3 * tensors + 2 * chunk) if per_tensor else chunk * 0) * STATE
        if tl.load(state) != 0:
            _, source, _, length = chunk_at(table, tensors, chunk, chunk_size, dtype)
            _add_chunk(source.to(tl.pointer_type(dtype)), length, state, order, width, wide)


@triton.jit
def _add_chunk(
    start: tl.tensor, length: tl.tensor, state: tl.tensor,
    order: tl.constexpr, width: tl.constexpr, wide: tl.constexpr,
) -> None:  # fmt: skip
    lanes = tl.arange(0, width)
    largest = tl.zeros([width], tl.int64)
    least = tl.full([width], 0x7FFFFFFFFFFFFFFF, tl.int64)
    for at in range(0, length, width):
        bits = magnitude_bits(tl.load(start + at + lanes, mask=at + lanes < length, other=0.0), wide).to(tl.int64)
        largest = tl.maximum(largest, bits)
        least = tl.minimum(least, tl.where(bits > 0, bits, least))
    most = tl.max(largest, 0)
    _, lowest = _split(tl.min(least, 0), wide)
    _, highest = _split(most, wide)
    tl.atomic_max(state + 1, most, sem="relaxed")
    tl.atomic_max(state + 2, -lowest + LAST, sem="relaxed")
    for window in range(order * lowest // 24, _window_after(highest, 0, order, wide)):
        total = tl.zeros([width], tl.int64)
        for at in range(0, length, width):
            values = tl.load(start + at + lanes, mask=at + lanes < length, other=0.0)
            significands, exponents = _split(magnitude_bits(values, wide), wide)
            total += _power_in(window, significands, exponents, order)
        tl.atomic_add(state + 3 + window, tl.sum(total, 0), sem="relaxed")


@triton.jit
def _rounds_up(
    windows: tl.tensor, begin: tl.tensor, end: tl.tensor, bits: tl.tensor, order: tl.constexpr, wide: tl.constexpr
) -> tl.tensor:
    """Return 1 if the exact norm must be rounded up to the next number after `bits`, else 0. Ties round to even."""
    significand, exponent = _split(bits, wide)
    carry = tl.zeros([], tl.int64)
    rest = tl.zeros([], tl.int64)
    begin = tl.minimum(begin, order * (exponent - 1) // 24)
    for window in range(begin, tl.maximum(end, _window_after(exponent, 0, order, wide))):
        middle = _power_in(window, 2 * significand + 1, exponent - 1, order)
        difference = tl.load(windows + window) - middle + carry
        carry = difference >> 24
        rest = rest | (difference & MASK)
    is_above = (carry > 0) | ((carry == 0) & (rest != 0))
    is_middle = (carry == 0) & (rest == 0)
    return (is_above | (is_middle & (bits % 2 == 1))).to(tl.int64)


@triton.jit
def decide(
    states: tl.tensor, norms: tl.tensor, order: tl.constexpr, wide: tl.constexpr, over_ranks: tl.constexpr
) -> None:
    """If the stored norm might be rounded wrongly, compute the norm from the exact sum.

    over_ranks: Whether `states` contains the exact sum over all ranks.
    """
    group = tl.program_id(0)
    state = states + group * STATE
    if tl.load(state) == 0:
        return
    infinity: tl.constexpr = 0x7FF0000000000000 if wide else 0x7F800000
    largest = tl.load(state + 1)
    lowest = LAST - tl.load(state + 2)
    if over_ranks:
        if wide:
            flags = LAST - lowest
            largest = tl.where(flags != 0, tl.where(flags >> 32 != 0, NAN_BITS, infinity), largest)
        lowest = lowest * 0 + 1
    bits = largest
    if largest < infinity:
        bits = _rounded_bits(state, largest, lowest, infinity, order, wide)
    if wide:
        tl.store(norms + group, bits.to(tl.float64, bitcast=True))
    else:
        tl.store(norms + group, bits.to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64))


@triton.jit
def flag(states: tl.tensor) -> None:
    """If this rank has NaN, store 2**32 in `states[2]`. Otherwise, store 1 for inf, and 0 for finite gradients."""
    infinity: tl.constexpr = 0x7FF0000000000000
    largest = tl.load(states + 1)
    one = tl.full([], 1, tl.int64)
    tl.store(states + 2, tl.where(largest > infinity, one << 32, tl.where(largest == infinity, one, one * 0)))


@triton.jit
def _rounded_bits(
    state: tl.tensor,
    largest: tl.tensor,
    lowest: tl.tensor,
    infinity: tl.constexpr,
    order: tl.constexpr,
    wide: tl.constexpr,
) -> tl.tensor:
    """Return the bits of the correctly rounded norm of finite gradients.

    largest: The bits of the largest magnitude.
    lowest: The exponent of the smallest magnitude.
    """
    windows, carry = state + 3, tl.zeros([], tl.int64)
    value, leading = tl.zeros([], tl.float64), tl.zeros([], tl.float64)
    _, highest = _split(largest, wide)
    begin = tl.minimum(order * lowest // 24, 170)
    end = _window_after(highest, 36, order, wide)
    top = begin
    for window in range(begin, end):
        total = tl.load(windows + window) + carry
        carry = total >> 24
        value = value / 16777216.0 + (total & MASK).to(tl.float64)
        top = tl.where((total & MASK) != 0, window, top)
        leading = tl.where((total & MASK) != 0, value, leading)
    bits = tl.minimum(magnitude_bits(_root(leading, top, order, wide), wide).to(tl.int64), infinity)
    bits = tl.maximum(bits - 1, 0)  # the root is off by less than the distance of two numbers
    below = _rounds_up(windows, begin, end, bits, order, wide)
    return tl.minimum(bits + below + _rounds_up(windows, begin, end, bits + 1, order, wide), infinity)


@triton.jit
def _root(leading: tl.tensor, top: tl.tensor, order: tl.constexpr, wide: tl.constexpr) -> tl.tensor:
    """Return an approximate norm.

    leading: The sum, divided by 2**(24 * top).
    top: The index of the sum's highest 24-bit window that is not 0.
    """
    root = tl.sqrt(leading) if order == 2 else leading
    exponent = 24 * top // order - (1075 if wide else 150)
    half = exponent >> 1
    return root * _power_of_two(half) * _power_of_two(exponent - half)


@triton.jit
def _power_of_two(exponent: tl.tensor) -> tl.tensor:
    return ((1023 + exponent) << 52).to(tl.float64, bitcast=True)
