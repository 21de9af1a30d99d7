"""Functional names and norms have derivatives; in-place names and eager class instances record none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kits import Kit


@pytest.fixture(autouse=True)
def _differentiating_frameworks_only(kit: Kit) -> None:
    if not kit.differentiates:
        pytest.skip(f"{kit.name} does not differentiate")


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
        assert np.isfinite(kit.derivative(lambda x, p=p: kit.namespace.get_total_norm([x], p), at)).all()


def test_of_norms(kit: Kit) -> None:
    at = kit.tensor([3.0, -4.0])
    np.testing.assert_allclose(kit.derivative(lambda x: kit.namespace.global_norm([x]), at), [0.6, -0.8], rtol=1e-6)
    for p, wanted in ((1, [1.0, -1.0]), (2, [0.6, -0.8]), (3, [(3 / 91 ** (1 / 3)) ** 2, -((4 / 91 ** (1 / 3)) ** 2)])):
        got = kit.derivative(lambda x, p=p: kit.namespace.get_total_norm([x], p), at)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    np.testing.assert_array_equal(
        kit.derivative(lambda x: kit.namespace.get_total_norm([x], math.inf), at), [0.0, -1.0]
    )


def test_of_norms_of_many_elements_some_of_them_zero(kit: Kit) -> None:
    at = kit.tensor([3.0, 0.0, 4.0])
    for p in (0.5, 1, 2, 3):
        assert np.isfinite(kit.derivative(lambda x, p=p: kit.namespace.get_total_norm([x], p), at)).all()


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


def test_against_finite_differences(kit: Kit) -> None:
    if "float64" not in kit.floating:
        return
    start = np.random.default_rng(6).standard_normal(6)

    def function(x: object) -> object:
        return kit.namespace.clip_by_global_norm([x], 0.7)[0][0]

    got = kit.derivative(function, kit.tensor(start, "float64"))
    step = 1e-6
    for i in range(6):
        sides = []
        for sign in (1, -1):
            moved = start.copy()
            moved[i] += sign * step
            sides.append(kit.array(function(kit.tensor(moved, "float64"))).sum())
        assert got[i] == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-8)


def test_error_if_nonfinite_can_be_asked_for_where_a_derivative_is_wanted(kit: Kit) -> None:
    def function(x: object) -> object:
        return kit.namespace.get_total_norm([x], error_if_nonfinite=True)

    if kit.name.startswith("jax"):  # its derivatives are traced
        with pytest.raises(TypeError, match="from inside a graph"):
            kit.derivative(function, kit.tensor([3.0, 4.0]))
        return
    np.testing.assert_allclose(kit.derivative(function, kit.tensor([3.0, 4.0])), [0.6, 0.8], rtol=1e-6)
    with pytest.raises(RuntimeError, match="position 0 holds 1 NaN"):
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
