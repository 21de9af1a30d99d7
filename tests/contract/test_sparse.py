"""Sparse gradients: repeated rows are summed before the clip, and the result stays sparse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from support import calls, reference, situations
from support.kits import Kit
from support.tiers import where

from unified_clip import ClipConfig

ROWS, VALUES, HEIGHT = [1, 1, 2], [[3.0], [4.0], [24.0]], 4
TOLERANCE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-22, "float64": 1e-9}
TOLERANCE |= {"complex64": TOLERANCE["float32"], "complex128": TOLERANCE["float64"]}
DENSE = np.array([[0.0], [7.0], [24.0], [0.0]], np.float32)


pytestmark = where(lambda kit: kit.has_sparse)


@st.composite
def repeated_rows(draw: st.DrawFn, dtype: str) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Return rows, their numbers, and the dense array of their sums, which are rounded once."""
    count, random = draw(st.sampled_from([0, 1, 3, 60])), np.random.default_rng(draw(st.integers(0, 99)))
    values = reference.array(random.standard_normal((count, 3)) * 10.0 ** random.integers(-3, 2, (count, 1)), dtype)
    rows = random.integers(0, draw(st.sampled_from([1, 5])), count)
    if count > 1 and draw(st.booleans()):  # rows that cancel, but for a small rest
        pairs = count // 2 * 2
        values[1:pairs:2], rows[1:pairs:2] = -values[:pairs:2], rows[:pairs:2]
        values[0] *= reference.array(1.25, dtype)
    dense = np.zeros((HEIGHT + 1, 3), values.dtype)
    for index in np.ndindex(dense.shape):
        exact = sum((Fraction(float(v)) for v in values[rows == index[0], index[1]]), Fraction(0))
        dense[index] = math.copysign(reference.nearest(abs(exact), dtype), exact)
    return rows.tolist(), values, dense


@pytest.mark.parametrize("scope", ["total", "each", "value"])
@given(data=st.data())
def test_rows_are_summed_and_clipped_as_the_dense_gradient(kit: Kit, scope: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(kit.floating))
    rows, values, sums = data.draw(repeated_rows(dtype))
    beside = data.draw(situations.numbers(kit, dtype)).copy()
    norm = reference.norm([sums, beside] if scope == "total" else [sums])
    limit = data.draw(situations.thresholds(False))(norm)
    for name, call in calls.CALLS.items():
        if call.scope not in (scope, "" if scope == "total" else scope):
            continue
        note(f"{name} with the threshold {limit}")
        arrays = [sums, beside] if call.scope == "total" or not call.scope else [sums]
        argument = call.prepare(
            kit, [kit.sparse(rows, values, HEIGHT + 1, dtype), kit.tensor(beside, dtype)][: len(arrays)]
        )
        result = call.read(kit, argument, call.run(kit, argument, limit))
        n = None
        if result.norm is not None and call.given_norm is None:
            n = check_norm_of_sums(kit, result.norm, arrays, call.p)
        if call.scope:
            expected = calls.expected_of(call, arrays, limit, n)
            check_sparse(kit, result.gradients[0], rows, sums, expected[0])


def check_norm_of_sums(kit: Kit, norm: Any, arrays: list[np.ndarray], p: float) -> float:
    """On the device path, each sum can be off by 1 ULP."""
    if kit.exact:
        return calls.check_norm(kit, norm, arrays, p, exact=True)
    n, expected = float(kit.array(norm)), calls.norm_of(arrays, p)
    np.testing.assert_allclose(n, expected, rtol=TOLERANCE[arrays[0].dtype.name])
    return n


def check_sparse(kit: Kit, got: Any, rows: list[int], sums: np.ndarray, expected: np.ndarray) -> None:
    """Rows that are not stored stay zero, even if the norm is NaN. A gradient that is not clipped may keep its rows."""
    if len(set(kit.stored_rows(got))) < len(kit.stored_rows(got)):
        np.testing.assert_array_equal(expected, sums)
        return
    result, stored = kit.dense(got), sorted(set(rows))
    assert set(kit.stored_rows(got)) <= set(stored)
    assert not np.delete(result, stored, axis=0).any()
    one, other = (array[stored].astype(np.float64) for array in (result, expected))
    if kit.exact:
        np.testing.assert_array_equal(one, other)  # except for the sign of zeros
    else:
        np.testing.assert_allclose(one, other, rtol=2 * TOLERANCE[expected.dtype.name], atol=2.0**-24)


def test_a_class_returns_the_object_that_it_does_not_change(kit: Kit) -> None:
    pairs = [(kit.parameter(), kit.sparse(ROWS, VALUES, HEIGHT))]
    if kit.exact:
        assert kit.namespace.GradientClipByNorm(25.0)(pairs)[0][1] is pairs[0][1]


def test_thresholds_and_norms_that_are_not_finite(kit: Kit) -> None:
    sparse = kit.sparse(ROWS, VALUES, HEIGHT)
    np.testing.assert_array_equal(kit.dense(kit.namespace.clip_by_global_norm([sparse], math.inf)[0][0]), DENSE)
    np.testing.assert_array_equal(kit.dense(kit.namespace.clip_by_norm(sparse, 0)), DENSE * 0)
    broken = kit.sparse([0, 0, 1], [[math.inf], [-math.inf], [1.0]], 2)
    assert math.isnan(float(kit.array(kit.namespace.global_norm([broken]))))


def test_infinities_stay_and_sums_that_overflow_on_the_way_do_not(kit: Kit) -> None:
    sparse = kit.sparse([0, 0, 1, 1, 1], [[math.inf], [1.0], [3e38], [3e38], [-3e38]], 2)
    got = kit.dense(kit.namespace.clip_by_global_norm([sparse], math.inf)[0][0])
    np.testing.assert_array_equal(got, np.array([[math.inf], [3e38]], np.float32))
    if "float64" in kit.floating and kit.exact:
        sparse = kit.sparse([1, 1, 1], [[1e308], [1e308], [-1e308]], 2, "float64")
        assert float(kit.array(kit.namespace.global_norm([sparse]))) == 1e308


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
def sparse_and_dense(
    draw: st.DrawFn, most_sparse_axes: int, dtypes: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    sparse_axes = draw(st.integers(1, min(most_sparse_axes, len(shape))))
    columns = st.tuples(*(st.integers(0, length - 1) for length in shape[:sparse_axes]))
    indices = np.array(draw(st.lists(columns, max_size=7)), np.int64).reshape(-1, sparse_axes).T
    random = np.random.default_rng(draw(st.integers(0, 99)))
    values = reference.array(
        random.integers(-30, 30, (indices.shape[1], *shape[sparse_axes:])), draw(st.sampled_from(dtypes))
    )
    dense = np.zeros(shape, values.dtype)
    np.add.at(dense, tuple(indices), values)
    signed = st.lists(st.integers(0, len(shape) - 1), unique=True).flatmap(
        lambda axes: st.tuples(*(st.sampled_from([axis, axis - len(shape)]) for axis in axes))
    )
    one = st.integers(-len(shape), len(shape) - 1)
    return indices, values, dense, draw(st.none() | one | signed | signed.map(list))


@given(data=st.data(), limit=st.sampled_from([0.0, 2.0, 30.0]))
def test_axes_of_rows_are_those_of_the_dense_tensor(kit: Kit, data: st.DataObject, limit: float) -> None:
    indices, values, dense, axes = data.draw(sparse_and_dense(1, kit.floating + kit.complex))
    sparse = kit.sparse(indices[0].tolist(), values, len(dense), values.dtype.name)
    check_as_dense(kit, sparse, dense, limit, axes)


@pytest.mark.nightly
@given(data=st.data(), limit=st.sampled_from([0.0, 2.0, 30.0]))
def test_axes_may_be_sparse_and_dense_ones(kit: Kit, data: st.DataObject, limit: float) -> None:
    if not kit.has_coo:
        return
    dtypes = ("float32", "float64") if kit.name == "paddle" else kit.floating + kit.complex
    indices, values, dense, axes = data.draw(sparse_and_dense(4, dtypes))
    check_as_dense(kit, kit.coo(indices, values, dense.shape, values.dtype.name), dense, limit, axes)


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
