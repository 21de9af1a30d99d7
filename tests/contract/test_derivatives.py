"""Functional names and norms have derivatives; in-place names and eager class instances record none."""

from __future__ import annotations

import functools
import math
import os
from typing import Any

import numpy as np
import pytest
from support import reference
from support.kits import Kit


@pytest.fixture(autouse=True)
def _differentiating_frameworks_only(kit: Kit) -> None:
    if not kit.differentiates:
        pytest.skip(f"{kit.name} does not differentiate")
    if os.environ.get("UNIFIED_CLIP_PATH") == "framework":
        pytest.skip("derivatives take the device path as it is")


def test_of_clipping_by_the_norm(kit: Kit) -> None:
    at = kit.tensor([3.0, 4.0])
    for function in (
        lambda x: kit.namespace.clip_by_global_norm([x], 1.0)[0][0],
        lambda x: kit.namespace.clip_by_norm(x, 1.0),
        lambda x: kit.namespace.clip_by_norm(x, 1.0, axes=[0]),
    ):
        np.testing.assert_allclose(kit.derivative(function, at), [0.032, -0.024], rtol=1e-5)


@pytest.mark.parametrize("limit", [5.0, 6.0, math.inf])
def test_at_or_below_the_limit_it_is_the_identity(kit: Kit, limit: float) -> None:
    at = kit.tensor([3.0, 4.0])
    for function in (
        lambda x: kit.namespace.clip_by_global_norm([x], limit)[0][0],
        lambda x: kit.namespace.clip_by_norm(x, limit),
        lambda x: kit.namespace.clip_by_norm(x, limit, axes=[0]),
        lambda x: kit.namespace.clip_by_value(x, -limit, limit),
    ):
        np.testing.assert_array_equal(kit.derivative(function, at), [1.0, 1.0])


@pytest.mark.nightly
@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_at_zero_gradients_it_is_finite(kit: Kit, limit: float) -> None:
    at = kit.tensor([0.0, 0.0])
    for function in (
        lambda x: kit.namespace.clip_by_global_norm([x], limit)[0][0],
        lambda x: kit.namespace.clip_by_norm(x, limit),
        lambda x: kit.namespace.clip_by_norm(x, limit, axes=[0]),
    ):
        np.testing.assert_array_equal(kit.derivative(function, at), [1.0, 1.0])
    for p in (0.5, 1, 2, 3, math.inf):
        np.testing.assert_array_equal(kit.derivative(lambda x, p=p: kit.namespace.get_total_norm([x], p), at), 0.0)


def test_of_norms(kit: Kit) -> None:
    at = kit.tensor([3.0, -4.0])
    np.testing.assert_allclose(kit.derivative(lambda x: kit.namespace.global_norm([x]), at), [0.6, -0.8], rtol=1e-6)
    for p, wanted in ((1, [1.0, -1.0]), (2, [0.6, -0.8]), (3, [(3 / 91 ** (1 / 3)) ** 2, -((4 / 91 ** (1 / 3)) ** 2)])):
        got = kit.derivative(lambda x, p=p: kit.namespace.get_total_norm([x], p), at)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    np.testing.assert_array_equal(
        kit.derivative(lambda x: kit.namespace.get_total_norm([x], math.inf), at), [0.0, -1.0]
    )


@pytest.mark.parametrize("p", [0.5, 1, 2, 3, math.inf])
def test_of_norms_of_many_elements_some_of_them_zero(kit: Kit, p: float) -> None:
    at = [3.0, 0.0, -4.0, 0.0]
    n = 4.0 if p == math.inf else sum(abs(x) ** p for x in at) ** (1 / p)
    wanted = [math.copysign((abs(x) / n) ** (p - 1), x) if x and (p != math.inf or abs(x) == n) else 0.0 for x in at]
    got = kit.derivative(lambda x: kit.namespace.get_total_norm([x], p), kit.tensor(at))
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_nan_leaves_the_derivative_of_the_1_norm_by_others_as_it_is(kit: Kit) -> None:
    at = kit.tensor([math.nan, 1.0, -2.0])
    got = kit.derivative(lambda x: kit.namespace.get_total_norm([x], 1), at)
    np.testing.assert_array_equal(got[1:], [1.0, -1.0])


def test_of_clipping_by_value(kit: Kit) -> None:
    at = kit.tensor([-3.0, -1.0, 0.5, 1.0, 2.0])
    got = kit.derivative(lambda x: kit.namespace.clip_by_value(x, -1.0, 1.0), at)
    np.testing.assert_array_equal(got, [0.0, 1.0, 1.0, 1.0, 0.0])


def test_of_float64_and_16_bit_gradients(kit: Kit) -> None:
    for dtype, tolerance in (("float64", 1e-12), ("bfloat16", 2e-2), ("float16", 2e-3)):
        if dtype in kit.floating:
            at = kit.tensor([3.0, 4.0], dtype)
            got = kit.derivative(lambda x: kit.namespace.clip_by_global_norm([x], 1.0)[0][0], at).astype(np.float64)
            np.testing.assert_allclose(got, [0.032, -0.024], rtol=tolerance, atol=tolerance / 30)


NAMES = {
    "clip_by_global_norm": lambda kit, x: kit.namespace.clip_by_global_norm({"a": [x]}, 0.7)[0]["a"][0],
    "clip_by_norm": lambda kit, x: kit.namespace.clip_by_norm(x, 0.7),
    "clip_by_norm, axes": lambda kit, x: kit.namespace.clip_by_norm(x, 0.7, axes=[1]),
    "clip_by_value": lambda kit, x: kit.namespace.clip_by_value(x, -0.7, 0.3),
    "global_norm": lambda kit, x: kit.namespace.global_norm([x]),
    "get_total_norm, 1": lambda kit, x: kit.namespace.get_total_norm([x], 1),
    "get_total_norm, 3": lambda kit, x: kit.namespace.get_total_norm([x], 3),
    "get_total_norm, 0.5": lambda kit, x: kit.namespace.get_total_norm([x], 0.5),
    "get_total_norm, inf": lambda kit, x: kit.namespace.get_total_norm([x], math.inf),
}
"""Every functional name and norm."""


@pytest.mark.parametrize("name", NAMES)
def test_against_finite_differences(kit: Kit, name: str) -> None:
    if "float64" not in kit.floating:
        pytest.skip("float32 is too short for differences")
    start = np.random.default_rng(6).standard_normal((2, 3))
    function = functools.partial(NAMES[name], kit)
    got = kit.derivative(function, kit.tensor(start, "float64"))
    step = 1e-6
    for index in np.ndindex(start.shape):
        sides = []
        for sign in (1, -1):
            moved = start.copy()
            moved[index] += sign * step
            sides.append(kit.array(function(kit.tensor(moved, "float64"))).sum())
        assert got[index] == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-7)


# -- the same on every framework: what formulas give


X, W, V = np.random.default_rng(8).standard_normal((3, 2, 4))
LIMITS = [0.7, 1.5, 20.0]
"""The first two clip X, and at the third its slices are clipped in part, or nothing is."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("limit", LIMITS)
def test_of_clipping_a_list_of_two(kit: Kit, dtype: str, limit: float) -> None:
    """The derivative by one gradient of the other's result, too."""
    if dtype not in kit.floating:
        pytest.skip(f"{kit.name} has no {dtype} here")
    weights = [kit.tensor(row, dtype) for row in W]

    def function(x: Any) -> Any:
        clipped, _ = kit.namespace.clip_by_global_norm([x, kit.tensor(X[1], dtype)], limit)
        return clipped[0] * weights[0] + clipped[1] * weights[1]

    at = kit.tensor(X[0], dtype)
    tolerance = {"rtol": 2e-5, "atol": 1e-6} if dtype == "float32" else {"rtol": 1e-11}
    right = reference.derivative_of_clipping(X, limit, W)[0]
    np.testing.assert_allclose(kit.derivative(function, at), right, **tolerance)
    along = np.stack([V[0], np.zeros(4)])
    right = reference.second_derivative_of_clipping(X, limit, W, along)[0]
    got = kit.second_derivative(function, at, kit.tensor(V[0], dtype))
    np.testing.assert_allclose(got, right, **tolerance)


@pytest.mark.parametrize("limit", LIMITS)
def test_of_clipping_slices(kit: Kit, limit: float) -> None:
    def function(x: Any) -> Any:
        return kit.namespace.clip_by_norm(x, limit, axes=1) * kit.tensor(W)

    at, along = kit.tensor(X), kit.tensor(V)
    right = [reference.derivative_of_clipping(x, limit, w) for x, w in zip(X, W, strict=True)]
    np.testing.assert_allclose(kit.derivative(function, at), right, rtol=2e-5, atol=1e-6)
    right = [reference.second_derivative_of_clipping(x, limit, w, v) for x, w, v in zip(X, W, V, strict=True)]
    np.testing.assert_allclose(kit.second_derivative(function, at, along), right, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3, 0.5])
def test_of_norms_of_every_order(kit: Kit, p: float) -> None:
    def function(x: Any) -> Any:
        return kit.namespace.get_total_norm([x], p)

    at, along = kit.tensor(X), kit.tensor(V)
    np.testing.assert_allclose(kit.derivative(function, at), reference.derivative_of_norm(X, p), rtol=2e-5)
    right = reference.second_derivative_of_norm(X, p, V)
    np.testing.assert_allclose(kit.second_derivative(function, at, along), right, rtol=2e-5, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_at_zero_second_derivatives_are_finite_too(kit: Kit, name: str) -> None:
    if (kit.name, name) == ("paddle", "get_total_norm, inf"):
        pytest.skip("Paddle has no second derivative of a maximum")
    function = functools.partial(NAMES[name], kit)
    for start in (np.zeros((2, 3)), np.array([[0.0, 3.0, 0.0], [0.0, 0.0, 0.0]])):
        at = kit.tensor(start)
        assert np.isfinite(kit.derivative(function, at)).all()
        assert np.isfinite(kit.second_derivative(function, at, kit.tensor(np.ones((2, 3))))).all()


def test_error_if_nonfinite_can_be_asked_for_where_a_derivative_is_wanted(kit: Kit) -> None:
    def function(x: object) -> object:
        return kit.namespace.get_total_norm([x], error_if_nonfinite=True)

    if kit.name.startswith("jax"):  # its derivatives are traced
        with pytest.raises(TypeError, match="from inside a graph"):
            kit.derivative(function, kit.tensor([3.0, 4.0]))
        return
    np.testing.assert_allclose(kit.derivative(function, kit.tensor([3.0, 4.0])), [0.6, 0.8], rtol=1e-6)
    with pytest.raises(RuntimeError, match="position 0 has 1 NaN"):
        kit.derivative(function, kit.tensor([3.0, math.nan]))


def test_by_the_threshold(kit: Kit) -> None:
    gradient = kit.tensor([3.0, 4.0])
    for function in (
        lambda c: kit.namespace.clip_by_global_norm([gradient], c)[0][0],
        lambda c: kit.namespace.clip_by_norm(gradient, c),
    ):
        np.testing.assert_allclose(kit.derivative(function, kit.tensor(1.0)), 1.4, rtol=1e-6)
        if not kit.name.startswith("jax"):  # there it is traced, and so not known
            with pytest.raises(ValueError, match=r"clip_norm is -1\.0"):
                kit.derivative(function, kit.tensor(-1.0))


def test_in_place_names_take_a_threshold_with_a_derivative_as_a_number(kit: Kit) -> None:
    def function(c: object) -> object:
        holders = kit.in_place([kit.tensor([3.0, 4.0])])
        kit.namespace.clip_grad_norm_(holders, c)
        np.testing.assert_allclose(kit.array(kit.kept(holders)[0]), [0.6, 0.8], rtol=1e-6)
        with pytest.raises(ValueError, match=r"max_norm is -1\.0"):
            kit.namespace.clip_grad_norm_(holders, c * kit.tensor(-1.0))
        return c * kit.tensor(2.0)

    if not kit.name.startswith("jax"):
        np.testing.assert_allclose(kit.derivative(function, kit.tensor(1.0)), 2.0)
        np.testing.assert_allclose(kit.derivative(function, kit.tensor([1.0])), [2.0])
