"""Compute the exact result of a case, as the contract defines it.

This module must not import the code that it tests: unified_clip's clip code and kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ...tensors.arithmetic import FORMATS, nearest, nearest_float, rounded
from ...tensors.norms import exact_norm, norm_dtype
from ...tensors.types import Dense, LazySequence, Sparse, densify, digest, encode
from ..call_outcome import LEARNING_RATE, ClipTensors
from ..suite import adaptive_calls
from ..suite.case import Case
from ..suite.public_calls import Arguments, PublicCall
from . import adaptive_rules

MAX_KEPT = 1 << 20


@dataclass(eq=False)
class Expected(ClipTensors):
    wide_norm: float | None = None
    """The total norm in float64, for comparison with the norms of the frameworks' functions."""


def expect(case: Case) -> Expected:
    """Return the exact result of a case. If the case expects an error, all fields of the result are None."""
    if case.options.raises:
        return Expected()
    if case.call.is_adaptive:
        by_steps = case.call.style == "steps"
        return with_update(case, after_steps(case) if by_steps else Expected(gradients=clipped_by_units(case)))
    gradients = [densify(gradient) for gradient in case.gradients]
    call, arguments = case.call, case.arguments
    present = _counted(case)
    p, dtype = arguments.get("norm_type", 2), norm_dtype(present)
    measures = call.by_total_norm and not call.by_value
    n, passed = counted_norm(case), call.passed_norm(arguments)
    returned = n if passed is None else passed
    results = None if call.style == "measure" else clipped(case, gradients, n)
    expected = Expected(
        norm=encode(np.asarray(nearest_float(returned, dtype)), dtype) if call.returns_norm else None,
        wide_norm=exact_norm(present, p, "float64") if measures else None,
        gradients=results,
    )
    return with_update(case, expected)


def has_effect(case: Case, expected: Expected) -> bool:
    """Return whether the exact result differs from the gradients before the call.

    If the call only measures the norm, return whether the norm is not 0.
    """
    if expected.gradients is None:
        return expected.norm is not None and bool(expected.norm.values().any())
    return digest(map(densify, case.clipped_inputs)) != expected.digests["tensors"]


def with_update(case: Case, expected: Expected) -> Expected:
    results = expected.gradients
    if case.options.update and results is not None:
        expected.update = LazySequence(lambda index: after_sgd_step(results[index]), len(results))
    return expected


def _counted(case: Case) -> list[Dense]:
    call_form = case.call_form
    needed = call_form.need_clip or [not call_form.gradients_for_parameters] * len(case.gradients)
    return [dense for each, needs in zip(case.gradients, needed, strict=True) if needs and (dense := densify(each))]


def counted_norm(case: Case, extreme: int = 0) -> float:
    """Return the total norm of a case, or NaN if the call clips per tensor or by value.

    extreme: 0 for the exact norm, -1 for the smallest allowed norm, or 1 for the largest allowed norm.
    """
    if not case.call.by_total_norm or case.call.by_value:
        return math.nan
    return _norm(_counted(case), extreme, case.arguments.get("norm_type", 2))


def after_sgd_step(gradient: Dense | None) -> Dense | None:
    if gradient is None:
        return None
    with np.errstate(invalid="ignore"):
        # The product is exact. The difference is rounded only if it has more digits than a float64.
        values = 1.0 - LEARNING_RATE * gradient.values()
    return encode(rounded(values, gradient.dtype), gradient.dtype)


def clipped(case: Case, gradients: Sequence[Dense | None], n: float, extreme: int = 0) -> Sequence[Dense | None]:
    """n: The total norm, if the call clips by the total norm."""
    call, call_form = case.call, case.call_form
    if call_form.gradients_for_parameters:
        return list(gradients)
    needed = call_form.need_clip or [True] * len(gradients)
    norms = [n] * len(gradients)
    for index, group in enumerate(call_form.groups):
        members = zip(gradients, call_form.groups, needed, strict=True)
        counted = [gradient for gradient, name, needs in members if name == group and needs]
        norms[index] = _norm([gradient for gradient in counted if gradient is not None], extreme)

    def make(index: int) -> Dense | None:
        gradient = gradients[index]
        if gradient is None or not needed[index]:
            return gradient
        return _clipped(call, case.arguments, gradient, norms[index], extreme)

    results = LazySequence(make, len(gradients))
    return results if is_long_vector(case) else list(results)


def is_long_vector(case: Case) -> bool:
    tensors = (gradient.values if isinstance(gradient, Sparse) else gradient for gradient in case.gradients)
    return sum(each.array.size for each in tensors if each is not None) >= MAX_KEPT


def _norm(gradients: Sequence[Dense], extreme: int, p: float = 2) -> float:
    dtype = norm_dtype(gradients)
    n = exact_norm(gradients, p, dtype)
    if not extreme or not math.isfinite(n):
        return n
    if dtype == "float64":
        return n * (1 + extreme * 1e-12)
    return float(np.nextafter(np.float32(n), np.float32(math.copysign(math.inf, extreme))))


def _clipped(call: PublicCall, arguments: Arguments, gradient: Dense, n: float, extreme: int) -> Dense:
    if call.by_value:
        return _clamped(gradient, *call.bounds(arguments))
    threshold = call.threshold(arguments)
    if call.by_total_norm:
        passed = call.passed_norm(arguments)
        if passed == threshold == 0:
            return scaled(gradient, 0.0)  # a threshold of 0 gives zeros
        return scaled(gradient, coefficient(call, n if passed is None else passed, threshold))
    if "axes" not in arguments:
        return scaled(gradient, coefficient(call, _norm([gradient], extreme), threshold))
    return _by_slices(call, gradient, [axis % len(gradient.shape) for axis in arguments["axes"]], threshold, extreme)


def _by_slices(call: PublicCall, gradient: Dense, axes: Sequence[int], threshold: float, extreme: int) -> Dense:
    result = gradient.array.copy()
    for index in np.ndindex(*(1 if axis in axes else length for axis, length in enumerate(gradient.shape))):
        where = tuple(slice(None) if axis in axes else index[axis] for axis in range(len(index)))
        part = Dense(gradient.dtype, gradient.array[where])
        result[where] = scaled(part, coefficient(call, _norm([part], extreme), threshold)).array
    return Dense(gradient.dtype, result)


def coefficient(call: PublicCall, n: float, threshold: float) -> float:
    if threshold == math.inf:
        return 1.0
    if math.isnan(n) or (n == math.inf and call.infinite_norm_gives_nan):
        return math.nan
    if n == math.inf:
        return 0.0
    denominator = nearest(Fraction(n) + Fraction(call.eps), "float64")
    return 1.0 if denominator <= threshold else nearest(Fraction(threshold) / Fraction(denominator), "float64")


def scaled(gradient: Dense, coef: float) -> Dense:
    """Return the gradient multiplied by the coefficient, rounded as docs/contract.md specifies."""
    if coef == 1:
        return gradient
    values = gradient.values()
    with np.errstate(all="ignore"):
        if FORMATS[gradient.dtype].size == 8:
            return encode(values * coef, gradient.dtype)  # a multiplication rounds once, says IEEE 754
        exact = values * nearest_float(coef, "float32")  # 48 bits or fewer, so float64 holds the product
    return encode(rounded(rounded(exact, "float32"), gradient.dtype), gradient.dtype)


def _clamped(gradient: Dense, low: float, high: float) -> Dense:
    if gradient.dtype == "int64":
        return Dense("int64", np.clip(gradient.array, int(low), int(high)))
    low, high = nearest_float(float(low), gradient.dtype), nearest_float(float(high), gradient.dtype)
    values = gradient.values()
    return encode(np.where(values < low, low, np.where(values > high, high, values)), gradient.dtype)


# -- adaptive rules


def after_steps(case: Case, totals: Sequence[float] | None = None) -> Expected:
    """Return the exact result of several clips with an adaptive rule.

    `Expected.norm` is a float64 vector: the total norm of each step, then the rule's state after the last step.

    totals: The total norm of each step. If `totals` is None, the exact norms are computed.
    """
    rule, limit = case.arguments["rule"], float(case.arguments.get("clip_norm", math.inf))
    settings = adaptive_calls.settings(case.arguments)
    steps = adaptive_calls.split_steps([densify(gradient) for gradient in case.gradients], case.arguments["steps"])
    if totals is None:
        totals = [_norm([each for each in step if each is not None], 0) for step in steps]

    def coef_of(n: float, threshold: float) -> float:
        return coefficient(case.call, n, threshold)

    coefs: list[float | None] = []
    state: dict[str, Any] = {}
    if rule == "adagc":
        norms = [[None if each is None else _norm([each], 0) for each in step] for step in steps]
        for of_tensors, state in adaptive_rules.adagc(norms, totals, coef_of, limit=limit, **settings):  # noqa: B007
            coefs += of_tensors
    else:
        recursion = adaptive_rules.RULES[rule](totals, **settings)
        for step, n, (threshold, state) in zip(steps, totals, recursion, strict=True):  # noqa: B007
            coefs += [coef_of(n, min(threshold, limit))] * len(step)
    numbers = [float(number) for value in state.values() for number in (value if isinstance(value, list) else [value])]
    gradients = [each for step in steps for each in step]
    return Expected(
        norm=encode(np.array([*totals, *numbers], np.float64), "float64"),
        gradients=[
            None if each is None or coef is None else scaled(each, coef)
            for each, coef in zip(gradients, coefs, strict=True)
        ],
    )


def clipped_by_units(case: Case, extremes: Sequence[int] = (0, 0)) -> list[Dense | None]:
    """Return the clipped gradients of a case with adaptive gradient clipping.

    extremes: The argument `extreme` of `counted_norm`, first for the gradient norms, then for the parameter norms.
    """
    settings, limit = adaptive_calls.settings(case.arguments), float(case.arguments.get("clip_norm", math.inf))
    tensors = [densify(each) for each in case.gradients]
    results: list[Dense | None] = []
    for gradient, parameter in zip(tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :], strict=True):
        if gradient is None or parameter is None:
            results.append(gradient)
            continue
        array = np.array(gradient.array)
        for unit in adaptive_rules.units(gradient.shape, settings.get("convention", "timm")):
            part, weight = (Dense(each.dtype, np.asarray(each.array[unit])) for each in (gradient, parameter))
            n, reference = _norm([part], extremes[0]), _norm([weight], extremes[1])
            threshold, smallest = adaptive_rules.unit_threshold(reference, **settings)
            threshold = min(threshold, limit)
            if not n < threshold:
                n = n if math.isnan(n) else max(n, smallest)
                array[unit] = scaled(part, coefficient(case.call, n, threshold)).array
        results.append(Dense(gradient.dtype, array))
    return results
