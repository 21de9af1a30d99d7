"""Causes that the result of a single call shows by itself, such as a missing gradient or NaN."""

from __future__ import annotations

import math

import numpy as np

from ..tensors.arithmetic import FORMATS, Float64s
from ..tensors.types import Dense, digest
from .cause import Cause, instead
from .observation import Observation
from .scaling import CLOSE, tolerance_of


def find_fact(call: Observation) -> Cause | None:
    if cause := swapped(call) or without_result(call):
        return cause
    if not call.has_one_form or (call.norm_is_expected and not call.wrong):
        return None
    checks = (beyond_range, wrong_nan, zeros_with_wrong_sign, wrong_signs, wrong_bounds)
    return next(filter(None, (check(call) for check in checks)), None)


def swapped(call: Observation) -> Cause | None:
    if len(call.after) != len(call.expected) or not call.norm_fits([call.expected_norm], CLOSE):
        return None
    places = [n for n, pair in enumerate(zip(call.expected, call.after, strict=True)) if not _is_close(*pair)]
    rest = list(places)
    for place in places:
        source = next((each for each in rest if _is_close(call.expected[each], call.after[place])), None)
        if source is None:
            return None
        rest.remove(source)
    how = "swapped" if len(places) == 2 else "in another order"
    return Cause("swapped", f"{call.names_of(places)} are {how}") if places else None


def _is_close(expected: Dense | None, result: Dense | None) -> bool:
    if expected is None or result is None:
        return expected is result
    have_one_form = (expected.dtype, expected.shape) == (result.dtype, result.shape)
    return have_one_form and _is_near(result.values(), expected.values(), result.dtype)


def _is_near(result: Float64s, right: Float64s, dtype: str) -> bool:
    return np.allclose(result, right, rtol=tolerance_of(dtype), atol=0.0, equal_nan=True)


def without_result(call: Observation) -> Cause | None:
    if len(call.after) == len(call.expected):
        pairs = enumerate(zip(call.expected, call.after, strict=True))
        lost = [number for number, (expected, result) in pairs if expected and not result]
    else:
        rest, lost = [digest([tensor]) for tensor in call.after], []
        for number, tensor in enumerate(call.expected):
            if rest[:1] == [digest([tensor])]:
                del rest[0]
            else:
                lost.append(number)
        lost = [] if rest else lost  # only if all other results are correct
    are = "is" if len(lost) == 1 else "are"
    return Cause("left out", f"{call.names_of(lost)} {are} missing") if lost and call.after else None


def beyond_range(call: Observation) -> Cause | None:
    is_narrow = any(gradient is not None and gradient.dtype == "float16" for gradient in call.before)
    dtype, terms = (
        "float16" if is_narrow else "float32",
        {1: "absolute values", 2: "squares", math.inf: "absolute values"},
    )
    of_norm, words = call.expected_norm or 0.0, terms.get(call.p, "powers")
    size = _log2(of_norm, call.p)
    # the call may add up squares in float16, even if the gradients are float32
    of_sum = "float16" if call.p == 2 and size < FORMATS[dtype].max_exponent else dtype
    if call.norm == math.inf and FORMATS[of_sum].max_exponent <= size < math.inf:
        return Cause("overflow", f"the norm is inf instead of {of_norm:.6g}: {words} exceed the range of {of_sum}")
    if call.norm == 0 and of_norm and size < FORMATS[dtype].min_exponent:
        return Cause("underflow", f"the norm is 0 instead of {of_norm:.6g}: {words} are too small for {dtype}")
    lost = [number for number, each in call.scalings.items() if each.is_zero and not each.is_expected]
    norms = {call.norms[number] for number in lost} if not call.norm or call.by != "global" else {0.0}
    is_beyond = all(FORMATS[dtype].max_exponent <= _log2(norm, call.p) for norm in norms)
    if lost and lost == call.clearly_wrong and is_beyond and all(map(math.isfinite, norms)):
        sentence = (
            f"{call.names_of(lost)} became 0: a norm is probably inf, because {words} exceed the range of {dtype}"
        )
        return Cause("overflow", sentence)
    sides = [(number, np.isinf(after.values()), right.values()) for number, _, right, after in call.sides()]
    if infinite := [number for number, is_inf, right in sides if (is_inf & np.isfinite(right)).any()]:
        return Cause("overflow", f"elements of {call.names_of(infinite)} are infinite, but should be finite")
    return None


def _log2(norm: float, p: float) -> float:
    """Return log2(norm**p), or log2(norm) for p = inf."""
    if norm == 0 or not norm < math.inf:
        return -math.inf if norm == 0 else norm
    return math.log2(norm) * (p if p < math.inf else 1.0)


def wrong_nan(call: Observation) -> Cause | None:
    pairs = {number: (np.isnan(a.values()), np.isnan(b.values())) for number, _, a, b in call.sides()}
    extra = {number: nan & ~expected for number, (expected, nan) in pairs.items() if (nan & ~expected).any()}
    lacking = [number for number, (expected, nan) in pairs.items() if (expected & ~nan).any()]
    is_infinite = call.by in ("global", "per group") and call.total_norm == math.inf
    if lacking and is_infinite and call.infinite_norm_gives_nan and _are_zeros(call):
        return Cause("inf", "the coefficient is 0, but should be NaN, because the total norm is infinite")
    if lacking:
        is_clipped = any(not each.is_unchanged for each in call.scalings.values())
        return Cause("NaN", f"{call.names_of(lacking)} should become NaN, but did not") if is_clipped else None
    if extra and all(pairs[number][1].all() for number in call.counted):
        if is_infinite and call.threshold < math.inf:
            sentence = "every element is NaN, but the coefficient should be 0, because the total norm is infinite"
            return Cause("inf", sentence)
        return Cause("NaN", "every element is NaN, but none should be")
    if extra:
        number, elements = next(iter(extra.items()))
        count, name = np.count_nonzero(elements), call.names_of([number])
        some = f"{name} has {count} NaN among {elements.size} elements, the first at"
        return Cause("NaN", f"unexpected NaN in {call.names_of(extra)}. {some} {np.argwhere(elements)[0].tolist()}")
    if call.norm_is_expected or call.norm is None or call.expected_norm is None:
        return None
    if math.isnan(call.norm):
        return Cause("NaN", "the norm is NaN, but should not be")
    return Cause("NaN", "the norm is not NaN, but the gradients have NaN") if math.isnan(call.expected_norm) else None


def _are_zeros(call: Observation) -> bool:
    return not any(result.values()[np.isfinite(before.values())].any() for _, before, _, result in call.sides())


def zeros_with_wrong_sign(call: Observation) -> Cause | None:
    if not call.wrong or not call.norm_is_expected or any(call.scalings[number].distance for number in call.wrong):
        return None
    return Cause("zeros", f"zeros in {call.names_of(call.wrong)} have the wrong sign")


def wrong_signs(call: Observation) -> Cause | None:
    sides = [(right.values(), result) for number, _, right, result in call.sides() if number in call.clearly_wrong]
    sizes_fit = all(_is_near(np.abs(result.values()), np.abs(right), result.dtype) for right, result in sides)
    if not sides or not sizes_fit or not call.norm_fits([call.expected_norm], CLOSE):
        return None
    names = call.names_of(call.clearly_wrong)
    if all(_is_near(-result.values(), right, result.dtype) for right, result in sides):
        return Cause("signs", f"as if {names} were multiplied by -1")
    return Cause("signs", f"only the signs of {names} are wrong")


def wrong_bounds(call: Observation) -> Cause | None:
    tensors = [(before.values(), result.values()) for _, before, _, result in call.sides()]
    finite = np.concatenate([result[~np.isnan(result)] for _, result in tensors]) if call.by == "value" else np.zeros(0)
    if not finite.size:
        return None
    bounds = float(finite.min()), float(finite.max())
    if not all(np.array_equal(np.clip(before, *bounds), result, equal_nan=True) for before, result in tensors):
        return None
    return Cause("another threshold", instead("the bounds", bounds, call.bounds))
