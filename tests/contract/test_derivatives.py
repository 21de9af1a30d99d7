"""Functional calls and norms have derivatives. In-place calls record none."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support import reference
from support.kits import Kit
from support.tiers import where

# Derivatives take the device path without this variable, too.
pytestmark = where(lambda kit: kit.differentiates and os.environ.get("UNIFIED_CLIP_PATH") != "framework")


@pytest.mark.parametrize("limit", [5.0, 6.0, math.inf])
def test_at_or_below_the_threshold_the_derivative_is_the_identity(kit: Kit, limit: float) -> None:
    point = kit.tensor([3.0, 4.0])
    for function in (
        lambda x: kit.namespace.clip_by_global_norm([x], limit)[0][0],
        lambda x: kit.namespace.clip_by_norm(x, limit),
        lambda x: kit.namespace.clip_by_norm(x, limit, axes=[0]),
        lambda x: kit.namespace.clip_by_value(x, -limit, limit),
    ):
        np.testing.assert_array_equal(kit.derivative(function, point), [1.0, 1.0])


@pytest.mark.parametrize("p", [0.5, 1, 2, 3, math.inf])
def test_derivatives_of_norms_with_zero_elements(kit: Kit, p: float) -> None:
    point = [3.0, 0.0, -4.0, 0.0]
    n = 4.0 if p == math.inf else sum(abs(x) ** p for x in point) ** (1 / p)
    expected = [
        math.copysign((abs(x) / n) ** (p - 1), x) if x and (p != math.inf or abs(x) == n) else 0.0 for x in point
    ]
    derivative = kit.derivative(lambda x: kit.namespace.get_total_norm([x], p), kit.tensor(point))
    np.testing.assert_allclose(derivative, expected, rtol=1e-5)


def test_a_nan_does_not_change_the_derivative_of_the_1_norm_by_other_elements(kit: Kit) -> None:
    point = kit.tensor([math.nan, 1.0, -2.0])
    derivative = kit.derivative(lambda x: kit.namespace.get_total_norm([x], 1), point)
    np.testing.assert_array_equal(derivative[1:], [1.0, -1.0])


def test_the_derivative_of_clipping_by_value(kit: Kit) -> None:
    point = kit.tensor([-3.0, -1.0, 0.5, 1.0, 2.0])
    derivative = kit.derivative(lambda x: kit.namespace.clip_by_value(x, -1.0, 1.0), point)
    np.testing.assert_array_equal(derivative, [0.0, 1.0, 1.0, 1.0, 0.0])


def test_derivatives_of_float64_and_16_bit_gradients(kit: Kit) -> None:
    for dtype, tolerance in (("float64", 1e-12), ("bfloat16", 2e-2), ("float16", 2e-3)):
        if dtype in kit.floating:
            point = kit.tensor([3.0, 4.0], dtype)
            derivative = kit.derivative(lambda x: kit.namespace.clip_by_global_norm([x], 1.0)[0][0], point).astype(
                np.float64
            )
            np.testing.assert_allclose(derivative, [0.032, -0.024], rtol=tolerance, atol=tolerance / 30)


CALLS = {
    "clip_by_global_norm": lambda kit, x: kit.namespace.clip_by_global_norm({"a": [x]}, 0.7)[0]["a"][0],
    "clip_by_norm": lambda kit, x: kit.namespace.clip_by_norm(x, 0.7),
    "clip_by_norm to zeros": lambda kit, x: kit.namespace.clip_by_norm(x, 0.0),
    "clip_by_norm, axes": lambda kit, x: kit.namespace.clip_by_norm(x, 0.7, axes=[1]),
    "clip_by_value": lambda kit, x: kit.namespace.clip_by_value(x, -0.7, 0.3),
    "global_norm": lambda kit, x: kit.namespace.global_norm([x]),
    "get_total_norm, 1": lambda kit, x: kit.namespace.get_total_norm([x], 1),
    "get_total_norm, 3": lambda kit, x: kit.namespace.get_total_norm([x], 3),
    "get_total_norm, 0.5": lambda kit, x: kit.namespace.get_total_norm([x], 0.5),
    "get_total_norm, inf": lambda kit, x: kit.namespace.get_total_norm([x], math.inf),
}


# -- closed forms


def check_second_derivative(
    kit: Kit, function: Callable[[Any], Any], point: Any, tangent: Any, check: Callable[[np.ndarray], object]
) -> None:
    if kit.no_second_derivative:
        with pytest.raises(RuntimeError, match=kit.no_second_derivative):
            kit.second_derivative(function, point, tangent)
    else:
        check(kit.second_derivative(function, point, tangent))


GRADIENTS, WEIGHTS, TANGENTS = np.random.default_rng(8).standard_normal((3, 2, 4))
LIMITS = [0.7, 1.5, 20.0]
"""The first two clip GRADIENTS. The third clips no list, and only some slices."""


@where(lambda kit, dtype: dtype in kit.floating)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("limit", LIMITS)
def test_derivatives_of_clipping_a_list(kit: Kit, dtype: str, limit: float) -> None:
    """The derivative by one gradient includes the other gradient's result."""
    weights = [kit.tensor(row, dtype) for row in WEIGHTS]

    def function(x: Any) -> Any:
        clipped, _ = kit.namespace.clip_by_global_norm([x, kit.tensor(GRADIENTS[1], dtype)], limit)
        return clipped[0] * weights[0] + clipped[1] * weights[1]

    point = kit.tensor(GRADIENTS[0], dtype)
    tolerance = {"rtol": 2e-5, "atol": 1e-6} if dtype == "float32" else {"rtol": 1e-11}
    expected = reference.derivative_of_clipping(GRADIENTS, limit, WEIGHTS)[0]
    np.testing.assert_allclose(kit.derivative(function, point), expected, **tolerance)
    tangent = np.stack([TANGENTS[0], np.zeros(4)])
    expected = reference.second_derivative_of_clipping(GRADIENTS, limit, WEIGHTS, tangent)[0]
    check = partial(np.testing.assert_allclose, desired=expected, **tolerance)
    check_second_derivative(kit, function, point, kit.tensor(TANGENTS[0], dtype), check)


@pytest.mark.parametrize("limit", LIMITS)
def test_derivatives_of_clipping_slices(kit: Kit, limit: float) -> None:
    def function(x: Any) -> Any:
        return kit.namespace.clip_by_norm(x, limit, axes=1) * kit.tensor(WEIGHTS)

    point, tangent = kit.tensor(GRADIENTS), kit.tensor(TANGENTS)
    expected = [reference.derivative_of_clipping(x, limit, w) for x, w in zip(GRADIENTS, WEIGHTS, strict=True)]
    np.testing.assert_allclose(kit.derivative(function, point), expected, rtol=2e-5, atol=1e-6)
    expected = [
        reference.second_derivative_of_clipping(x, limit, w, v)
        for x, w, v in zip(GRADIENTS, WEIGHTS, TANGENTS, strict=True)
    ]
    check = partial(np.testing.assert_allclose, desired=expected, rtol=2e-5, atol=1e-6)
    check_second_derivative(kit, function, point, tangent, check)


@pytest.mark.parametrize("p", [1, 2, 3, 0.5])
def test_first_and_second_derivatives_of_norms(kit: Kit, p: float) -> None:
    def function(x: Any) -> Any:
        return kit.namespace.get_total_norm([x], p)

    point, tangent = kit.tensor(GRADIENTS), kit.tensor(TANGENTS)
    np.testing.assert_allclose(kit.derivative(function, point), reference.derivative_of_norm(GRADIENTS, p), rtol=2e-5)
    expected = reference.second_derivative_of_norm(GRADIENTS, p, TANGENTS)
    check = partial(np.testing.assert_allclose, desired=expected, rtol=2e-5, atol=1e-5)
    check_second_derivative(kit, function, point, tangent, check)


def check_finite(derivative: np.ndarray) -> None:
    assert np.isfinite(derivative).all()


@where(lambda kit, name: (kit.name, name) != ("paddle", "get_total_norm, inf"))
@pytest.mark.parametrize("name", CALLS)
def test_second_derivatives_at_zero_are_finite(kit: Kit, name: str) -> None:
    function = partial(CALLS[name], kit)
    for start in (np.zeros((2, 3)), np.array([[0.0, 3.0, 0.0], [0.0, 0.0, 0.0]])):
        point = kit.tensor(start)
        assert np.isfinite(kit.derivative(function, point)).all()
        check_second_derivative(kit, function, point, kit.tensor(np.ones((2, 3))), check_finite)


def test_error_if_nonfinite_works_with_derivatives(kit: Kit) -> None:
    def function(x: object) -> object:
        return kit.namespace.get_total_norm([x], error_if_nonfinite=True)

    if kit.name.startswith("jax"):  # its derivatives are traced
        with pytest.raises(TypeError, match="from inside a graph"):
            kit.derivative(function, kit.tensor([3.0, 4.0]))
        return
    np.testing.assert_allclose(kit.derivative(function, kit.tensor([3.0, 4.0])), [0.6, 0.8], rtol=1e-6)
    with pytest.raises(RuntimeError, match="position 0 has 1 NaN"):
        kit.derivative(function, kit.tensor([3.0, math.nan]))


def test_derivatives_by_the_threshold(kit: Kit) -> None:
    gradient = kit.tensor([3.0, 4.0])
    for function in (
        lambda c: kit.namespace.clip_by_global_norm([gradient], c)[0][0],
        lambda c: kit.namespace.clip_by_norm(gradient, c),
    ):
        np.testing.assert_allclose(kit.derivative(function, kit.tensor(1.0)), 1.4, rtol=1e-6)
        if kit.reads_tensors and not kit.name.startswith("jax"):  # traced thresholds have no value
            with pytest.raises(ValueError, match=r"clip_norm is -1\.0"):
                kit.derivative(function, kit.tensor(-1.0))


def test_in_place_functions_use_a_threshold_tensor_as_a_number(kit: Kit) -> None:
    def function(c: object) -> object:
        holders = kit.in_place([kit.tensor([3.0, 4.0])])
        kit.namespace.clip_grad_norm_(holders, c)
        np.testing.assert_allclose(kit.array(kit.kept(holders)[0]), [0.6, 0.8], rtol=1e-6)
        if kit.reads_tensors:
            with pytest.raises(ValueError, match=r"max_norm is -1\.0"):
                kit.namespace.clip_grad_norm_(holders, c * kit.tensor(-1.0))
        return c * kit.tensor(2.0)

    if not kit.name.startswith("jax"):
        np.testing.assert_allclose(kit.derivative(function, kit.tensor(1.0)), 2.0)
        np.testing.assert_allclose(kit.derivative(function, kit.tensor([1.0])), [2.0])
