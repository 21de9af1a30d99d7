"""The norm is correctly rounded for every order, layout and dtype."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from support.kits import Kit
from support.tiers import where


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


def test_a_long_tensor_is_as_exact_as_a_short_one(kit: Kit) -> None:
    got = kit.namespace.get_total_norm([kit.tensor(np.full(3_000_000, 0.1, np.float32))])
    exact = reference.nearest_root(3_000_000 * reference.Fraction(float(np.float32(0.1))) ** 2, "float32")
    assert float(kit.array(got)) == exact


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


@pytest.mark.parametrize("p", [0.5, 1, 2, 3, math.inf])
def test_a_nan_in_either_part_of_a_complex_number_counts(kit: Kit, p: float) -> None:
    for value in (complex(math.inf, math.nan), complex(math.nan, math.inf), complex(0, math.nan)):
        assert math.isnan(float(kit.array(kit.namespace.get_total_norm([kit.tensor([value, 1], "complex64")], p))))
    infinite = kit.namespace.get_total_norm([kit.tensor([complex(math.inf, 1)], "complex64")], p)
    assert float(kit.array(infinite)) == math.inf
