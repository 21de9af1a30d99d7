"""The kernels that compute norms over several ranks, from the results of an all-reduce.

Each rank sends the integers (words) of `Accumulator.to_words`, then the words that `consensus` compares. For a float32
norm, the kernels use only the words FIRST_LIMB to END_LIMB - 1. For a float64 norm (`wide`), they use only the words
FIRST_WIDE_LIMB to END_WIDE_LIMB - 1. If the sum is not between LEAST_SUM and LARGEST, these words are
not enough for a float64 norm. Then the kernels of `exact_sums` compute the norm.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ....._core.exact import LIMBS, UNIT, WORDS
from .exact_sums import STATE
from .shared import INF, add_pairs, add_rounded_pairs
from .sums import INFINITY, LARGEST, rounded_pair

NANS: Any = tl.constexpr(WORDS - 2)
INFINITIES: Any = tl.constexpr(WORDS - 1)
EXPONENT: Any = tl.constexpr(UNIT - 1075)
"""If a float64 number has the exponent field e, its last bit is bit EXPONENT + e of the sum."""

LAST_BIT: Any = tl.constexpr(UNIT)
FIRST_LIMB: Any = tl.constexpr((UNIT - 300) // 32)
END_LIMB: Any = tl.constexpr((UNIT + 256 + 67) // 32 + 2)
FIRST_WIDE_LIMB: Any = tl.constexpr((UNIT - 1022) // 32 + 1)
END_WIDE_LIMB: Any = tl.constexpr((UNIT + 1023) // 32 + 1)
LEAST_SUM: Any = tl.constexpr(2.0**-800)
UNBOUNDED_LIMB: Any = tl.constexpr((UNIT + 1010) // 32)
UNBOUNDED: Any = tl.constexpr(2 ** ((UNIT + 1010) % 32))
"""A rank whose sum is NaN or above LARGEST adds UNBOUNDED to the word with the index UNBOUNDED_LIMB."""

LOW_WORD: Any = tl.constexpr(2**32 - 1)
NAN: Any = tl.constexpr(float("nan"))
LARGEST_BITS: Any = tl.constexpr(0x7F7FFFFF)
LARGEST_WIDE_BITS: Any = tl.constexpr(0x7FEFFFFFFFFFFFFF)

assert END_WIDE_LIMB.value < LIMBS


@triton.jit(do_not_specialize=("chunks",))
def pack_sums(sums: tl.tensor, chunks: tl.tensor, words: tl.tensor, width: tl.constexpr, wide: tl.constexpr) -> None:
    """Add the sums of all chunks to `words`, the integers that this rank sends.

    If the total is NaN, infinite or too large, set a flag instead.

    sums: Two numbers for each chunk, from the kernel `add`.
    """
    lanes = tl.arange(0, width)
    high, low = tl.zeros([width], tl.float64), tl.zeros([width], tl.float64)
    for at in range(0, chunks, width):
        mask = at + lanes < chunks
        here = sums + 2 * (at + lanes)
        other_high, other_low = tl.load(here, mask=mask, other=0.0), tl.load(here + 1, mask=mask, other=0.0)
        if wide:
            high, low = add_pairs(high, low, other_high, other_low)
        else:
            high += other_high + other_low
    if wide:
        number, rest = tl.reduce((high, low), 0, add_rounded_pairs)
        is_bounded = number <= LARGEST
        _add_to(words, tl.where(is_bounded, number, 0.0))
        _add_to(words, tl.where(is_bounded, rest, 0.0))
        limb = words + UNBOUNDED_LIMB
        tl.store(limb, tl.load(limb) + tl.where(is_bounded, 0, UNBOUNDED))
    else:
        number = tl.sum(high, 0)
        _add_to(words, tl.where(number < INFINITY, number, 0.0))
        tl.store(words + NANS, tl.load(words + NANS) + (number != number).to(tl.int64))
        tl.store(words + INFINITIES, tl.load(words + INFINITIES) + (number == INFINITY).to(tl.int64))


@triton.jit
def _add_to(words: tl.tensor, number: tl.tensor) -> None:
    bits = number.to(tl.int64, bitcast=True)
    sign = 1 + 2 * (bits >> 63)
    magnitude = bits & 0x7FFFFFFFFFFFFFFF
    exponent = magnitude >> 52
    fraction = magnitude - (exponent << 52)
    normal = tl.full([], 1, tl.int64) << 52
    significand = tl.where(exponent > 0, fraction + normal, fraction)
    place = tl.maximum(exponent, 1) + EXPONENT
    limb, shift = place >> 5, place & 31
    low, high = (significand & LOW_WORD) << shift, (significand >> 32) << shift
    first = words + limb
    tl.store(first, tl.load(first) + sign * (low & LOW_WORD))
    tl.store(first + 1, tl.load(first + 1) + sign * ((low >> 32) + (high & LOW_WORD)))
    tl.store(first + 2, tl.load(first + 2) + sign * (high >> 32))


@triton.jit(do_not_specialize=("chunks",))
def pack_largest(sums: tl.tensor, chunks: tl.tensor, states: tl.tensor, width: tl.constexpr) -> None:
    lanes = tl.arange(0, width)
    largest = tl.zeros([width], tl.int64)
    for at in range(0, chunks, width):
        magnitudes = tl.load(sums + 2 * (at + lanes), mask=at + lanes < chunks, other=0.0)
        largest = tl.maximum(largest, magnitudes.to(tl.int64, bitcast=True))
    tl.store(states + 2, tl.maximum(tl.load(states + 2), tl.max(largest, 0)))


@triton.jit
def round_largest(states: tl.tensor, norms: tl.tensor) -> None:
    n = tl.load(norms)
    tl.store(norms, tl.where(n != n, n, tl.load(states + 2).to(tl.float64, bitcast=True)))


@triton.jit(do_not_specialize=("ranks",))
def round_words(
    words: tl.tensor, norms: tl.tensor, states: tl.tensor, ranks: tl.tensor,
    error: tl.constexpr, order: tl.constexpr, wide: tl.constexpr, flags: tl.constexpr, tags: tl.constexpr,
    tag: tl.constexpr, pieces: tl.constexpr,
) -> None:  # fmt: skip
    """Store the norm in `norms`. If the ranks made different calls, store NaN.

    For p = inf, store 0, which `round_largest` replaces by the norm.
    """
    n = tl.zeros([], tl.float64)
    in_doubt = n > 0
    bound = tl.full([], 0, tl.int64)
    if order != INF:
        infinities = tl.load(words + INFINITIES)
        if wide:
            high, low = _pair(words)
            n, in_doubt = rounded_pair(high, low, error, order)
            in_doubt |= (high < LEAST_SUM) | (infinities > 0)
            bound += LARGEST_WIDE_BITS
        else:
            n = tl.where(infinities > 0, INFINITY, _norm(words, order))
            low, high = (n * (1.0 - error)).to(tl.float32), (n * (1.0 + error)).to(tl.float32)
            in_doubt = (low != high) & (n < INFINITY)
            bound += tl.minimum(high.to(tl.int32, bitcast=True).to(tl.int64), LARGEST_BITS)
            n = low.to(tl.float64)
    is_number = (tl.load(words + NANS) == 0) & _is_agreed(words, ranks, flags, tags, tag, pieces)
    tl.store(norms, tl.where(is_number, n, NAN))
    places = tl.arange(0, 256)
    state = tl.where(places == 0, (in_doubt & is_number).to(tl.int64), tl.zeros([256], tl.int64))
    state = tl.where(places == 1, bound, state)
    tl.store(states + places, state, mask=places < STATE)


@triton.jit
def _pair(words: tl.tensor) -> tl.tensor:
    """Return the sum in `words` as two float64 numbers. The relative error is at most 2**-90."""
    zero = tl.zeros([], tl.float64)
    high, low = zero, zero
    for limb in range(FIRST_WIDE_LIMB, END_WIDE_LIMB):
        number = tl.load(words + limb)
        unit = ((number * 0 + 1023 + 32 * limb - LAST_BIT) << 52).to(tl.float64, bitcast=True)
        high, low = add_pairs(high, low, (number & LOW_WORD).to(tl.float64) * unit, zero)
        high, low = add_pairs(high, low, (number >> 32).to(tl.float64) * 4294967296.0 * unit, zero)
    return high, low


@triton.jit
def _norm(words: tl.tensor, order: tl.constexpr) -> tl.tensor:
    """Return the norm from the sum in `words`, in float64. The relative error is at most 2**-50."""
    carry, top = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    value, leading = tl.zeros([], tl.float64), tl.zeros([], tl.float64)
    for limb in range(FIRST_LIMB, END_LIMB):
        total = tl.load(words + limb) + carry
        carry = total >> 32
        digit = total & LOW_WORD
        value = value / 4294967296.0 + digit.to(tl.float64)
        top = tl.where(digit != 0, top * 0 + limb, top)
        leading = tl.where(digit != 0, value, leading)
    root = tl.sqrt(leading) if order == 2 else leading
    exponent = (32 * top - LAST_BIT) // order
    return root * tl.where(leading > 0, (1023 + exponent) << 52, 0).to(tl.float64, bitcast=True)


@triton.jit
def _is_agreed(
    words: tl.tensor, ranks: tl.tensor,
    flags: tl.constexpr, tags: tl.constexpr, tag: tl.constexpr, pieces: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return whether every rank sent `tag` and the same digest, and no rank rejects the call.

    The numbers of n ranks are equal if and only if n * (sum of squares) == (sum)**2. On more than 2**16 ranks, these
    products can lose their upper bits. Then different numbers pass the comparison with a probability of 2**-64.
    """
    is_agreed = (tl.load(words + tags) == tag * ranks) & (tl.load(words + tags + 1) == 0)
    is_agreed &= (tl.load(words + flags) == ranks) & (tl.load(words + flags + 1) == ranks)
    lanes = tl.arange(0, pieces)
    for which in range(0, 3):
        here = words + tags + 2 + which * (1 + 2 * pieces)
        totals, squares = tl.load(here + 1 + lanes), tl.load(here + 1 + pieces + lanes)
        is_agreed &= tl.sum((tl.load(here) * squares != totals * totals).to(tl.int32), 0) == 0
    return is_agreed
