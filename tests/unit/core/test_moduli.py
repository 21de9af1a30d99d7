"""Norms of complex numbers, with and without compiled kernels."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference

from unified_clip._backends import numpy
from unified_clip._compute import kernels
from unified_clip._compute.host import HostPath
from unified_clip._compute.kernels import CHUNK

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


def assert_near(got: float, expected: float, arrays: list[np.ndarray], p: float) -> None:
    """Norms of order 2 are correctly rounded. Other norms of complex numbers are off by 1 ULP at most."""
    kind = np.float64 if reference.norm_dtype(array.dtype.name for array in arrays) == "float64" else np.float32
    with np.errstate(over="ignore", under="ignore"):
        neighbours = [float(np.nextafter(kind(expected), kind(end))) for end in (-math.inf, math.inf)] if p != 2 else []
    assert got in [expected, *neighbours] or (math.isnan(got) and math.isnan(expected))


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
def test_norms_of_complex_numbers(dtype: str, p: float, data: st.DataObject) -> None:
    for numbers in (NUMBERS[dtype], NEAR_ONE):
        array = reference.array(data.draw(st.lists(numbers, max_size=12)), dtype)
        real = np.array(data.draw(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=3)))
        for arrays in ([array], [array, real.astype(np.float32)], [array, real]):
            assert_near(norm(arrays, p), reference.norm(arrays, p), arrays, p)


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
    arrays = [np.array(values, np.complex128)]
    assert_near(norm(arrays, p), reference.norm(arrays, p), arrays, p)


@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_chunk_counts_in_any_layout(dtype: str, p: float) -> None:
    random = np.random.default_rng(5)
    array = np.zeros((2, CHUNK), dtype)
    array[:, [0, 1, -1]] = random.standard_normal((2, 3)) + 1j * random.standard_normal((2, 3))
    for view in (array, array.T, array[:, ::-1], array[:, CHUNK - 1 :]):
        assert_near(norm([view], p), reference.norm([view[view != 0]], p), [view], p)


@pytest.mark.parametrize("p", [1, math.inf])
@pytest.mark.parametrize("dtype", NUMBERS)
@given(value=NEAR_ONE, count=st.integers(1, 5000))
def test_errors_of_equal_numbers_do_not_add_up(dtype: str, p: float, value: complex, count: int) -> None:
    arrays = [np.full(count, value, dtype)]
    (z,) = arrays[0][:1].astype(np.complex128).tolist()
    square = (Fraction(z.real) ** 2 + Fraction(z.imag) ** 2) * (count if p == 1 else 1) ** 2
    assert_near(norm(arrays, p), reference.nearest_root(square, reference.norm_dtype([dtype])), arrays, p)
