"""The kernels of norms over several ranks: sums as integers that ranks add up, and norms from the added integers.

The integers are the words of `Accumulator.to_words`, followed by those that `consensus` compares. Gradients have 32
bits or fewer. So the sum of their powers has bits only in the words from FIRST_LIMB to before END_LIMB.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ....._core.exact import LIMBS, UNIT, WORDS
from .exact import LAST, STATE
from .sums import INFINITY

BLOCKS: Any = tl.constexpr(LIMBS)
NANS: Any = tl.constexpr(WORDS - 2)
INFINITIES: Any = tl.constexpr(WORDS - 1)
EXPONENT: Any = tl.constexpr(UNIT - 1075)
"""The exponent of a float64 number's last bit plus this is that bit's place among the bits of the words."""

LAST_BIT: Any = tl.constexpr(UNIT)
FIRST_LIMB: Any = tl.constexpr((UNIT - 300) // 32)
END_LIMB: Any = tl.constexpr((UNIT + 256 + 67) // 32 + 2)
LOW_WORD: Any = tl.constexpr(2**32 - 1)
NAN: Any = tl.constexpr(float("nan"))
LARGEST_BITS: Any = tl.constexpr(0x7F7FFFFF)


@triton.jit(do_not_specialize=("chunks",))
def pack_sums(sums: tl.tensor, chunks: tl.tensor, words: tl.tensor, width: tl.constexpr) -> None:
    """Add the sum over all chunks, which are the result of `add`, to the words of this rank."""
    lanes = tl.arange(0, width)
    total = tl.zeros([width], tl.float64)
    for at in range(0, chunks, width):
        mask = at + lanes < chunks
        here = sums + 2 * (at + lanes)
        total += tl.load(here, mask=mask, other=0.0) + tl.load(here + 1, mask=mask, other=0.0)
    number = tl.sum(total, 0)
    bits = number.to(tl.int64, bitcast=True)
    exponent = (bits >> 52) & 2047
    is_finite = exponent < 2047
    fraction = bits - (exponent << 52)
    normal = tl.full([], 1, tl.int64) << 52
    significand = tl.where(is_finite & (bits >= 0), tl.where(exponent > 0, fraction + normal, fraction), 0)
    place = tl.maximum(exponent, 1) + EXPONENT
    limb, shift = place >> 5, place & 31
    low, high = (significand & LOW_WORD) << shift, (significand >> 32) << shift
    first = words + limb
    tl.store(first, tl.load(first) + (low & LOW_WORD))
    tl.store(first + 1, tl.load(first + 1) + (low >> 32) + (high & LOW_WORD))
    tl.store(first + 2, tl.load(first + 2) + (high >> 32))
    tl.store(words + BLOCKS, tl.load(words + BLOCKS) + (significand > 0).to(tl.int64))
    tl.store(words + NANS, tl.load(words + NANS) + (number != number).to(tl.int64))
    tl.store(words + INFINITIES, tl.load(words + INFINITIES) + (number == INFINITY).to(tl.int64))


@triton.jit(do_not_specialize=("ranks",))
def round_words(
    words: tl.tensor, norms: tl.tensor, states: tl.tensor, ranks: tl.tensor,
    error: tl.constexpr, order: tl.constexpr, flags: tl.constexpr, tags: tl.constexpr, tag: tl.constexpr,
    pieces: tl.constexpr,
) -> None:  # fmt: skip
    """Store the norm that the added words of all ranks give, and its state for `add_exactly`, with empty windows.

    The norm is NaN if the ranks have not made the same call. `flags`, `tags`: the indices of the words that show this.
    `tag`: the tag that each rank sends. `pieces`: how many pieces a digest has.
    """
    n = _norm(words, order)
    n = tl.where(tl.load(words + INFINITIES) > 0, INFINITY, n)
    is_number = (tl.load(words + NANS) == 0) & _is_agreed(words, ranks, flags, tags, tag, pieces)
    n = tl.where(is_number, n, NAN)
    low, high = (n * (1.0 - error)).to(tl.float32), (n * (1.0 + error)).to(tl.float32)
    in_doubt = (low != high) & (n < INFINITY)
    tl.store(norms, low.to(tl.float64))
    bound = tl.minimum(high.to(tl.int32, bitcast=True).to(tl.int64), LARGEST_BITS)
    places = tl.arange(0, 256)
    state = tl.where(places == 0, in_doubt.to(tl.int64), tl.zeros([256], tl.int64))
    state = tl.where(places == 1, bound, state)
    state = tl.where(places == 2, LAST - 1, state)
    tl.store(states + places, state, mask=places < STATE)


@triton.jit
def _norm(words: tl.tensor, order: tl.constexpr) -> tl.tensor:
    """Return the root of the sum in the words as float64, with a relative error of at most 2**-50."""
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
    """Return whether all ranks send the tag and equal digests, and none rejects the call.

    Numbers are equal if and only if count * (sum of squares) == (sum)**2. Products may lose their upper bits. So on
    more than 2**16 ranks, unequal numbers could seem equal, with a probability of 2**-64.
    """
    is_agreed = (tl.load(words + tags) == tag * ranks) & (tl.load(words + tags + 1) == 0)
    is_agreed &= (tl.load(words + flags) == ranks) & (tl.load(words + flags + 1) == ranks)
    lanes = tl.arange(0, pieces)
    for which in range(0, 3):
        here = words + tags + 2 + which * (1 + 2 * pieces)
        totals, squares = tl.load(here + 1 + lanes), tl.load(here + 1 + pieces + lanes)
        is_agreed &= tl.sum((tl.load(here) * squares != totals * totals).to(tl.int32), 0) == 0
    return is_agreed
