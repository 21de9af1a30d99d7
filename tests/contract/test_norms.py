"""The norm is correctly rounded for every order, layout and dtype."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support import reference
from support.kits import Kit
from support.tiers import where


def test_a_long_tensor_is_as_exact_as_a_short_one(kit: Kit) -> None:
    got = kit.namespace.get_total_norm([kit.tensor(np.full(3_000_000, 0.1, np.float32))])
    exact = reference.nearest_root(3_000_000 * reference.Fraction(float(np.float32(0.1))) ** 2, "float32")
    assert float(kit.array(got)) == exact


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
def test_a_nan_in_either_part_of_a_complex_number_counts(kit: Kit, p: float) -> None:
    for value in (complex(math.inf, math.nan), complex(math.nan, math.inf), complex(0, math.nan)):
        assert math.isnan(float(kit.array(kit.namespace.get_total_norm([kit.tensor([value, 1], "complex64")], p))))
    infinite = kit.namespace.get_total_norm([kit.tensor([complex(math.inf, 1)], "complex64")], p)
    assert float(kit.array(infinite)) == math.inf
