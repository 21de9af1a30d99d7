"""The norm is correctly rounded for every order, layout and dtype."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from support.kits import Kit
from support.tiers import where

import unified_clip

NEAR_A_BOUNDARY = [2.0**24, 2.0**12, 2.0**12] + 70 * [2.0**-3]
"""Just above the midpoint of two float32 numbers, so a float64 sum depends on the order of additions."""


def check_norm(kit: Kit, got: object, arrays: list[np.ndarray], p: float = 2.0) -> None:
    """The norm is correctly rounded on the host path. On the device path, it is within 1 ULP for float32, and 1e-12 for
    float64."""
    assert kit.array(got).shape == ()
    expected = reference.norm(arrays, p)
    dtype = reference.norm_dtype(a.dtype.name for a in arrays)
    assert kit.dtype(got) == dtype
    if kit.exact or not math.isfinite(expected):
        assert float(kit.array(got)) == expected or (math.isnan(expected) and math.isnan(float(kit.array(got))))
    elif dtype == "float64":
        assert float(kit.array(got)) == pytest.approx(expected, rel=1e-12)
    else:
        assert abs(float(kit.array(got)) - expected) <= reference.spacing(expected)


@pytest.mark.parametrize("p", [1, 2, math.inf, "inf"])
@pytest.mark.parametrize("seed", range(6))
def test_random_lists_of_every_dtype(kit: Kit, p: float, seed: int) -> None:
    random_ = np.random.default_rng(seed)
    dtypes = [kit.floating, kit.floating[:3], ("float32",), kit.floating + kit.complex, kit.complex[:1], ("bfloat16",)][
        seed
    ]
    arrays = []
    for shape in [(), (0,), (1,), (7, 3), (513,), (4097,), (9, 1001)]:
        dtype = dtypes[random_.integers(len(dtypes))]
        values = random_.standard_normal(shape) * 10.0 ** random_.integers(-3, 2)
        if dtype in kit.complex:
            values = values + 1j * random_.standard_normal(shape)
        arrays.append(reference.array(values, dtype))
    got = kit.namespace.get_total_norm([kit.tensor(a, a.dtype.name) for a in arrays], p)
    check_norm(kit, got, arrays, math.inf if p == "inf" else p)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@given(data=st.data())
def test_one_complex_number_has_the_same_norm_for_every_order(kit: Kit, dtype: str, data: st.DataObject) -> None:
    if dtype not in kit.complex or not kit.exact:
        return
    width = 32 if dtype == "complex64" else 64
    parts = st.floats(width=width, allow_nan=False, allow_infinity=False)
    array = np.array([complex(data.draw(parts), data.draw(parts))], dtype)
    for value in (array, np.array([0.8622461846199109 + 0.11606067343101731j], dtype)):
        for p in (1, 2, math.inf):
            norm = float(kit.array(kit.namespace.get_total_norm([kit.tensor(value, dtype)], p)))
            assert norm == reference.norm([value], 2)


@given(
    st.lists(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False), max_size=20),
        max_size=5,
    ),
    st.sampled_from([1, 2, math.inf]),
)
def test_any_float32_values(kit: Kit, lists: list[list[float]], p: float) -> None:
    arrays = [np.array(values, np.float32) for values in lists]
    check_norm(
        kit, kit.namespace.get_total_norm([kit.tensor(a) for a in arrays], p), arrays or [np.zeros(0, np.float32)], p
    )


@given(
    st.lists(st.floats(min_value=-1e300, max_value=1e300, allow_subnormal=False), min_size=1, max_size=20),
    st.sampled_from([1, 2, math.inf]),
)
def test_any_float64_values(kit: Kit, values: list[float], p: float) -> None:
    if "float64" in kit.floating:
        array = np.array(values)
        check_norm(kit, kit.namespace.get_total_norm([kit.tensor(array, "float64")], p), [array], p)


@pytest.mark.parametrize("seed", range(5))
def test_on_a_rounding_boundary_in_every_order(kit: Kit, seed: int) -> None:
    values = NEAR_A_BOUNDARY.copy()
    random.Random(seed).shuffle(values)
    got = kit.namespace.get_total_norm([kit.tensor(values[:20]), kit.tensor(values[20:])])
    check_norm(kit, got, [np.array(values, np.float32)])
    if kit.exact:
        assert float(kit.array(got)) == 16777218


@pytest.mark.parametrize("last", [0.0, 2.0**-100])
def test_exactly_half_way_goes_to_even_and_the_least_above_it_up(kit: Kit, last: float) -> None:
    # The squares of the first four sum to (2**24 + 1)**2, and 2**24 + 1 is half way between two float32.
    terms = [2.0**24, 2.0**12, 2.0**12, 1.0, last]
    got = kit.namespace.get_total_norm(kit.tensor(terms))
    if kit.exact:
        assert float(kit.array(got)) == (16777216.0 if last == 0 else 16777218.0)


def test_a_long_tensor_is_as_exact_as_a_short_one(kit: Kit) -> None:
    got = kit.namespace.get_total_norm([kit.tensor(np.full(3_000_000, 0.1, np.float32))])
    exact = reference.nearest_root(3_000_000 * reference.Fraction(float(np.float32(0.1))) ** 2, "float32")
    assert float(kit.array(got)) == exact


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_norms_of_16_bit_gradients_are_float32_and_do_not_overflow(kit: Kit, dtype: str) -> None:
    arrays = [reference.array([60000.0, 60000.0], dtype)]
    check_norm(kit, kit.namespace.global_norm([kit.tensor(arrays[0], dtype)]), arrays)


def test_squares_that_overflow_float32_do_not_matter(kit: Kit) -> None:
    arrays = [np.array([1e20, 1e20], np.float32)]
    check_norm(kit, kit.namespace.get_total_norm([kit.tensor(arrays[0])]), arrays)


def test_a_norm_above_the_largest_float32_is_infinite(kit: Kit) -> None:
    assert float(kit.array(kit.namespace.get_total_norm([kit.tensor([3e38, 3e38])]))) == math.inf


def test_float64_neither_overflows_nor_underflows(kit: Kit) -> None:
    if "float64" not in kit.floating:
        return
    for scale in (1e-170, 1e170, 1e300):
        arrays = [np.array([3.0, 4.0]) * scale]
        check_norm(kit, kit.namespace.get_total_norm([kit.tensor(arrays[0], "float64")]), arrays)


def test_subnormal_numbers_count(kit: Kit) -> None:
    if not (kit.exact or kit.keeps_subnormals_on_device):
        return
    arrays = [np.array([1e-40, 1e-40, 2e-45], np.float32)]
    check_norm(kit, kit.namespace.get_total_norm([kit.tensor(arrays[0])]), arrays)
    if "float64" in kit.floating and kit.exact:
        arrays = [np.array([5e-324, 1e-320])]
        check_norm(kit, kit.namespace.get_total_norm([kit.tensor(arrays[0], "float64")]), arrays)


@pytest.mark.parametrize("p", [0.5, 1.5, 3, 10, 100.0])
def test_other_orders_are_within_one_ulp(kit: Kit, p: float) -> None:
    values = np.abs(np.random.default_rng(1).standard_normal(500)) * 1e-20
    for dtype in ("float32", "float64"):
        if dtype not in kit.floating:
            continue
        given_ = reference.array(values, dtype)
        wide = given_.astype(np.longdouble)
        expected = float(wide.max() * np.sum((wide / wide.max()) ** np.longdouble(p)) ** (1 / np.longdouble(p)))
        got = float(kit.array(kit.namespace.get_total_norm([kit.tensor(given_, dtype)], p)))
        if dtype == "float32":
            assert abs(got - expected) <= np.spacing(np.float32(expected))
        else:
            assert abs(got - expected) <= (np.spacing(expected) if kit.exact else 1e-12 * expected)


@where(lambda kit: "float64" in kit.floating)
@pytest.mark.parametrize(
    ("values", "p", "norm"),
    [
        ([1e-200, 1e200], 0.01, (0.01 + 100.0) ** 100),
        ([3e10, 0.0], 1e-5, 3e10),
        ([3e10, 0.0], 1e-17, 3e10),
        ([0.0, 3e10], 5e-324, 3e10),
        ([3e10, 3e10], 1e-17, math.inf),
        ([3.0, 3.0, 1.0], 1e20, 3.0),
        ([1e-300, 3e-300], 3, 28 ** (1 / 3) * 1e-300),
    ],
)
def test_no_order_loses_numbers_or_overflows_on_the_way(kit: Kit, values: list[float], p: float, norm: float) -> None:
    got = float(kit.array(kit.namespace.get_total_norm([kit.tensor(values, "float64")], p)))
    assert got == pytest.approx(norm, rel=1e-12)


@pytest.mark.parametrize("p", [0.5, 1, 2, 3, math.inf])
def test_a_nan_anywhere_makes_every_norm_nan_even_beside_inf(kit: Kit, p: float) -> None:
    tensors = [kit.tensor([1.0, math.inf]), kit.tensor([2.0, math.nan]), kit.tensor([3.0])]
    assert math.isnan(float(kit.array(kit.namespace.get_total_norm(tensors, p))))
    assert float(kit.array(kit.namespace.get_total_norm([tensors[0], tensors[2]], p))) == math.inf


@pytest.mark.parametrize("p", [0.5, 1, 2, 3, math.inf])
def test_no_elements_give_zero(kit: Kit, p: float) -> None:
    for container in ([], [None, None], [kit.tensor(np.zeros((0, 3)))], {}):
        norm = kit.namespace.get_total_norm(container, p)
        assert float(kit.array(norm)) == 0.0
        assert kit.dtype(norm) == "float32"
        assert kit.array(norm).shape == ()


def test_zeros_have_norm_zero(kit: Kit) -> None:
    for p in (0.5, 1, 2, 3, math.inf):
        assert float(kit.array(kit.namespace.get_total_norm([kit.tensor([0.0, -0.0])], p))) == 0.0


def test_the_gradients_are_not_changed_by_measuring(kit: Kit) -> None:
    tensor = kit.tensor([3.0, -4.0])
    before = kit.bits(tensor)
    kit.namespace.get_total_norm([tensor])
    kit.namespace.global_norm([tensor])
    assert kit.bits(tensor) == before


@pytest.mark.parametrize("p", [0.5, 1, 2, 3, math.inf])
def test_a_nan_in_either_part_of_a_complex_number_counts(kit: Kit, p: float) -> None:
    for value in (complex(math.inf, math.nan), complex(math.nan, math.inf), complex(0, math.nan)):
        assert math.isnan(float(kit.array(kit.namespace.get_total_norm([kit.tensor([value, 1], "complex64")], p))))
    infinite = kit.namespace.get_total_norm([kit.tensor([complex(math.inf, 1)], "complex64")], p)
    assert float(kit.array(infinite)) == math.inf


def test_norms_that_functions_return_can_be_passed_to_suggest_threshold(kit: Kit) -> None:
    norms = [kit.namespace.global_norm([kit.tensor([float(value)])]) for value in range(1, 31)]
    assert unified_clip.suggest_threshold(norms, percentile=50).threshold == 15.0
