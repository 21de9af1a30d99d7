"""Hypotheses about the cause of a difference, such as a wrong eps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import numpy as np

from ..tensors.arithmetic import FORMATS, Float64s, nearest_float
from ..tensors.norms import exact_norm
from ..tensors.types import Sparse
from . import wrong_settings
from .cause import CauseKind, distinct_texts, instead
from .counted_gradients import not_counted, not_scaled, repeated
from .eps import AND_WITH_EPS, COMMON_EPS, eps_in_root, eps_on_coefficient, or_another_eps, other_eps
from .observation import CLEAR_FACTOR, By, Hypothesis, Observation
from .sums import (
    IN_FLOAT32,
    NARROW,
    added_up_in_16_bits,
    another_number_returned,
    combined_otherwise,
    rounding_noise,
)

SCALED = 1e-3
"""Rounding can make gradients grow by up to this fraction."""

CLIPPED_BY: dict[By, str] = {
    "global": "the total norm",
    "per tensor": "its own norm",
    "per group": "the norm of its group",
    "per slice": "the norm of each slice",
}

SQUARED_NORM = "as if the call used the square of the norm instead of the norm"

INVERTED = "as if only gradients with a norm below the threshold were scaled to the threshold"

QUOTIENT = "as if the coefficient were {}(1, norm / threshold) instead of min(1, threshold / norm)"

TWICE = "as if the coefficient were applied twice"

SUMS = ("one after the other", "one after the other", "by blocks", "by blocks", "one after the other")


def common_causes(call: Observation, slack: float) -> Iterator[Hypothesis]:
    """Yield hypotheses about wrong settings and wrong norms, the simple ones first."""
    if call.by == "per slice":
        yield from _other_norms(call)
        return
    yield from other_eps(call)
    if call.by != "per group" and not call.are_norms:
        yield from _in_float32(call)
    yield from _in_16_bits(call)
    yield from not_scaled(call)
    if call.by == "global":
        yield from repeated(call)
        yield from not_counted(call, slack)
    yield from _other_norms(call)
    if call.by != "per group" and not call.are_norms:
        yield from _other_orders(call)
        yield from combined_otherwise(call)
        yield from _unsummed_rows(call)
        yield from _always_scaled(call)
    yield from _twice(call)
    yield from eps_in_root(call)
    yield from eps_on_coefficient(call)
    yield from another_number_returned(call)


def _in_float32(call: Observation) -> Iterator[Hypothesis]:
    if call.p != 2 or call.passed_norm is not None:
        return
    values = {number: gradient.values().reshape(-1) for number, gradient in call.counted.items()}
    for index, way in enumerate(SUMS):
        norms = call.norms_by(call.by, partial(_float32_norm, values, index))
        sentence = f"as if the squares were added up in float32, {way}"
        yield Hypothesis("float32", sentence, norms, tolerance=IN_FLOAT32)


def _float32_norm(values: Mapping[int, Float64s], way: int, numbers: Sequence[int]) -> float:
    """Return the norm of the gradients with the indices `numbers`, computed in float32.

    Ways 0 to 3 add up the squares of each gradient separately. Ways 1 and 3 also round the norm of each gradient.
    Way 4 adds up all squares in one sum.
    """
    squares = [np.append(values[number], 0.0).astype(np.float32) ** 2 for number in numbers]
    if way < 4:
        sums = np.array([np.add.accumulate(each)[-1] if way < 2 else np.sum(each) for each in squares])
        squares = [np.sqrt(sums) ** 2 if way % 2 and len(sums) > 1 else sums]
    return float(np.sqrt(np.add.accumulate(np.concatenate(squares))[-1]))


def _in_16_bits(call: Observation) -> Iterator[Hypothesis]:
    for dtype in NARROW:
        norms = [nearest_float(n, dtype) for n in call.norms]
        yield Hypothesis("16 bits", f"as if the norm were rounded to {dtype}", norms, tolerance=IN_FLOAT32)
        coefs = [nearest_float(coef, dtype) for coef in call.expected_coefs]
        yield Hypothesis("16 bits", f"as if the coefficient were rounded to {dtype}", coefs=coefs)
    yield from added_up_in_16_bits(call)
    norm, expected = call.norm, call.expected_norm
    if norm is None or expected is None:
        return
    for dtype in NARROW:
        ulp = 2.0 ** -FORMATS[dtype].precision
        if 0 < abs(norm - expected) <= 8 * ulp * expected and norm == nearest_float(norm, dtype):
            sentence = f"as if the norm were computed in {dtype}"
            yield Hypothesis("16 bits", sentence, [norm] * len(call.norms), tolerance=ulp, is_rare=True)


def _other_norms(call: Observation) -> Iterator[Hypothesis]:
    others: tuple[By, ...] = ("per tensor", "global")
    noise = CLEAR_FACTOR * rounding_noise(call.elements)
    for by in others:
        norms = call.norms_by(by)
        if by == call.by or not (_differ(call, norms) or (by, call.by) == ("per tensor", "per slice")):
            continue
        sentence = f"as if each gradient were clipped by {CLIPPED_BY[by]} instead of {CLIPPED_BY[call.by]}"
        for eps in dict.fromkeys((call.eps, *COMMON_EPS)):
            is_visible = abs(eps - call.eps) > noise * min(filter(None, norms), default=math.inf)
            with_eps = f"{AND_WITH_EPS}{eps:g} instead of {call.eps:g}" if is_visible else ""
            for returned in ((), norms[-1:]):
                kind = cast(CauseKind, f"{by} for {call.by}")
                yield Hypothesis(kind, sentence + with_eps, norms, returned, eps)
    if call.passed_norm is not None:
        yield Hypothesis(
            "given norm",
            "as if the function measured the norm instead of using the passed norm",
            call.norms_by("global"),
        )


def _differ(call: Observation, norms: Sequence[float]) -> bool:
    return any(n and n != expected for n, expected in zip(norms, call.norms, strict=True))


def _other_orders(call: Observation) -> Iterator[Hypothesis]:
    for p in (1.0, 2.0, math.inf):
        if p != call.p:
            norms = call.norms_by(call.by, partial(call.norm_over, own=call.own_norms(p), p=p))
            yield Hypothesis("another norm type", instead("norm_type", p, call.p), norms)
    squares = [nearest_float(n * n, call.norm_dtype) for n in call.norms_by(call.by)]
    yield Hypothesis("another norm type", SQUARED_NORM, squares)
    sentence = "as if the call used the square of the threshold instead of the threshold"
    yield Hypothesis("another threshold", sentence, threshold=call.threshold**2)


def _always_scaled(call: Observation) -> Iterator[Hypothesis]:
    threshold, eps = call.threshold, call.eps
    coefs = [threshold / (n + eps) if i in call.counted and n + eps else 1.0 for i, n in enumerate(call.norms)]
    if call.scalings and 0 < threshold < math.inf:
        if any(coef > 1 for coef in coefs):
            sentence = "as if gradients with a small norm were scaled up to the threshold"
            yield Hypothesis("scaled gradients", sentence, coefs=coefs)
        yield Hypothesis("another condition", INVERTED, coefs=[max(coef, 1.0) for coef in coefs], is_rare=True)
        for choose in (min, max):
            quotients = [choose(1 / coef, 1.0) if coef else 1.0 for coef in coefs]
            yield Hypothesis("coefficient", QUOTIENT.format(choose.__name__), coefs=quotients, is_rare=True)


def _unsummed_rows(call: Observation) -> Iterator[Hypothesis]:
    sparse = {i: gradient.values for i, gradient in enumerate(call.before) if isinstance(gradient, Sparse)}
    rows = {number: exact_norm([values], call.p, "float64") for number, values in sparse.items()}
    norms = call.norms_by(call.by, partial(call.norm_over, own={**call.own, **rows}))
    if sparse and _differ(call, norms):
        yield Hypothesis("rows", "as if repeated rows were not summed before the norm was measured", norms)


def _twice(call: Observation) -> Iterator[Hypothesis]:
    if not call.wrong:
        return
    tolerance = max(2.0 ** (1 - FORMATS[scaling.dtype].precision) for scaling in call.scalings.values())
    wrong = call.clearly_wrong or call.wrong
    squares = [coef * coef if number in wrong else coef for number, coef in enumerate(call.expected_coefs)]
    or_eps = or_another_eps(call, squares)
    abouts: list[Sequence[int]] = [()] if len(wrong) == len(call.counted) else [wrong]
    abouts += [wrong] if len(wrong) == len(call.counted) == 1 else []
    for about in abouts:
        sentence = f"{TWICE} to {call.names_of(about)}" if about else TWICE
        yield Hypothesis("clipped twice", sentence + or_eps, coefs=squares, tolerance=tolerance, about=about)
    clipped = {number: call.expected_coefs[number] * n for number, n in call.own.items()}
    again = call.coefficients(Hypothesis(norms=call.norms_by(call.by, partial(call.norm_over, own=clipped))))
    coefs = [first * second for first, second in zip(call.expected_coefs, again, strict=True)]
    sentence = f"as if all gradients were clipped twice{or_another_eps(call, coefs)}"
    yield Hypothesis("clipped twice", sentence, coefs=coefs, tolerance=tolerance)


# -- hypotheses that are tested if no hypothesis above fits


def fitted_causes(call: Observation) -> Iterator[Hypothesis]:
    if call.by != "per slice":
        yield from _other_threshold(call)
        yield from _float32_error(call)
        yield from scaled_gradients(call)


def _other_threshold(call: Observation) -> Iterator[Hypothesis]:
    clipped = {number: each for number, each in call.scalings.items() if number in call.counted and 0 < each.high < 1}
    if not clipped:
        return
    number, narrowest = min(clipped.items(), key=lambda each: each[1].high - each[1].low)
    threshold = (narrowest.low + narrowest.high) / 2 * (call.norms[number] + call.eps)
    kind: CauseKind = "another threshold"
    sentence = instead("the threshold", threshold, call.threshold)
    coef = (narrowest.low + narrowest.high) / 2
    sentence += or_another_eps(call, [coef] * len(call.before))
    if call.norm is None and len({call.norms[number] for number in clipped}) == 1:
        factor = call.threshold / threshold if threshold else math.inf
        times = distinct_texts([factor], [1.0])[0]
        sentence, kind = f"{sentence}, or as if the norm were {times} times as large", "coefficient"
    yield Hypothesis(kind, sentence, threshold=threshold, tolerance=IN_FLOAT32)


def _float32_error(call: Observation) -> Iterator[Hypothesis]:
    norm, expected = call.norm, call.expected_norm
    if norm is None or expected is None or call.p != 2:
        return
    # the root halves the relative error of the sum
    bound = min(call.elements * 2.0**-25, CLEAR_FACTOR * rounding_noise(call.elements))
    size = abs(norm - expected) / expected if expected else math.inf
    if size <= bound:
        sentence = (
            f"the norm is off by {size:.1e}. Adding {call.elements} squares in float32 can cause an error of up to "
            f"{bound:.1e}, and no other known cause fits"
        )
        yield Hypothesis("float32", sentence, [norm] * len(call.before), tolerance=IN_FLOAT32)


def scaled_gradients(call: Observation) -> Iterator[Hypothesis]:
    if call.elements < 2 or not call.scalings or not all(each.unchanged_is_expected for each in call.scalings.values()):
        return
    narrowest = min(call.scalings.values(), key=lambda each: each.high - each.low)
    factor = (narrowest.low + narrowest.high) / 2
    if 1 + SCALED <= factor < math.inf:
        cause, coefs = wrong_settings.scaled_gradients(factor), [factor * coef for coef in call.expected_coefs]
        norms = [call.total_norm, call.total_norm * factor]
        yield Hypothesis(cause.kind, cause.sentence, (), norms, coefs=coefs, tolerance=IN_FLOAT32)
