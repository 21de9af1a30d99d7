"""Hypotheses about sums and other steps that are rounded to 16 bits or to float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce

import numpy as np
import numpy.typing as npt

from ..tensors.arithmetic import FORMATS, Float64s, rounded
from .cause import Cause
from .observation import CLEAR_FACTOR, IN_FLOAT32, NARROW, Hypothesis, Measure, Observation, near

NEAR_STEPS = 8

MIN_ELEMENTS = 4
"""A call with fewer elements can match a cause by chance."""

LONGEST_SEQUENCE = 100_000

BLOCK = 512


def in_float32(call: Observation) -> Iterator[Hypothesis]:
    if call.p != 2 or call.passed_norm is not None or call.by == "per group":
        return
    squares = {n: np.append(each.values(), 0.0).astype(np.float32) ** 2 for n, each in call.counted.items()}
    ways: Mapping[str, Callable[[npt.NDArray[np.float32]], np.float32]] = {
        "one after the other": lambda terms: np.add.accumulate(terms)[-1],
        "by blocks": lambda terms: np.sum(terms),
    }

    def measures(add: Callable[[npt.NDArray[np.float32]], np.float32]) -> Iterator[Measure]:
        sums = {number: add(terms) for number, terms in squares.items()}
        yield lambda numbers: float(np.sqrt(np.add.accumulate([sums[n] for n in numbers], dtype=np.float32)[-1]))
        yield lambda numbers: float(
            np.sqrt(np.add.accumulate([np.sqrt(sums[n]) ** 2 for n in numbers], dtype=np.float32)[-1])
        )
        yield lambda numbers: float(np.sqrt(add(np.concatenate([squares[n] for n in numbers]))))

    for way, add in ways.items():
        for norms in (call.norms_by(call.by, measure) for measure in measures(add)):
            sentence = f"as if the squares were added up in float32, {way}"
            yield Hypothesis("float32", sentence, norms, norms[:1], tolerance=IN_FLOAT32)


def float32_error(call: Observation) -> Cause | None:
    norm, expected = call.norm, call.expected_norm
    if not norm or not expected or call.p != 2 or call.by == "per slice":
        return None
    # the root halves the relative error of the sum
    bound, size = min(call.elements * 2.0**-25, CLEAR_FACTOR * call.noise), abs(norm - expected) / expected
    if size > bound or not call.fits(Hypothesis(norms=[norm] * len(call.before), tolerance=IN_FLOAT32), 0.0):
        return None
    sentence = f"the norm is off by {size:.1e}. Adding {call.elements} squares in float32 can cause an error of up to "
    return Cause("float32", f"{sentence}{bound:.1e}, and no other known cause fits")


def in_16_bits(call: Observation) -> Iterator[Hypothesis]:
    for dtype in NARROW:
        narrowed = partial(near, dtype=dtype)
        norms_of = [(sentence, call.norms_by(call.by, measure)) for sentence, measure in _narrow_norms(call, dtype)]
        norms_of.insert(0, (f"the norm were rounded to {dtype}", [narrowed(n) for n in call.norms]))
        for sentence, norms in norms_of:
            for each in (norms, [narrowed(n) for n in norms]):
                # the call may return the correct norm, but clip by another one
                yield Hypothesis("16 bits", f"as if {sentence}", each, each[:1], tolerance=IN_FLOAT32)
                yield Hypothesis("16 bits", f"as if {sentence}", each, [call.total_norm], is_rare=True)
        if call.expected_coefs:
            coefs = [narrowed(coef) for coef in call.expected_coefs]
            yield Hypothesis("16 bits", f"as if the coefficient were rounded to {dtype}", coefs=coefs)
        ulp, norm, expected = 2.0 ** -FORMATS[dtype].precision, call.norm, call.expected_norm
        if norm is not None and expected and 0 < abs(norm - expected) <= 8 * ulp * expected and norm == narrowed(norm):
            # float16 can also represent most norms of bfloat16
            sentence = f"as if the norm were computed in {'16 bits' if dtype == 'bfloat16' else dtype}"
            yield Hypothesis("16 bits", sentence, [norm] * len(call.norms), tolerance=ulp, is_rare=True)


def _narrow_norms(call: Observation, dtype: str) -> Iterator[tuple[str, Measure]]:
    if call.p != 2 or call.passed_norm is not None:
        return
    narrowed = partial(near, dtype=dtype)
    values = {number: gradient.values().reshape(-1) for number, gradient in call.counted.items()}
    narrow = {number: rounded(each, dtype) for number, each in values.items()}
    squares = {number: rounded(each**2, dtype) for number, each in narrow.items()}
    sums = [{n: narrowed(float(np.sum(each**2))) for n, each in arrays.items()} for arrays in (values, narrow)]
    sums.append({number: narrowed(float(np.sum(each))) for number, each in squares.items()})
    added_up = f"the squares were added up in {dtype}"
    if call.elements <= LONGEST_SEQUENCE:
        sums.append({number: one_after_the_other(each, dtype) for number, each in squares.items()})
        yield added_up, lambda numbers: _root(one_after_the_other(np.concatenate([squares[n] for n in numbers]), dtype))
    for terms in sums:
        yield (
            added_up,
            lambda numbers, terms=terms: _root(  # type: ignore[misc]
                reduce(lambda total, number: narrowed(total + terms[number]), numbers, 0.0)
            ),
        )
    owns = {
        f"each square were rounded to {dtype}": {n: math.sqrt(float(np.sum(each))) for n, each in squares.items()},
        f"the norm of each tensor were rounded to {dtype}": {n: narrowed(norm) for n, norm in call.own.items()},
        f"the norm were computed from gradients that are rounded to {dtype}": {
            n: float(np.linalg.norm(each)) for n, each in narrow.items()
        },
    }
    for sentence, own in owns.items():
        yield sentence, partial(call.norm_over, own=own)


def _root(total: float) -> float:
    return near(math.sqrt(total), "float32")


def one_after_the_other(squares: Float64s, dtype: str) -> float:
    if not np.isfinite(squares).all():
        return float(np.sum(squares))
    total, limit, shift, size = 0.0, 0.0, 0.0, 2 ** FORMATS[dtype].precision
    for start in range(0, squares.size, BLOCK):
        block = squares[start : start + BLOCK]
        half_ulp = math.ldexp(1.0, math.frexp(total)[1] - 1) / size if total else math.ulp(0.0)
        for square in block[block >= half_ulp].tolist():  # smaller squares do not change the total
            total += square
            if total >= limit:
                limit = math.ldexp(1.0, math.frexp(total)[1])
                shift = 1.5 * 2**52 * (limit / size)  # a float64 with this exponent is a multiple of the total's ulp
            total = (total + shift) - shift
    return near(total, dtype)


# -- clips whose every step is rounded to 16 bits


def steps_in_16_bits(call: Observation) -> Cause | None:
    dtypes, threshold = {each.dtype for each in call.counted.values()}, call.threshold
    dtype = next(iter(dtypes), "")
    is_plain = call.by in ("global", "per tensor") and call.passed_norm is None and call.elements >= MIN_ELEMENTS
    if len(dtypes) != 1 or dtype not in NARROW or not is_plain or not call.wrong:
        return None
    threshold, half_ulp = near(threshold, dtype), 2.0 ** -FORMATS[dtype].precision
    groups = []
    for numbers in [list(call.counted)] if call.by == "global" else [[number] for number in call.counted]:
        norms = [call.norm_over(numbers) * (1 + step * half_ulp) for step in range(-NEAR_STEPS, NEAR_STEPS + 1)]
        norms += [measure(numbers) for _, measure in _narrow_norms(call, dtype)]
        possible = [n for n in dict.fromkeys(near(n, dtype) for n in norms) if n > 0 and call.norm in (None, n)]
        sides = [(before.values(), after.values()) for i, before, _, after in call.sides() if i in numbers]
        groups.append((possible, sides))

    def explains(clip: Step, norm: float, sides: Sequence[tuple[Float64s, Float64s]]) -> bool:
        if norm <= threshold and all(np.array_equal(*side) for side in sides):  # nothing to clip
            return True
        larger = max(norm, threshold)
        return all(np.array_equal(clip(before, larger, threshold, dtype), after) for before, after in sides)

    for way, clip in WAYS.items():
        if all(any(explains(clip, n, sides) for n in possible) for possible, sides in groups):
            return Cause("16 bits", f"as if {way} in {dtype}")
    return None


Step = Callable[[Float64s, float, float, str], Float64s]

WAYS: Mapping[str, Step] = {
    "the gradients were divided by the norm and multiplied by the threshold": lambda g, norm, threshold, dtype: rounded(
        rounded(g / norm, dtype) * threshold, dtype
    ),
    "the gradients were multiplied by the threshold and divided by the norm": lambda g, norm, threshold, dtype: rounded(
        rounded(g * threshold, dtype) / norm, dtype
    ),
    "the gradients were multiplied by the coefficient": lambda gradient, norm, threshold, dtype: rounded(
        gradient * near(threshold / norm, dtype), dtype
    ),
}
