"""Sparse gradients: rows given more than once are summed first, and the result stays sparse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
from kits import Kit

ROWS, VALUES, HEIGHT = [1, 1, 2], [[3.0], [4.0], [24.0]], 4
TOLERANCE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-22, "float64": 1e-9}
DENSE = np.array([[0.0], [7.0], [24.0], [0.0]], np.float32)


@pytest.fixture(autouse=True)
def _sparse_frameworks_only(kit: Kit) -> None:
    if not kit.has_sparse:
        pytest.skip(f"{kit.name} has no sparse gradients")


def test_repeated_rows_are_summed_in_the_norm_and_in_the_result(kit: Kit) -> None:
    sparse = kit.sparse(ROWS, VALUES, HEIGHT)
    assert float(kit.array(kit.namespace.global_norm([sparse]))) == 25.0
    (clipped,), norm = kit.namespace.clip_by_global_norm([sparse], 1.0)
    assert float(kit.array(norm)) == 25.0
    np.testing.assert_array_equal(kit.dense(clipped), reference.scaled(DENSE, 0.04))
    assert sorted(kit.stored_rows(clipped)) == [1, 2]
    np.testing.assert_array_equal(kit.dense(kit.namespace.clip_by_norm(sparse, 1.0)), reference.scaled(DENSE, 0.04))
    np.testing.assert_array_equal(kit.dense(kit.namespace.clip_by_value(sparse, -5.0, 5.0)), DENSE.clip(-5, 5))


def test_rows_that_cancel_count_nothing(kit: Kit) -> None:
    sparse = kit.sparse([1, 1], [[3.0], [-3.0]], HEIGHT)
    assert float(kit.array(kit.namespace.global_norm([sparse]))) == 0.0


def test_beside_dense_gradients(kit: Kit) -> None:
    clipped, norm = kit.namespace.clip_by_global_norm([kit.tensor([60.0]), kit.sparse(ROWS, VALUES, HEIGHT)], 1.0)
    assert float(kit.array(norm)) == 65.0
    np.testing.assert_allclose(kit.array(clipped[0]), [60 / 65], rtol=1e-6)
    np.testing.assert_allclose(kit.dense(clipped[1]), DENSE / 65, rtol=1e-6)


def test_classes(kit: Kit) -> None:
    pairs = [(kit.parameter(), kit.sparse(ROWS, VALUES, HEIGHT))]
    for clip, wanted in (
        (kit.namespace.GradientClipByGlobalNorm(1.0), reference.scaled(DENSE, 0.04)),
        (kit.namespace.GradientClipByNorm(1.0), reference.scaled(DENSE, 0.04)),
        (kit.namespace.GradientClipByValue(5.0), DENSE.clip(-5, 5)),
    ):
        np.testing.assert_array_equal(kit.dense(clip(pairs)[0][1]), wanted)
    if kit.exact:
        assert kit.namespace.GradientClipByNorm(25.0)(pairs)[0][1] is pairs[0][1]


def test_in_place(kit: Kit) -> None:
    for function, wanted in (
        (lambda holders: kit.namespace.clip_grad_norm_(holders, 5.0), reference.scaled(DENSE, 5 / (25 + 1e-6))),
        (kit.namespace.GradientClipByGlobalNorm(5.0).clip_, reference.scaled(DENSE, 0.2)),
        (lambda holders: kit.namespace.clip_grad_value_(holders, 5.0), DENSE.clip(-5, 5)),
    ):
        holders = kit.in_place([kit.sparse(ROWS, VALUES, HEIGHT)])
        function(holders)
        np.testing.assert_array_equal(kit.dense(kit.kept(holders)[0]), wanted)
    holders = kit.in_place([kit.sparse(ROWS, VALUES, HEIGHT)])
    kit.namespace.clip_grad_norm_(holders, 26.0)
    np.testing.assert_array_equal(kit.dense(kit.kept(holders)[0]), DENSE)


def test_thresholds_and_norms_that_are_not_finite(kit: Kit) -> None:
    sparse = kit.sparse(ROWS, VALUES, HEIGHT)
    np.testing.assert_array_equal(kit.dense(kit.namespace.clip_by_global_norm([sparse], math.inf)[0][0]), DENSE)
    np.testing.assert_array_equal(kit.dense(kit.namespace.clip_by_norm(sparse, 0)), DENSE * 0)
    broken = kit.sparse([0, 0, 1], [[math.inf], [-math.inf], [1.0]], 2)
    assert math.isnan(float(kit.array(kit.namespace.global_norm([broken]))))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_sums_of_rows_are_rounded_once_whatever_their_order(kit: Kit, dtype: str) -> None:
    if dtype not in kit.floating:
        return
    random = np.random.default_rng(4)
    values = reference.array(random.standard_normal((400, 3)) * 10.0 ** random.integers(-3, 2, (400, 1)), dtype)
    values[::2] = -values[1::2] * reference.array(1, dtype)  # cancellation
    values[0] = reference.array(random.standard_normal(3), dtype)
    rows = random.integers(0, 5, 400)
    wanted = np.zeros((5, 3), values.dtype)
    for index in np.ndindex(5, 3):
        exact = sum((reference.Fraction(float(v)) for v in values[rows == index[0], index[1]]), reference.Fraction(0))
        sign = -1 if exact < 0 else 1
        wanted[index] = sign * reference.nearest(abs(exact), dtype)
    for order in (np.arange(400), random.permutation(400)):
        sparse = kit.sparse(rows[order].tolist(), values[order], 5, dtype)
        got = kit.dense(kit.namespace.clip_by_global_norm([sparse], math.inf)[0][0])
        if kit.exact:
            assert got.tobytes() == wanted.tobytes()
        else:  # summed in float64, then rounded
            np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=TOLERANCE[dtype])


def test_infinities_stay_and_sums_that_overflow_on_the_way_do_not(kit: Kit) -> None:
    sparse = kit.sparse([0, 0, 1, 1, 1], [[math.inf], [1.0], [3e38], [3e38], [-3e38]], 2)
    got = kit.dense(kit.namespace.clip_by_global_norm([sparse], math.inf)[0][0])
    np.testing.assert_array_equal(got, np.array([[math.inf], [3e38]], np.float32))
    if "float64" in kit.floating and kit.exact:
        sparse = kit.sparse([1, 1, 1], [[1e308], [1e308], [-1e308]], 2, "float64")
        assert float(kit.array(kit.namespace.global_norm([sparse]))) == 1e308


def test_no_rows(kit: Kit) -> None:
    sparse = kit.sparse([], np.zeros((0, 2)), HEIGHT)
    (clipped,), norm = kit.namespace.clip_by_global_norm([sparse], 1.0)
    assert float(kit.array(norm)) == 0.0
    np.testing.assert_array_equal(kit.dense(clipped), np.zeros((HEIGHT, 2)))


def test_axes_are_refused(kit: Kit) -> None:
    with pytest.raises(ValueError, match="sparse"):
        kit.namespace.clip_by_norm(kit.sparse(ROWS, VALUES, HEIGHT), 1.0, axes=0)


def test_bounds_that_rows_which_are_not_stored_would_break_are_refused(kit: Kit) -> None:
    sparse = kit.sparse(ROWS, VALUES, HEIGHT)
    with pytest.raises(ValueError, match="exclude 0"):
        kit.namespace.clip_by_value(sparse, 1.0, 20.0)
    with pytest.raises(ValueError, match="exclude 0"):
        kit.namespace.GradientClipByValue(max=20.0, min=1.0)([(kit.parameter(), sparse)])
    with pytest.raises(ValueError, match="cannot be tensors"):
        kit.namespace.clip_by_value(sparse, kit.tensor([[-1.0], [-2.0], [-3.0], [-4.0]]), 20.0)


def test_one_sparse_gradient_in_two_places_is_clipped_in_both(kit: Kit) -> None:
    if not kit.on_parameters:
        return
    sparse = kit.sparse(ROWS, VALUES, HEIGHT)
    holders = kit.in_place([sparse, sparse])
    assert float(kit.array(kit.namespace.GradientClipByGlobalNorm(5.0).clip_(holders))) == 25.0
    for gradient in kit.kept(holders):
        np.testing.assert_array_equal(kit.dense(gradient), reference.scaled(DENSE, 0.2))


def test_integers_are_summed_and_clipped_by_value(kit: Kit) -> None:
    if kit.name == "paddle":
        return  # its sparse gradients are floating-point
    got = kit.dense(kit.namespace.clip_by_value(kit.sparse(ROWS, VALUES, HEIGHT, "int32"), -5, 5))
    assert got.ravel().tolist() == [0, 5, 5, 0]
