"""Compute the exact result of a case, as the contract defines it.

This module must not import the code that it tests: unified_clip's clip code and kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ...tensors.arithmetic import FORMATS, nearest, nearest_float, rounded
from ...tensors.norms import exact_norm, norm_dtype
from ...tensors.types import Dense, LazySequence, Sparse, densify, digest, encode
from ..call_outcome import LEARNING_RATE, ClipTensors
from ..suite.case import Case
from ..suite.public_calls import Arguments, PublicCall

MAX_KEPT = 1 << 20


@dataclass(eq=False)
class Expected(ClipTensors):
    wide_norm: float | None = None
    """The total norm in float64, for comparison with the norms of the frameworks' functions."""


def expect(case: Case) -> Expected:
    """Return the exact result of a case. If the case expects an error, all fields of the result are None."""
    if case.options.raises:
        return Expected()
    if case.call.style == "units":
        return with_update(case, Expected(gradients=clipped_by_units(case)))
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


# -- adaptive gradient clipping (AGC), implemented without unified_clip's code


def clipped_by_units(case: Case, extremes: Sequence[int] = (0, 0)) -> list[Dense | None]:
    """Return the clipped gradients of a case with adaptive gradient clipping.

    extremes: The argument `extreme` of `counted_norm`, first for the gradient norms, then for the parameter norms.
    """
    settings = case.call.rule_settings(case.arguments)
    limit = float(case.arguments.get("clip_norm", math.inf))
    tensors = [densify(each) for each in case.gradients]
    results: list[Dense | None] = []
    for gradient, parameter in zip(tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :], strict=True):
        if gradient is None or parameter is None:
            results.append(gradient)
            continue
        array = np.array(gradient.array)
        for unit in units(gradient.shape, settings.get("convention", "timm")):
            part, weight = (Dense(each.dtype, np.asarray(each.array[unit])) for each in (gradient, parameter))
            n, reference = _norm([part], extremes[0]), _norm([weight], extremes[1])
            threshold, smallest = unit_threshold(reference, **settings)
            threshold = min(threshold, limit)
            if not n < threshold:
                n = n if math.isnan(n) else max(n, smallest)
                array[unit] = scaled(part, coefficient(case.call, n, threshold)).array
        results.append(Dense(gradient.dtype, array))
    return results


def units(shape: Sequence[int], convention: str) -> Iterator[tuple[Any, ...]]:
    """For the rule `agc`, yield an `index` for each unit: `tensor[index]` has its own norm, such as a row.

    convention: "timm", "optax" or "composer".
    """
    if convention == "optax":
        whole = sum(length > 1 for length in shape) <= 1
        kept = [] if whole else [1, 2][: len(shape) - 1] if len(shape) < 4 else [len(shape) - 1]
    else:
        kept = [0] if len(shape) > 1 else []
    for position in np.ndindex(*(shape[axis] for axis in kept)):
        index: list[Any] = [slice(None)] * len(shape)
        for axis, place in zip(kept, position, strict=True):
            index[axis] = place
        yield tuple(index)


def unit_threshold(
    weight: float,
    convention: str = "timm",
    clip_factor: float = 0.01,
    eps: float | None = None,
    smallest_norm: float | None = None,
) -> tuple[float, float]:
    """Return (threshold, smallest norm) of the rule `agc` for one unit, such as a row of a weight.

    If the norm of the gradient is below `smallest_norm`, the rule uses `smallest_norm` instead.
    """
    eps = (0.0 if convention == "composer" else 1e-3) if eps is None else eps
    smallest_norm = (0.0 if convention == "composer" else 1e-6) if smallest_norm is None else smallest_norm
    return clip_factor * (weight if math.isnan(weight) else max(weight, eps)), smallest_norm
