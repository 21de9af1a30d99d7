"""Sparse gradients: repeated rows are summed before the clip, and the result stays sparse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from support.kits import Kit
from support.tiers import where

from unified_clip import ClipConfig

ROWS, VALUES, HEIGHT = [1, 1, 2], [[3.0], [4.0], [24.0]], 4
TOLERANCE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-22, "float64": 1e-9}
TOLERANCE |= {"complex64": TOLERANCE["float32"], "complex128": TOLERANCE["float64"]}
DENSE = np.array([[0.0], [7.0], [24.0], [0.0]], np.float32)


pytestmark = where(lambda kit: kit.has_sparse)


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
    for clip, expected in (
        (kit.namespace.GradientClipByGlobalNorm(1.0), reference.scaled(DENSE, 0.04)),
        (kit.namespace.GradientClipByNorm(1.0), reference.scaled(DENSE, 0.04)),
        (kit.namespace.GradientClipByValue(5.0), DENSE.clip(-5, 5)),
    ):
        np.testing.assert_array_equal(kit.dense(clip(pairs)[0][1]), expected)
    if kit.exact:
        assert kit.namespace.GradientClipByNorm(25.0)(pairs)[0][1] is pairs[0][1]


def test_in_place(kit: Kit) -> None:
    for function, expected in (
        (lambda holders: kit.namespace.clip_grad_norm_(holders, 5.0), reference.scaled(DENSE, 5 / (25 + 1e-6))),
        (kit.namespace.GradientClipByGlobalNorm(5.0).clip_, reference.scaled(DENSE, 0.2)),
        (lambda holders: kit.namespace.clip_grad_value_(holders, 5.0), DENSE.clip(-5, 5)),
    ):
        holders = kit.in_place([kit.sparse(ROWS, VALUES, HEIGHT)])
        function(holders)
        np.testing.assert_array_equal(kit.dense(kit.kept(holders)[0]), expected)
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
    expected = np.zeros((5, 3), values.dtype)
    for index in np.ndindex(5, 3):
        exact = sum((reference.Fraction(float(v)) for v in values[rows == index[0], index[1]]), reference.Fraction(0))
        sign = -1 if exact < 0 else 1
        expected[index] = sign * reference.nearest(abs(exact), dtype)
    for order in (np.arange(400), random.permutation(400)):
        sparse = kit.sparse(rows[order].tolist(), values[order], 5, dtype)
        got = kit.dense(kit.namespace.clip_by_global_norm([sparse], math.inf)[0][0])
        if kit.exact:
            assert got.tobytes() == expected.tobytes()
        else:  # summed in float64, then rounded
            np.testing.assert_allclose(got.astype(float), expected.astype(float), rtol=TOLERANCE[dtype])


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


# -- axes of clip_by_norm: as those of the dense tensor


def check_as_dense(kit: Kit, sparse: Any, dense: np.ndarray, limit: float, axes: Any) -> None:
    """On the host path, both norms are correctly rounded, so the results are equal except for the sign of zeros."""
    dtype = dense.dtype.name
    got = kit.dense(kit.namespace.clip_by_norm(sparse, limit, axes=axes))
    expected = kit.array(kit.namespace.clip_by_norm(kit.tensor(dense, dtype), limit, axes=axes))
    if kit.exact:
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got.astype("complex128"), expected.astype("complex128"), rtol=TOLERANCE[dtype])


@st.composite
def sparse_and_dense(draw: st.DrawFn, most_sparse_axes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    sparse_axes = draw(st.integers(1, min(most_sparse_axes, len(shape))))
    columns = st.tuples(*(st.integers(0, length - 1) for length in shape[:sparse_axes]))
    indices = np.array(draw(st.lists(columns, max_size=7)), np.int64).reshape(-1, sparse_axes).T
    random = np.random.default_rng(draw(st.integers(0, 99)))
    values = random.integers(-999, 999, (indices.shape[1], *shape[sparse_axes:])).astype(np.float32)
    dense = np.zeros(shape, np.float32)
    np.add.at(dense, tuple(indices), values)
    signed = st.lists(st.integers(0, len(shape) - 1), unique=True).flatmap(
        lambda axes: st.tuples(*(st.sampled_from([axis, axis - len(shape)]) for axis in axes))
    )
    one = st.integers(-len(shape), len(shape) - 1)
    return indices, values, dense, draw(st.none() | one | signed | signed.map(list))


@given(data=st.data(), limit=st.sampled_from([0.0, 30.0, 700.0]))
def test_axes_of_rows_are_those_of_the_dense_tensor(kit: Kit, data: st.DataObject, limit: float) -> None:
    indices, values, dense, axes = data.draw(sparse_and_dense(1))
    check_as_dense(kit, kit.sparse(indices[0].tolist(), values, len(dense)), dense, limit, axes)


@pytest.mark.nightly
@given(data=st.data(), limit=st.sampled_from([0.0, 30.0, 700.0]))
def test_axes_may_be_sparse_and_dense_ones(kit: Kit, data: st.DataObject, limit: float) -> None:
    if not kit.has_coo:
        return
    indices, values, dense, axes = data.draw(sparse_and_dense(4))
    check_as_dense(kit, kit.coo(indices, values, dense.shape), dense, limit, axes)


@pytest.mark.parametrize("axes", [None, 0, 1, 2, [0, 1], [0, 2], [1, 2], [0, 1, 2], [], -3, (-1, 0)], ids=str)
def test_tensorflows_own_cases_of_axes(kit: Kit, axes: Any) -> None:
    values = np.array([[[-3, 0, 0], [4, 0, 0]], [[0, 2, 0], [0, 0, -1]]], np.float32)
    dense = np.zeros((10, 2, 3), np.float32)
    dense[[2, 6]] = values
    sparse = kit.sparse([2, 6], values, 10)
    check_as_dense(kit, sparse, dense, 4.0, axes)
    assert sorted(kit.stored_rows(kit.namespace.clip_by_norm(sparse, 4.0, axes=axes))) == [2, 6]


@pytest.mark.parametrize("axes", [0, 1, [], [0, 1]], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_axes_of_every_dtype(kit: Kit, dtype: str, axes: Any) -> None:
    if dtype not in kit.floating + kit.complex:
        return
    values = reference.array([[3.0, 0.25], [4.0, -0.25], [24.0, 1.5]], dtype)
    dense = np.zeros((HEIGHT, 2), values.dtype)
    dense[1], dense[2] = reference.array([7.0, 0.0], dtype), values[2]
    check_as_dense(kit, kit.sparse(ROWS, values, HEIGHT, dtype), dense, 2.0, axes)
    if kit.has_coo and (kit.name != "paddle" or dtype in ("float32", "float64")):
        indices = np.array([[1, 1, 2, 2], [0, 0, 0, 1]])
        entries = reference.array([3.0, 4.0, 24.0, 1.5], dtype)
        check_as_dense(kit, kit.coo(indices, entries, (HEIGHT, 2), dtype), dense, 2.0, axes)


@pytest.mark.parametrize("axes", [0, 1, [], [0, 1]], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_axes_of_no_rows(kit: Kit, dtype: str, axes: Any) -> None:
    if dtype not in kit.floating:
        return
    dense = np.zeros((HEIGHT, 2), dtype)
    check_as_dense(kit, kit.sparse([], np.zeros((0, 2)), HEIGHT, dtype), dense, 1.0, axes)
    if kit.has_coo:
        check_as_dense(kit, kit.coo(np.zeros((2, 0), np.int64), np.zeros(0), dense.shape, dtype), dense, 1.0, axes)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_slices_across_sparse_axes_neither_overflow_nor_underflow(kit: Kit, scale: float) -> None:
    if "float64" not in kit.floating or not kit.has_coo:
        return
    dense = np.array([[3.0 * scale, 4.0 * scale, 0.0], [0.3, 0.4, 0.0]])
    sparse = kit.coo(np.array(dense.nonzero()), dense[dense.nonzero()], dense.shape, "float64")
    got = kit.dense(kit.namespace.clip_by_norm(sparse, scale, axes=1))
    first = np.array([0.6, 0.8, 0.0]) * scale
    second = dense[1] if scale > 1 else np.array([0.6, 0.8, 0.0]) * scale
    np.testing.assert_allclose(got, [first, second], rtol=1e-12)


@pytest.mark.parametrize(
    ("axes", "message"), [(2, "has axis 2"), (-3, "has axis -3"), ([0, -2], "twice"), ([0, 0], "twice")], ids=str
)
def test_axes_that_a_sparse_tensor_lacks_or_has_once_are_rejected(kit: Kit, axes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kit.namespace.clip_by_norm(kit.sparse(ROWS, VALUES, HEIGHT), 1.0, axes=axes)
    if kit.has_coo:
        with pytest.raises(ValueError, match=message):
            kit.namespace.clip_by_norm(kit.coo(np.array([[1], [0]]), [3.0], (HEIGHT, 1)), 1.0, axes=axes)


def test_rows_that_are_not_stored_stay_zero_beside_a_nan(kit: Kit) -> None:
    got = kit.dense(kit.namespace.clip_by_norm(kit.sparse([0, 2], [[math.nan], [1.0]], 4), 1.0, axes=0))
    np.testing.assert_array_equal(got, np.array([[math.nan], [0.0], [math.nan], [0.0]], np.float32))


def test_bounds_that_rows_which_are_not_stored_would_break_are_refused(kit: Kit) -> None:
    sparse = kit.sparse(ROWS, VALUES, HEIGHT)
    with pytest.raises(ValueError, match="exclude 0"):
        kit.namespace.clip_by_value(sparse, 1.0, 20.0)
    with pytest.raises(ValueError, match="exclude 0"):
        kit.namespace.GradientClipByValue(max=20.0, min=1.0)([(kit.parameter(), sparse)])
    with pytest.raises(ValueError, match="exclude 0"):
        ClipConfig(rule="value", min=1.0, max=20.0).clipper()([sparse])
    with pytest.raises(ValueError, match="a bound is a tensor"):
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
