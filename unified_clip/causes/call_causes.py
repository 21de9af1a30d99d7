"""Find out why a clip call returned a wrong result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ..tensors.arithmetic import FORMATS, Float64s
from ..tensors.norms import exact_norm
from ..tensors.types import Dense, digest
from . import hypotheses
from .cause import Cause, CauseKind, instead, joined
from .element_limits import element_limits, limit_cause
from .observation import NORM_TOLERANCE, Observation, common_cause
from .scaling import CLOSE, EXACT, tolerance_of
from .sums import steps_in_16_bits
from .wrong_settings import or_simple_threshold

LARGEST_ERROR = 1e-3
"""The largest relative error of a float32 norm that `norm_after` accepts."""

BY_VALUE = Cause("another rule", "as if the threshold limited each element instead of the norm")

NOT_CLIPPED = "as if nothing were clipped: the gradients are unchanged"


def find_cause(call: Observation) -> Cause | None:
    """Return None if the call is correct, or if the cause is unknown."""
    with np.errstate(all="ignore"):  # no warnings: overflow is one of the causes
        if cause := swapped(call) or without_result(call):
            return cause
        if forms_differ(call) or (call.norm_is_expected and not call.wrong):
            return None
        cause = shown_in_tensors(call)
        if cause or call.by == "value":
            return cause
        return limit_cause(element_limits(call)) or _by_hypotheses(call)


def forms_differ(call: Observation) -> bool:
    forms = [[tensor and (tensor.dtype, tensor.shape) for tensor in side] for side in (call.expected, call.after)]
    return forms[0] != forms[1]


def shown_in_tensors(call: Observation) -> Cause | None:
    """Return a cause that is visible in the results, such as wrong signs."""
    last = wrong_bounds if call.by == "value" else by_value
    checks = (beyond_range, wrong_nan, zeroed_gradients, wrong_signs, not_clipped, norm_after, last)
    return next(filter(None, (check(call) for check in checks)), None)


def _by_hypotheses(call: Observation) -> Cause | None:
    for slack in call.slacks:
        if call.expected_fits(slack):
            break
        possible = list(hypotheses.common_causes(call, slack))
        if fitting := call.fitting(possible, slack):
            cause = common_cause(fitting, call)
            return cause and or_simple_threshold(cause, call, (), ())
        if any(call.explains(each, slack) for each in possible if each.tolerance):
            # rounding hides whether this hypothesis or the correct call fits
            return touched_gradients(call) or steps_in_16_bits(call)
    if cause := steps_in_16_bits(call):
        return cause
    computed = hypotheses.fitted_causes(call) if not call.expected_fits(call.slacks[0]) else ()
    last = next((each for each in computed if call.fits(each, EXACT)), None)
    return Cause(last.kind, last.sentence) if last and last.kind else touched_gradients(call)


# -- causes that show in the tensors


def swapped(call: Observation) -> Cause | None:
    if len(call.after) != len(call.expected) or not call.norm_fits([call.expected_norm], CLOSE):
        return None
    expected = dict(enumerate(call.expected))
    places = [place for place in expected if not _is_close(expected[place], call.after[place])]
    order, rest = [*expected], list(places)
    for place in places:
        source = next((each for each in rest if _is_close(expected[each], call.after[place])), None)
        if source is None:
            return None
        order[place] = source
        rest.remove(source)
    if not places:
        return None
    names = call.names_of(places)
    if len(places) == 2:
        return Cause("swapped", f"{names} are swapped")
    return Cause("swapped", joined(f"{names} are in another order", _sorted_as_strings(order, call)))


def _is_close(expected: Dense | None, result: Dense | None) -> bool:
    if expected is None or result is None:
        return expected is result
    have_one_form = (expected.dtype, expected.shape) == (result.dtype, result.shape)
    return have_one_form and _is_near(result.values(), expected.values(), result.dtype)


def _sorted_as_strings(order: Sequence[int], call: Observation) -> str:
    texts = {"indices": list(map(str, range(len(order)))), "names": call.names}
    for what, keys in texts.items():
        if len(keys) == len(order) and [*order] == sorted(range(len(order)), key=keys.__getitem__):
            first, second = next(pair for pair in pairwise(order) if pair[0] > pair[1])
            return f"Perhaps the {what} were sorted as strings: {keys[first]!r} comes before {keys[second]!r}"
    return ""


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
    norm, expected = call.norm, call.expected_norm
    is_narrow = any(gradient is not None and gradient.dtype == "float16" for gradient in call.before)
    dtype = "float16" if is_narrow else "float32"
    narrowest = FORMATS[dtype]
    terms = {1.0: "absolute values", 2.0: "squares", math.inf: "absolute values"}.get(call.p, "powers")
    size = _log2(expected, call.p) if expected else -math.inf
    # the call may add up squares in float16, even if the gradients are float32
    of_sum = "float16" if call.p == 2 and size < narrowest.max_exponent else dtype
    if norm == math.inf and FORMATS[of_sum].max_exponent <= size < math.inf:
        sentence = f"the norm is inf instead of {expected:.6g}: {terms} exceed the range of {of_sum}"
        return _of_norm("overflow", sentence, call)
    if norm == 0 and expected and size < narrowest.min_exponent:
        sentence = f"the norm is 0 instead of {expected:.6g}: {terms} are too small for {dtype}"
        return _of_norm("underflow", sentence, call)
    total = call.total_norm if not norm and call.by == "global" else 0.0
    if _log2(total, call.p) >= narrowest.max_exponent and _all_became_zero(call):
        sentence = f"every element is 0: the norm is probably inf, because {terms} exceed the range of {dtype}"
        return Cause("overflow", sentence)
    lost = [number for number, each in call.scalings.items() if each.is_zero and not each.is_expected]
    is_lost = bool(lost) and lost == call.clearly_wrong and call.by in ("per tensor", "per group")
    if is_lost and all(_log2(call.norms[number], call.p) >= narrowest.max_exponent for number in lost):
        sentence = (
            f"{call.names_of(lost)} became 0: a norm is probably inf, because {terms} exceed the range of {dtype}"
        )
        return Cause("overflow", sentence)
    infinite = [
        number
        for number, _, expected, result in call.sides()
        if (np.isinf(result.values()) & np.isfinite(expected.values())).any()
    ]
    if not infinite:
        return None
    return Cause("overflow", f"elements of {call.names_of(infinite)} are infinite, but should be finite")


def _log2(norm: float, p: float) -> float:
    """Return log2(norm**p), or log2(norm) for p = inf."""
    if norm == 0 or not norm < math.inf:
        return -math.inf if norm == 0 else norm
    return math.log2(norm) * (p if p < math.inf else 1.0)


def _of_norm(kind: CauseKind, sentence: str, call: Observation) -> Cause:
    for number, _, _, result in call.sides():
        scaling = call.scalings[number]
        as_by_norm = scaling.is_unchanged if call.norm == 0 else scaling.is_zero
        if not (as_by_norm or scaling.is_expected or np.isnan(result.values()).all()):
            return Cause("coefficient", f"{sentence}, but the coefficient is not computed from this norm")
    return Cause(kind, sentence)


def wrong_nan(call: Observation) -> Cause | None:
    pairs = {number: (np.isnan(a.values()), np.isnan(b.values())) for number, _, a, b in call.sides()}
    extra = {number: nan & ~expected for number, (expected, nan) in pairs.items() if (nan & ~expected).any()}
    is_infinite = call.by in ("global", "per group") and call.total_norm == math.inf
    if lacking := [number for number, (expected, nan) in pairs.items() if (expected & ~nan).any()]:
        if is_infinite and call.infinite_norm_gives_nan and _are_zeros(call):
            return Cause("inf", "the coefficient is 0, but should be NaN, because the total norm is infinite")
        return not_clipped(call) or Cause("NaN", f"{call.names_of(lacking)} should become NaN, but did not")
    if extra and all(pairs[number][1].all() for number in call.counted):
        if is_infinite and call.threshold < math.inf:
            return Cause(
                "inf", "every element is NaN, but the coefficient should be 0, because the total norm is infinite"
            )
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


def _all_became_zero(call: Observation) -> bool:
    sides = list(call.sides())
    are_finite = all(np.isfinite(before.values()).all() for _, before, _, _ in sides)
    expected = any(right.values().any() for _, _, right, _ in sides)
    return bool(sides) and are_finite and expected and _are_zeros(call)


def _are_zeros(call: Observation) -> bool:
    return not any(result.values()[np.isfinite(before.values())].any() for _, before, _, result in call.sides())


def zeroed_gradients(call: Observation) -> Cause | None:
    if not call.wrong or not call.norm_is_expected or any(call.scalings[number].distance for number in call.wrong):
        return None
    return Cause("zeros", f"zeros in {call.names_of(call.wrong)} have the wrong sign")


def wrong_signs(call: Observation) -> Cause | None:
    sides = [(right.values(), result) for number, _, right, result in call.sides() if number in call.clearly_wrong]
    sizes_fit = all(_is_near(np.abs(result.values()), np.abs(right), result.dtype) for right, result in sides)
    if not sizes_fit or all(_is_near(result.values(), right, result.dtype) for right, result in sides):
        return None
    if not call.norm_fits([call.expected_norm], CLOSE):
        return None
    names = call.names_of(call.clearly_wrong)
    if all(_is_near(-result.values(), right, result.dtype) for right, result in sides):
        return Cause("signs", f"as if {names} were multiplied by -1")
    return Cause("signs", f"only the signs of {names} are wrong")


def _is_near(result: Float64s, right: Float64s, dtype: str) -> bool:
    return np.allclose(result, right, rtol=tolerance_of(dtype), atol=0.0, equal_nan=True)


def not_clipped(call: Observation) -> Cause | None:
    is_unchanged = all(scaling.is_unchanged for scaling in call.scalings.values())
    norm_fits = call.norm in (None, call.total_norm) or call.norm_is_expected
    if not is_unchanged or not norm_fits or call.gradients_match_norm:
        return None
    if call.eps and call.by == "global" and call.total_norm <= call.threshold:
        return Cause("another eps of the clip", instead("eps", 0.0, call.eps))  # only eps makes a coefficient below 1
    return Cause("not clipped", NOT_CLIPPED)


def touched_gradients(call: Observation) -> Cause | None:
    if not call.wrong or not all(call.scalings[number].unchanged_is_expected for number in call.wrong):
        return None
    size = max(call.scalings[number].distance for number in call.wrong)
    if size > CLOSE or not call.norm_fits([call.total_norm], EXACT):
        return None
    effect = f"changes elements by up to {size:.1e} times the largest element of the gradient"
    return Cause("touched", f"the call should return {call.names_of(call.wrong)} unchanged, but {effect}")


def norm_after(call: Observation) -> Cause | None:
    norm, expected = call.norm, call.expected_norm
    if norm is None or expected is None or math.isclose(norm, expected, rel_tol=NORM_TOLERANCE) or not call.after:
        return None
    sides = [(right, result) for number, _, right, result in call.sides() if number in call.wrong]
    if not all(_is_near(result.values(), right.values(), result.dtype) for right, result in sides):
        return None
    counted = [clipped for number in call.counted if (clipped := call.after[number])]
    # the call may measure the clipped gradients before it rounds them
    in_float32 = min(call.elements * 2.0**-25, LARGEST_ERROR)
    tolerance = max([NORM_TOLERANCE, in_float32, *(2.0 ** -FORMATS[each.dtype].precision for each in counted)])
    after = exact_norm(counted, call.p, "float64")
    if not math.isclose(norm, after, rel_tol=tolerance) or math.isclose(after, expected, rel_tol=4 * tolerance):
        return None
    return Cause(
        "norm after the clip", "the returned norm is the norm of the clipped gradients, not of the unclipped gradients"
    )


def by_value(call: Observation) -> Cause | None:
    sides = [(before.values(), call.scalings[number]) for number, before, _, _ in call.sides()]
    is_shown = any(
        scaling.low > scaling.high and not _is_near(before, _clamped(call, before), scaling.dtype)
        for before, scaling in sides
    )
    return BY_VALUE if is_shown and is_clipped_by_value(call) else None


def is_clipped_by_value(call: Observation) -> bool:
    return all(
        _is_near(result.values(), _clamped(call, before.values()), result.dtype)
        for _, before, _, result in call.sides()
    )


def _clamped(call: Observation, values: Float64s) -> Float64s:
    return np.clip(values, -call.threshold, call.threshold)


def wrong_bounds(call: Observation) -> Cause | None:
    tensors = [(before.values(), result.values()) for _, before, _, result in call.sides()]
    ends = [(np.nanmin(result), np.nanmax(result)) for _, result in tensors if not np.isnan(result).all()]
    low, high = float(min(ends)[0]), float(max(end for _, end in ends))
    for before, result in tensors:
        clamped = np.where(np.isnan(before), before, np.clip(before, low, high))
        if not np.array_equal(clamped, result, equal_nan=True):
            return None
    return Cause("another threshold", instead("the bounds", (low, high), call.bounds))
