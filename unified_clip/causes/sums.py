"""Hypotheses about a wrong total norm, for example a mean of the tensors' norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from ..recorder.clips import combined_norm
from ..tensors.arithmetic import FORMATS, Float64s, nearest_float, rounded
from .cause import Cause
from .observation import Hypothesis, Observation

IN_FLOAT32 = 2.0**-22
"""The largest relative error of a coefficient in float32."""

NARROW = ("bfloat16", "float16")
"""If both dtypes explain the results, the report names bfloat16."""

NEAR_STEPS = 8

MIN_ELEMENTS = 4
"""A call with fewer elements can match a cause by chance."""


def rounding_noise(elements: int) -> float:
    """Estimate the largest relative error of a float32 norm."""
    return 2.0**-24 * (1 + math.sqrt(elements))


COMBINED: dict[str, Callable[[Sequence[float]], float]] = {
    "the sum of the tensors' norms": math.fsum,
    "the largest norm of a tensor": max,
    "the mean of the tensors' norms": lambda norms: math.fsum(norms) / len(norms),
    "the root mean square of the tensors' norms": lambda norms: math.hypot(*norms) / math.sqrt(len(norms)),
    "the norm divided by the square root of 2": lambda norms: math.hypot(*norms) / math.sqrt(2),
    "half the sum of the squares": lambda norms: math.hypot(*norms) ** 2 / 2,
    "the norm times the square root of 2": lambda norms: math.hypot(*norms) * math.sqrt(2),
}

OF_MEAN_SQUARES: dict[str, Callable[[Sequence[float]], float]] = {
    "the norm of the tensors' root mean squares": lambda roots: math.hypot(*roots),
    "the root mean square of the tensors' root mean squares": lambda roots: math.hypot(*roots) / math.sqrt(len(roots)),
    "the sum of the tensors' root mean squares": math.fsum,
}


def combined_otherwise(call: Observation) -> Iterator[Hypothesis]:
    if call.by not in ("global", "per group") or call.passed_norm is not None:
        return

    sizes = {number: gradient.array.size or 1 for number, gradient in call.counted.items()}

    def combined(combine: Callable[[Sequence[float]], float], norms: Mapping[int, float], numbers: list[int]) -> float:
        return nearest_float(combine([norms[number] for number in numbers]), call.norm_dtype)

    def mean(numbers: Sequence[int]) -> float:
        norm, elements = (
            combined_norm([call.own[number] for number in numbers], 2),
            sum(map(sizes.__getitem__, numbers)),
        )
        return nearest_float(norm / math.sqrt(elements), call.norm_dtype)

    measures: dict[str, Callable[[Sequence[int]], float]]
    measures = {what: partial(combined, combine, call.own) for what, combine in COMBINED.items()}
    if call.p == 2 and not call.are_norms:
        roots = {number: call.own[number] / math.sqrt(size) for number, size in sizes.items()}
        measures |= {what: partial(combined, combine, roots) for what, combine in OF_MEAN_SQUARES.items()}
        measures["the root mean square of all elements"] = mean
    for what, measure in measures.items():
        sentence = f"as if the call used {what} instead of the norm"
        yield Hypothesis("another norm type", sentence, call.norms_by(call.by, measure))


def another_number_returned(call: Observation) -> Iterator[Hypothesis]:
    if call.by != "global":
        return
    square = nearest_float(call.total_norm**2, call.norm_dtype)
    sentence = "as if the square of the norm were returned in place of the norm"
    yield Hypothesis("another norm type", sentence, returned=[square])
    if call.expected_coefs:
        sentence = "as if the coefficient were returned in place of the norm"
        coef = next((call.expected_coefs[number] for number in call.counted), math.nan)
        yield Hypothesis("coefficient", sentence, returned=[coef])


# -- 16 bits


def added_up_in_16_bits(call: Observation) -> Iterator[Hypothesis]:
    if call.p != 2 or call.passed_norm is not None or call.are_norms:
        return
    for dtype in NARROW:
        for sentence, measure in _narrow_norms(call, dtype):
            norms = call.norms_by(call.by, measure)
            for each in (norms, [nearest_float(norm, dtype) for norm in norms]):
                yield Hypothesis("16 bits", sentence, each, tolerance=IN_FLOAT32)
        near = {number: float(np.linalg.norm(rounded(each.values(), dtype))) for number, each in call.counted.items()}
        norms = call.norms_by(call.by, partial(call.norm_over, own=near))
        sentence = f"as if the norm were computed from gradients that are rounded to {dtype}"
        yield Hypothesis("16 bits", sentence, norms, tolerance=IN_FLOAT32)


def _narrow_norms(call: Observation, dtype: str) -> Iterator[tuple[str, Callable[[Sequence[int]], float]]]:
    sentence = f"as if the squares were added up in {dtype}"
    sums = {number: _sums(gradient.values().reshape(-1), dtype) for number, gradient in call.counted.items()}
    for way in range(min(map(len, sums.values()), default=0)):
        yield sentence, partial(_root_of_sums, {number: each[way] for number, each in sums.items()}, dtype)
    squares = {number: rounded(rounded(each.values(), dtype) ** 2, dtype) for number, each in call.counted.items()}
    roots = {number: math.sqrt(float(np.sum(each))) for number, each in squares.items()}
    yield f"as if each square were rounded to {dtype}", partial(call.norm_over, own=roots)
    if call.elements <= LONGEST_SEQUENCE:
        yield sentence, partial(_root_of_sequence, call, dtype)
    norms = {number: nearest_float(norm, dtype) for number, norm in call.own.items()}
    yield f"as if the norm of each tensor were rounded to {dtype}", partial(call.norm_over, own=norms)


def _sums(values: Float64s, dtype: str) -> list[float]:
    near = rounded(values, dtype)
    squares = rounded(near**2, dtype)
    sums = [nearest_float(float(np.sum(terms)), dtype) for terms in (values**2, near**2, squares)]
    return [*sums, _one_after_the_other(squares, dtype)] if values.size <= LONGEST_SEQUENCE else sums


def _root_of_sums(sums: Mapping[int, float], dtype: str, numbers: Sequence[int]) -> float:
    total = 0.0
    for number in numbers:
        total = nearest_float(total + sums[number], dtype)
    return nearest_float(math.sqrt(total), "float32")


LONGEST_SEQUENCE = 100_000

BLOCK = 512


def _root_of_sequence(call: Observation, dtype: str, numbers: Sequence[int]) -> float:
    values = np.concatenate([np.zeros(0), *(call.counted[number].values().reshape(-1) for number in numbers)])
    total = _one_after_the_other(rounded(rounded(values, dtype) ** 2, dtype), dtype)
    return nearest_float(math.sqrt(total), "float32")


def _one_after_the_other(squares: Float64s, dtype: str) -> float:
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
    return nearest_float(total, dtype)


def steps_in_16_bits(call: Observation) -> Cause | None:
    dtypes = {gradient.dtype for gradient in call.counted.values()}
    dtype = next(iter(dtypes), "")
    if call.by not in ("global", "per tensor") or len(dtypes) != 1 or dtype not in NARROW or not call.wrong:
        return None
    if call.elements < MIN_ELEMENTS or call.passed_norm is not None or nearest_float(call.threshold, dtype) == math.inf:
        return None
    groups = [list(call.counted)] if call.by == "global" else [[number] for number in call.counted]
    explained = [_explaining_ways(call, numbers, dtype) for numbers in groups]
    for way in WAYS:
        if all(way in ways for ways in explained):
            if any(ways[way] for ways in explained):
                return Cause("16 bits", f"as if the squares were added up in {dtype}, and {way} in {dtype}")
            return Cause("16 bits", f"as if {way} in {dtype}")
    return None


def ulp(dtype: str) -> float:
    return 2.0 ** (1 - FORMATS[dtype].precision)


WAYS = (
    "the gradients were divided by the norm and multiplied by the threshold",
    "the gradients were multiplied by the threshold and divided by the norm",
    "the gradients were multiplied by the coefficient",
)


def _in_steps(way: str, gradient: Float64s, norm: float, threshold: float, dtype: str) -> Float64s:
    if way == WAYS[0]:
        return rounded(rounded(gradient / norm, dtype) * threshold, dtype)
    if way == WAYS[1]:
        return rounded(rounded(gradient * threshold, dtype) / norm, dtype)
    return rounded(gradient * nearest_float(threshold / norm, dtype), dtype)


def _explaining_ways(call: Observation, numbers: Sequence[int], dtype: str) -> dict[str, bool]:
    """For each way that explains the results, return whether it needs a norm that was added up in 16 bits."""
    threshold, exact = nearest_float(call.threshold, dtype), call.norm_over(numbers)
    steps = sorted(range(-NEAR_STEPS, NEAR_STEPS + 1), key=abs)
    near = [nearest_float(exact * (1 + step * ulp(dtype) / 2), dtype) for step in steps]
    added_up = _added_up([call.counted[number].values() for number in numbers], dtype)
    tensors = [(before.values(), result.values()) for i, before, _, result in call.sides() if i in numbers]
    explaining: dict[str, bool] = {}
    for norm in dict.fromkeys([*near, *added_up]):
        if not 0 < norm < math.inf or call.norm not in (None, norm):
            continue
        if norm <= threshold and all(np.array_equal(*pair) for pair in tensors):  # nothing to clip
            return dict.fromkeys(WAYS, False)
        for way in WAYS:
            products = ((_in_steps(way, g, max(norm, threshold), threshold, dtype), result) for g, result in tensors)
            if way not in explaining and all(np.array_equal(*pair) for pair in products):
                explaining[way] = norm not in near
    return explaining


def _added_up(tensors: Sequence[Float64s], dtype: str) -> list[float]:
    norms = []
    for squares_are_rounded in (True, False):
        total = 0.0
        for values in tensors:
            squares = rounded(values**2, dtype) if squares_are_rounded else values**2
            total = nearest_float(total + nearest_float(float(np.sum(squares)), dtype), dtype)
        norms.append(nearest_float(math.sqrt(total), dtype))
    return list(dict.fromkeys(norms))
