"""The Triton kernels: norms of order 1, 2 and inf, correctly rounded, products, and clamped values.

A program of a kernel reads a chunk: some elements of one tensor, at an address from a table. So the number of launches
does not depend on the number of tensors, and sums do not depend on the grid. No program waits for another: the next
kernel reads what all have written.

Squares and magnitudes of 16-bit and float32 numbers are exact in float64, and the relative error of their float64 sum
is bounded. If the bound leaves two float32 numbers for the norm, `add_exactly` and `decide` compare the exact sum with
the middle between them.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

WINDOWS: Any = tl.constexpr(38)
"""An exact sum is an integer in WINDOWS windows of 16 bits, in units of 2**-300: less than the smallest square of a
float32 number. They reach beyond the sum of 2**50 squares of the largest."""

STATE: Any = tl.constexpr(39)
"""The int64 numbers of a norm: whether it is in doubt, and its windows."""

INF: Any = tl.constexpr(0)
"""The order of the norm that is the largest magnitude."""

RUNTIME = ("tensors", "first_chunk", "end_chunk", "low", "high")
"""Arguments that differ from call to call: kernels are not compiled anew for them."""

INFINITY: Any = tl.constexpr(float("inf"))
AFTER_LARGEST: Any = tl.constexpr(2.0**128)
MAGNITUDE: Any = tl.constexpr(2**63 - 1)


@triton.jit
def _powers(values: tl.tensor, order: tl.constexpr) -> tl.tensor:
    """Return exact float64 powers of magnitudes; for INF the magnitudes, where NaN has no sign either."""
    wide = values.to(tl.float32).to(tl.float64)
    if order == 2:
        return wide * wide
    if order == INF:
        return (wide.to(tl.int64, bitcast=True) & MAGNITUDE).to(tl.float64, bitcast=True)
    return tl.abs(wide)


@triton.jit
def _joined(left: tl.tensor, right: tl.tensor, order: tl.constexpr) -> tl.tensor:
    """Return sums; for INF the maxima by their bits, of which NaN has the largest."""
    if order == INF:
        larger = tl.maximum(left.to(tl.int64, bitcast=True), right.to(tl.int64, bitcast=True))
        return larger.to(tl.float64, bitcast=True)
    return left + right


@triton.jit
def _total(lanes: tl.tensor, order: tl.constexpr) -> tl.tensor:
    if order == INF:
        return tl.max(lanes.to(tl.int64, bitcast=True), 0).to(tl.float64, bitcast=True)
    return tl.sum(lanes, 0)


@triton.jit
def _chunk(
    table: tl.tensor,
    tensors: tl.tensor,
    chunk: tl.tensor,
    chunk_size: tl.constexpr,
    dtype: tl.constexpr,
    aligned: tl.constexpr,
) -> tl.tensor:
    """Return the tensor of a chunk, pointers to its first element and to that of its result, and its length.

    `table`: the addresses of all tensors and of all results, the lengths, and for each chunk its tensor and its number
    in it. `aligned`: whether all addresses are multiples of 16.
    """
    rows = table + 3 * tensors + 2 * chunk
    tensor, first = tl.load(rows), tl.load(rows + 1) * chunk_size
    source = tl.load(table + tensor).to(tl.pointer_type(dtype))
    target = tl.load(table + tensors + tensor).to(tl.pointer_type(dtype))
    if aligned:  # here, since after the call Triton would take the length for a multiple of 16 too
        source, target = tl.multiple_of(source, 16), tl.multiple_of(target, 16)
    length = tl.minimum(tl.load(table + 2 * tensors + tensor) - first, chunk_size).to(tl.int32)
    return tensor, source + first, target + first, length


@triton.jit(do_not_specialize=RUNTIME)
def add(
    table: tl.tensor, tensors: tl.tensor, first_chunk: tl.tensor, sums: tl.tensor,
    dtype: tl.constexpr, order: tl.constexpr, chunk_size: tl.constexpr, width: tl.constexpr, aligned: tl.constexpr,
) -> None:  # fmt: skip
    """Store the float64 sum of each chunk's powers, or the largest."""
    chunk = first_chunk + tl.program_id(0).to(tl.int64)
    _, start, _, length = _chunk(table, tensors, chunk, chunk_size, dtype, aligned)
    lanes = tl.arange(0, width)
    total = tl.zeros([width], tl.float64)
    if length == chunk_size:  # without a mask, loads are of 16 bytes
        for at in range(0, chunk_size, width):
            total = _joined(total, _powers(tl.load(start + at + lanes), order), order)
    else:
        for at in range(0, length, width):
            values = tl.load(start + at + lanes, mask=at + lanes < length, other=0.0)
            total = _joined(total, _powers(values, order), order)
    tl.store(sums + chunk, _total(total, order))


@triton.jit
def round_sums(
    groups: tl.tensor,
    sums: tl.tensor,
    norms: tl.tensor,
    states: tl.tensor,
    error: tl.constexpr,
    order: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Store the norm of each group of chunks, and whether it is in doubt: then the lower candidate, and empty windows.

    `groups`: the first chunk of each group, and the one after its last. `error`: a bound of the norm's relative error.
    """
    group = tl.program_id(0)
    begin, end = tl.load(groups + 2 * group), tl.load(groups + 2 * group + 1)
    lanes = tl.arange(0, width)
    total = tl.zeros([width], tl.float64)
    for at in range(begin, end, width):
        total = _joined(total, tl.load(sums + at + lanes, mask=at + lanes < end, other=0.0), order)
    n = _total(total, order)
    if order == INF:
        tl.store(norms + group, n)
    else:
        if order == 2:
            n = tl.sqrt(n)
        low, high = (n * (1.0 - error)).to(tl.float32), (n * (1.0 + error)).to(tl.float32)
        in_doubt = (low != high) & (n < INFINITY)  # NaN is not in doubt
        tl.store(norms + group, tl.where(in_doubt, low, n.to(tl.float32)).to(tl.float64))
        places = tl.arange(0, 64)
        state = tl.where(places == 0, in_doubt.to(tl.int64), tl.zeros([64], tl.int64))
        tl.store(states + group * STATE + places, state, mask=places < STATE)


@triton.jit
def _window(powers: tl.tensor, window: tl.tensor) -> tl.tensor:
    """Return the bits of exact powers that lie in a window, as float64 integers."""
    exponent = 300 - 16 * tl.cast(window, tl.int64)
    per_unit = ((1023 + exponent) << 52).to(tl.float64, bitcast=True)  # 2**exponent
    return tl.floor(powers * per_unit) - tl.floor(powers * (per_unit / 65536.0)) * 65536.0


@triton.jit(do_not_specialize=RUNTIME)
def add_exactly(
    table: tl.tensor, tensors: tl.tensor, first_chunk: tl.tensor, end_chunk: tl.tensor, states: tl.tensor,
    dtype: tl.constexpr, order: tl.constexpr, chunk_size: tl.constexpr, width: tl.constexpr,
    per_tensor: tl.constexpr,
) -> None:  # fmt: skip
    """Add the powers of groups in doubt to their windows, as integers: no order of additions shows."""
    lanes = tl.arange(0, width)
    begin = first_chunk + tl.program_id(0).to(tl.int64)
    end = begin * 0 + end_chunk
    if not per_tensor:
        end = tl.where(tl.load(states) != 0, end, begin)  # mostly no chunk is looked at
    for chunk in range(begin, end, tl.num_programs(0)):
        state = states + (tl.load(table + 3 * tensors + 2 * chunk) if per_tensor else chunk * 0) * STATE
        if tl.load(state) != 0:
            _, start, _, length = _chunk(table, tensors, chunk, chunk_size, dtype, False)
            for window in range(WINDOWS):
                total = tl.zeros([width], tl.float64)
                for at in range(0, length, width):
                    values = tl.load(start + at + lanes, mask=at + lanes < length, other=0.0)
                    total += _window(_powers(values, order), window)
                tl.atomic_add(state + 1 + window, tl.sum(total, 0).to(tl.int64), sem="relaxed")


@triton.jit
def decide(states: tl.tensor, norms: tl.tensor, order: tl.constexpr) -> None:
    """Round the norms in doubt by their exact sums."""
    group = tl.program_id(0)
    state = states + group * STATE
    if tl.load(state) == 0:
        return
    low = tl.load(norms + group)
    bits = low.to(tl.float32).to(tl.int32, bitcast=True)
    after = (bits + 1).to(tl.float32, bitcast=True)
    high = tl.where(after == INFINITY, AFTER_LARGEST, after.to(tl.float64))
    middle = _powers_of_middle((low + high) * 0.5, order)
    carry = tl.zeros([], tl.int64)
    rest = tl.zeros([], tl.int64)
    for window in range(WINDOWS):
        difference = tl.load(state + 1 + window) - _window(middle, window).to(tl.int64) + carry
        carry = difference >> 16
        rest = rest | (difference & 65535)
    is_above = (carry > 0) | ((carry == 0) & (rest != 0))
    is_middle = (carry == 0) & (rest == 0)
    is_odd = (bits & 1) == 1
    tl.store(norms + group, tl.where(is_above | (is_middle & is_odd), after.to(tl.float64), low))


@triton.jit
def _powers_of_middle(middle: tl.tensor, order: tl.constexpr) -> tl.tensor:
    """Return a power of a number of 25 bits, which is exact in float64."""
    if order == 2:
        return middle * middle
    return middle


@triton.jit
def _to_bfloat16_by_bits(numbers: tl.tensor) -> tl.tensor:
    """Round to bfloat16, ties to even. Triton's interpreter cuts bits off instead; compiled code rounds."""
    bits = numbers.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(numbers == numbers, rounded, 0x7FC0).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _changed(
    values: tl.tensor, coef: tl.tensor, low: tl.tensor, high: tl.tensor,
    dtype: tl.constexpr, clamps: tl.constexpr, by_bits: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return products, computed in float32 and rounded once, or clamped values, of which NaN keeps its bits."""
    numbers = values.to(tl.float32)
    if clamps:
        numbers = tl.where(numbers < low, low, tl.where(numbers > high, high, numbers))
    else:
        numbers = numbers * coef
    changed = _to_bfloat16_by_bits(numbers) if by_bits else numbers.to(dtype)
    if clamps:
        changed = tl.where((values.to(tl.float32) < low) | (values.to(tl.float32) > high), changed, values)
    return changed


@triton.jit
def _write(
    source: tl.tensor, target: tl.tensor, length: tl.tensor, coef: tl.tensor, low: tl.tensor, high: tl.tensor,
    dtype: tl.constexpr, chunk_size: tl.constexpr, width: tl.constexpr, clamps: tl.constexpr, by_bits: tl.constexpr,
) -> None:  # fmt: skip
    lanes = tl.arange(0, width)
    if length == chunk_size:
        for at in range(0, chunk_size, width):
            values = tl.load(source + at + lanes)
            tl.store(target + at + lanes, _changed(values, coef, low, high, dtype, clamps, by_bits))
    else:
        for at in range(0, length, width):
            mask = at + lanes < length
            values = tl.load(source + at + lanes, mask=mask, other=0.0)
            tl.store(target + at + lanes, _changed(values, coef, low, high, dtype, clamps, by_bits), mask=mask)


@triton.jit(do_not_specialize=RUNTIME)
def change(
    table: tl.tensor, tensors: tl.tensor, first_chunk: tl.tensor, coefs: tl.tensor, low: tl.tensor, high: tl.tensor,
    dtype: tl.constexpr, chunk_size: tl.constexpr, width: tl.constexpr, aligned: tl.constexpr, in_place: tl.constexpr,
    per_tensor: tl.constexpr, clamps: tl.constexpr, by_bits: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply each chunk by its coefficient, or clamp it. In place, a coefficient of 1 reads and writes nothing.

    `low`, `high`: the bits of float32 bounds. As a number, -0 may lose its sign.
    """
    low, high = low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)
    chunk = first_chunk + tl.program_id(0).to(tl.int64)
    tensor, source, target, length = _chunk(table, tensors, chunk, chunk_size, dtype, aligned)
    if clamps:
        _write(source, target, length, low, low, high, dtype, chunk_size, width, clamps, by_bits)
    else:
        coef = tl.load(coefs + tensor if per_tensor else coefs).to(tl.float32)
        if in_place:
            if coef != 1.0:
                _write(source, target, length, coef, low, high, dtype, chunk_size, width, clamps, by_bits)
        else:
            _write(source, target, length, coef, low, high, dtype, chunk_size, width, clamps, by_bits)
