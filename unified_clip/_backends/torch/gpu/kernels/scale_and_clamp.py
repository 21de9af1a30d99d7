from __future__ import annotations

import triton
import triton.language as tl

from .shared import RUNTIME, chunk_at, in_vectors, vectors_at


@triton.jit
def _to_bfloat16_by_bits(numbers: tl.tensor) -> tl.tensor:
    """Round float32 numbers to bfloat16, with ties to even. Triton's interpreter would truncate."""
    bits = numbers.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(numbers == numbers, rounded, 0x7FC0).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _converted(numbers: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    return numbers.to(tl.float64 if dtype == tl.float64 else tl.float32)


@triton.jit
def _changed(
    values: tl.tensor, coef: tl.tensor, low: tl.tensor, high: tl.tensor,
    dtype: tl.constexpr, clamps: tl.constexpr, by_bits: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Clamping does not change the bits of NaN, or of values within the bounds."""
    wide = _converted(values, dtype)
    if clamps:
        numbers = tl.where(wide < low, low, tl.where(wide > high, high, wide))
    else:
        numbers = wide * coef
    changed = _to_bfloat16_by_bits(numbers) if by_bits else numbers.to(dtype)
    if clamps:
        changed = tl.where((wide < low) | (wide > high), changed, values)
    return changed


@triton.jit
def _write(
    source: tl.tensor, target: tl.tensor, length: tl.tensor, coef: tl.tensor, low: tl.tensor, high: tl.tensor,
    dtype: tl.constexpr, width: tl.constexpr, clamps: tl.constexpr, by_bits: tl.constexpr,
) -> None:  # fmt: skip
    lanes = tl.arange(0, width)
    vectors = in_vectors(source | target, length, width)
    start, results = vectors_at(source, dtype), vectors_at(target, dtype)
    for at in range(0, vectors, width):
        values = tl.load(start + at + lanes)
        tl.store(results + at + lanes, _changed(values, coef, low, high, dtype, clamps, by_bits))
    start, results = source.to(tl.pointer_type(dtype)), target.to(tl.pointer_type(dtype))
    for at in range(vectors, length, width):
        mask = at + lanes < length
        values = tl.load(start + at + lanes, mask=mask, other=0.0)
        tl.store(results + at + lanes, _changed(values, coef, low, high, dtype, clamps, by_bits), mask=mask)


@triton.jit(do_not_specialize=RUNTIME)
def change(
    table: tl.tensor, tensors: tl.tensor, first_chunk: tl.tensor, coefs: tl.tensor, low: tl.tensor, high: tl.tensor,
    dtype: tl.constexpr, chunk_size: tl.constexpr, width: tl.constexpr, in_place: tl.constexpr,
    per_tensor: tl.constexpr, clamps: tl.constexpr, by_bits: tl.constexpr,
) -> None:  # fmt: skip
    """Clamp one chunk, or multiply it by its coefficient. In place, a coefficient of 1 writes nothing.

    `low` and `high` are the bits of the float64 bounds, so that a bound of -0 keeps its sign.
    """
    low = _converted(low.to(tl.int64).to(tl.float64, bitcast=True), dtype)
    high = _converted(high.to(tl.int64).to(tl.float64, bitcast=True), dtype)
    chunk = first_chunk + tl.program_id(0).to(tl.int64)
    tensor, source, target, length = chunk_at(table, tensors, chunk, chunk_size, dtype)
    if clamps:
        _write(source, target, length, low, low, high, dtype, width, clamps, by_bits)
    else:
        coef = _converted(tl.load(coefs + tensor if per_tensor else coefs), dtype)
        if in_place:
            if coef != 1.0:
                _write(source, target, length, coef, low, high, dtype, width, clamps, by_bits)
        else:
            _write(source, target, length, coef, low, high, dtype, width, clamps, by_bits)
