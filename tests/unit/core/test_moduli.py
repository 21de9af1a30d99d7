"""Moduli of complex numbers: their exact sum and their maximum, with and without compiled kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import reference

from unified_clip._backends import numpy
from unified_clip._compute import kernels, moduli, processor
from unified_clip._compute.exact_sums import CHUNK
from unified_clip._compute.host import HostPath
from unified_clip._core.exact import UNIT, Accumulator

LARGEST, SMALLEST = 1.7976931348623157e308, 5e-324
NUMBERS = {
    "complex64": st.complex_numbers(width=64, allow_nan=False, allow_infinity=False),
    "complex128": st.complex_numbers(allow_nan=False, allow_infinity=False),
}
NEAR_ONE = st.builds(
    complex, st.floats(0.5, 2.0), st.one_of(st.floats(-1.0, 1.0), st.sampled_from([0.0, SMALLEST, 2.0**-26, 1e-200]))
)
HALF_WAY = [1 + SMALLEST * 1j, 2.0**-53]
"""Above the midpoint of two float64 numbers by 2**-2149."""


@pytest.fixture(params=["compiled", "NumPy"])
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "NumPy":
        monkeypatch.setattr(kernels, "KERNELS", None)
    elif kernels.KERNELS is None:
        pytest.skip("the compiled kernels are not built")


def norm(arrays: list[np.ndarray], p: float) -> float:
    path = HostPath(numpy.BACKEND, arrays)
    with path.scope():
        return float(path.norm(p))


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("dtype", NUMBERS)
@given(data=st.data())
def test_norms_of_complex_numbers_are_correctly_rounded(dtype: str, p: float, data: st.DataObject) -> None:
    for numbers in (NUMBERS[dtype], NEAR_ONE):
        array = reference.array(data.draw(st.lists(numbers, max_size=12)), dtype)
        real = np.array(data.draw(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=3)))
        for arrays in ([array], [array, real.astype(np.float32)], [array, real]):
            assert norm(arrays, p) == reference.norm(arrays, p)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize(
    "values",
    [
        [],
        [0j],
        [0j, 3 + 4j],
        HALF_WAY,
        [*HALF_WAY, 0j, -1 + SMALLEST * 1j, 2.0**-53],
        [complex(LARGEST, LARGEST)],
        [complex(LARGEST, SMALLEST)],
        [complex(LARGEST, 2.0**997)],
        [1.5e308 + 9.6e307j, 1j],
        [complex(SMALLEST, -SMALLEST)] * 3,
        [complex(SMALLEST, 1e308), complex(-1e308, 2 * SMALLEST)],
        [complex(math.inf, 1.0), 1.0],
        [complex(math.inf, math.nan), 1.0],
        [complex(math.nan, 0.0), complex(math.inf, 0.0)],
    ],
)
def test_extreme_and_non_finite_numbers(values: list[complex], p: float) -> None:
    got, expected = norm([np.array(values, np.complex128)], p), reference.norm([np.array(values, np.complex128)], p)
    assert got == expected or (math.isnan(got) and math.isnan(expected))


@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_chunk_counts_in_any_layout(dtype: str, p: float) -> None:
    random = np.random.default_rng(5)
    array = np.zeros((2, CHUNK), dtype)
    array[:, [0, 1, -1]] = random.standard_normal((2, 3)) + 1j * random.standard_normal((2, 3))
    for view in (array, array.T, array[:, ::-1], array[:, CHUNK - 1 :]):
        assert norm([view], p) == reference.norm([view[view != 0]], p)


@pytest.mark.nightly
@pytest.mark.parametrize("length", [1, 3, CHUNK + 7])
@pytest.mark.parametrize("spread", [0, 30, 900])
def test_pair_sums_keep_their_promise(length: int, spread: int) -> None:
    random = np.random.default_rng(length)
    with np.errstate(under="ignore"):
        parts = np.ldexp(random.standard_normal((2, length)), random.integers(-spread, spread + 1, (2, length)))
    view = parts[0] + 1j * parts[1]
    fast, exact = moduli.compensated_sum(view), moduli.exact_sum(view)
    assert (fast.compensated, fast.roots, exact.slack) == (-(-length // CHUNK), 0, 0)
    assert abs(fast.total - exact.total) <= fast.slack + exact.roots


@given(st.lists(st.tuples(st.integers(1, 2**60), st.integers(0, 2**60)), min_size=1, max_size=6))
@example([(3, 4), (1, 1)])
def test_exact_sums_are_rounded_down_root_by_root(parts: list[tuple[int, int]]) -> None:
    view = np.array([complex(x, y) for x, y in parts])
    result = moduli.exact_sum(view)
    roots = [
        (square << 2 * UNIT, math.isqrt(square << 2 * UNIT))
        for square in (int(z.real) ** 2 + int(z.imag) ** 2 for z in view.tolist())
    ]
    assert result == Accumulator(
        sum(root for _, root in roots), roots=sum(root * root != square for square, root in roots)
    )


def test_roots_decide_a_tie_by_what_they_add() -> None:
    half_way = (2**53 + 1) << UNIT
    assert Accumulator(half_way).root(1, "float64") == 2.0**53
    for roots in (1, 2, 3):
        assert Accumulator(half_way, roots=roots).root(1, "float64") == 2.0**53 + 2
        assert Accumulator(half_way - roots, roots=roots).root(1, "float64") == 2.0**53
    assert Accumulator(half_way - 2, roots=5).root(1, "float64") == 2.0**53 + 2  # as near as units tell
    assert Accumulator.from_compensated_sums(half_way).root(1, "float64") is None
    assert (Accumulator.from_compensated_sums(half_way) + Accumulator(0, roots=1)).root(1, "float64") is None


@pytest.mark.parametrize("measure", [moduli.max_abs, lambda view, dtype: norm([view], math.inf)])
def test_the_greatest_of_many_that_are_nearly_equal(measure: Callable[[np.ndarray, str], float]) -> None:
    angles = np.random.default_rng(1).uniform(0, 2 * np.pi, 5000)
    view = np.exp(1j * angles)
    exact = max(Fraction(z.real) ** 2 + Fraction(z.imag) ** 2 for z in view.tolist())
    assert measure(view, "float64") == reference.nearest_root(exact, "float64")


@given(st.lists(st.one_of(NUMBERS["complex128"], NEAR_ONE), max_size=20))
def test_rounded_moduli_are_off_by_an_ulp_at_most(values: list[complex]) -> None:
    with processor.ieee_arithmetic():
        got = moduli.rounded(np.array(values, np.complex128))
    for z, modulus in zip(values, got.tolist(), strict=True):
        exact = reference.norm([np.array([z], np.complex128)])
        assert modulus in (exact, math.nextafter(exact, 0.0), math.nextafter(exact, math.inf))
