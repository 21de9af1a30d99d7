"""The compiled kernels against exact rational arithmetic: any list of numbers, at any address, in any view."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support import reference

from unified_clip import _native
from unified_clip._compute import kernels
from unified_clip._core.exact import FORMATS, UNIT, Accumulator, rounded_norm

pytestmark = pytest.mark.nightly

if _native.KERNELS is None:
    pytest.skip("the compiled kernels are not built", allow_module_level=True)

NATIVE: Any = _native.KERNELS
NARROW = ["float16", "bfloat16", "float32"]
REAL = [*NARROW, "float64"]


def exponents(name: str) -> tuple[int, int]:
    """Of the smallest and the greatest power of two in a format."""
    return FORMATS[name].min_exponent - FORMATS[name].precision + 1, FORMATS[name].max_exponent


def moved(array: Any, offset: int) -> Any:
    """A copy that starts `offset` bytes after an aligned address, among bytes that `untouched` looks at."""
    held = np.full(array.nbytes + 32, 0xA5, np.uint8)
    view = held[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def storage(array: Any) -> Any:
    return kernels.storage(array)[0]


def untouched(view: Any) -> bool:
    start = view.ctypes.data - view.base.ctypes.data
    return bool((np.delete(view.base, slice(start, start + view.nbytes)) == 0xA5).all())


def numbers(name: str) -> st.SearchStrategy[float]:
    edges = [0.0, 1.0, 2.0 ** exponents(name)[0], 2.0 ** FORMATS[name].min_exponent, float(reference.LARGEST[name])]
    finite = st.floats(allow_nan=False, allow_infinity=False, width={"float16": 16, "float64": 64}.get(name, 32))
    rounded = finite.map(lambda value: float(reference.array(value, name))).filter(math.isfinite)
    return st.one_of(rounded, st.sampled_from([sign * edge for sign in (1.0, -1.0) for edge in edges]))


@st.composite
def arrays(draw: st.DrawFn, names: list[str]) -> Any:
    """A few numbers, each many times, in any order, at any address."""
    name = draw(st.sampled_from(names))
    values = draw(st.lists(numbers(name), min_size=1, max_size=5))
    length = draw(st.one_of(st.integers(0, 70), st.sampled_from([4095, 4096, 4097, 9000])))
    shuffled = np.random.default_rng(draw(st.integers(0, 9))).permutation(np.resize(values, length))
    return moved(reference.array(shuffled, name), draw(st.integers(0, 15)))


def listed(given: list[Any]) -> Any:
    tensor_list = kernels.array_list([kernels.storage(array) for array in given])
    assert isinstance(tensor_list, NATIVE.TensorList)
    return tensor_list


def power_sum(given: list[Any], p: int, how: str, threads: int = 1) -> Accumulator:
    limbs, nan, infinite = listed(given).power_sum(p, how, threads)
    return kernels.SUMS[how](int.from_bytes(limbs, "little")) + Accumulator(nan=nan, infinite=infinite)


def ways_to_sum(given: list[Any]) -> list[str]:
    return ["exact", "compensated", *(["blocks"] if all(array.dtype != np.float64 for array in given) else [])]


def rational_sum(given: list[Any], p: int) -> Fraction:
    found = Fraction(0)
    for array in given:
        for value, count in zip(*np.unique(np.abs(array.astype(np.float64)), return_counts=True), strict=True):
            found += int(count) * Fraction(float(value)) ** p
    return found


def rational_norm(total: Fraction, p: int, dtype: str) -> float:
    return reference.nearest_root(total, dtype) if p == 2 else reference.nearest(total, dtype)


def check_norms(given: list[Any], p: int, total: Fraction, threads: int = 1) -> None:
    """Every sum and its bound, and the norms."""
    for how in ways_to_sum(given):
        found = power_sum(given, p, how, threads)
        assert abs(Fraction(found.total, 2**UNIT) - total) <= Fraction(found.slack, 2**UNIT)
    for dtype in ("float32", "float64") if "blocks" in ways_to_sum(given) else ("float64",):
        wanted = rational_norm(total, p, dtype)
        assert rounded_norm(partial(kernels.power_sum, listed(given), p, dtype, threads), p, dtype) == wanted
        assert listed(given).norm(p, dtype == "float64", threads) == wanted


# -- sums and norms


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("names", [NARROW, REAL], ids=["narrow", "real"])
@given(data=st.data())
def test_lists(names: list[str], p: int, data: st.DataObject) -> None:
    given = data.draw(st.lists(arrays(names), max_size=5))
    check_norms(given, p, rational_sum(given, p))
    greatest = max((float(np.abs(array.astype(np.float64)).max()) for array in given if array.size), default=0.0)
    assert listed(given).max_abs(1) == greatest


def terms(total: int, p: int, bits: int) -> list[int]:
    """Integers of so many bits whose powers add up to a total: each is the greatest that fits."""
    found: list[int] = []
    while total:
        term = math.isqrt(total) if p == 2 else total
        spare = max(0, term.bit_length() - bits)
        found.append(term >> spare << spare)
        total -= found[-1] ** p
    return found


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("name", REAL)
@given(data=st.data())
def test_norms_half_way_between_two_floats(name: str, p: int, data: st.DataObject) -> None:
    bits = FORMATS["float64" if name == "float64" else "float32"].precision
    middle = 2 * data.draw(st.integers(2 ** (bits - 1), 2**bits - 1)) + 1
    beside = data.draw(st.sampled_from([-1, 0, 1]))  # the least that decides
    values = terms(middle**p + beside, p, FORMATS[name].precision)
    low, high = exponents(name)
    exponent = data.draw(st.integers(low, high - bits - 1))
    wide = np.array([math.ldexp(value, exponent) for value in data.draw(st.permutations(values))])
    step = data.draw(st.integers(1, 3))
    given = [moved(reference.array(wide[start::step], name), start) for start in range(step)]
    check_norms(given, p, (middle**p + beside) * Fraction(2) ** (exponent * p))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("name", REAL)
@given(data=st.data())
def test_one_great_number_among_many_small_ones(name: str, p: int, data: st.DataObject) -> None:
    low, high = exponents(name)
    great = data.draw(st.integers(low, high))
    small = data.draw(st.one_of(st.just(low), st.integers(max(low, great - 60), great)))
    count = data.draw(st.one_of(st.integers(1, 5000), st.just(200_000)))
    place = data.draw(st.integers(0, count))
    array = reference.array(np.insert(np.full(count, 2.0**small), place, 2.0**great), name)
    total = Fraction(2) ** (great * p) + count * Fraction(2) ** (small * p)
    check_norms([moved(array, 1)], p, total, threads=data.draw(st.integers(1, 3)))


# -- scaling


def scaled(value: float, coef: float, name: str) -> float:
    """One multiplication, rounded once; for 16-bit numbers to float32 and then to their format."""
    magnitude = abs(Fraction(value) * Fraction(coef))
    for dtype in [name] if name in ("float32", "float64") else ["float32", name]:
        rounded = reference.nearest(magnitude, dtype)
        if math.isinf(rounded):
            break
        magnitude = Fraction(rounded)
    return math.copysign(rounded, math.copysign(1.0, value) * math.copysign(1.0, coef))


def all_scaled(array: Any, coef: float) -> Any:
    values, places = np.unique(array.view(f"u{array.itemsize}"), return_inverse=True)
    name = array.dtype.name
    results = [scaled(float(value), coef, name) for value in values.view(array.dtype)]
    return reference.array(np.array(results)[places] if results else [], name)


COEFFICIENTS = st.one_of(st.floats(-2, 2), st.floats(allow_nan=False, allow_infinity=False))


@given(given=st.lists(arrays(REAL), max_size=4), coef=COEFFICIENTS, offset=st.integers(0, 15))
def test_lists_are_scaled(given: list[Any], coef: float, offset: int) -> None:
    with np.errstate(over="ignore"):
        narrow = float(np.float32(coef))
    given = [array for array in given if array.dtype == np.float64 or math.isfinite(narrow)]
    wanted = [all_scaled(array, coef if array.dtype == np.float64 else narrow).tobytes() for array in given]
    elsewhere = [moved(np.zeros_like(array), offset) for array in given]
    for results in (elsewhere, given):
        listed(given).scale(coef, 1, [storage(array) for array in results])
        assert [array.tobytes() for array in results] == wanted
        assert all(untouched(array) for array in results)


# -- views


@st.composite
def views(draw: st.DrawFn) -> tuple[Any, Callable[[Any], Any]]:
    """An array, and what takes a view of it: slices with gaps and backwards, axes in any order."""
    shape = draw(npst.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=6))
    index = draw(npst.basic_indices(shape, min_dims=1, allow_newaxis=True))
    name = draw(st.sampled_from([*REAL, "complex64", "complex128"]))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    values = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if name.startswith("complex") else 0)
    axes = draw(st.permutations(range(np.empty(shape)[index].ndim)))
    return moved(reference.array(values, name), draw(st.integers(0, 15))), lambda array: array[index].transpose(axes)


@given(views(), st.integers(1, 3))
def test_views_are_measured(given: tuple[Any, Callable[[Any], Any]], times: int) -> None:
    view = given[1](given[0])
    for each in (
        view,
        np.broadcast_to(view, (times, *view.shape)),
        np.broadcast_to(view[..., None], (*view.shape, times)),
    ):
        name = kernels.storage(each)[1]
        dtype = reference.norm_dtype([name])
        assert listed([each]).norm(2, dtype == "float64", 1) == reference.norm([each])
        if name in REAL:
            assert listed([each]).norm(1, dtype == "float64", 1) == reference.norm([each], 1)
            assert listed([each]).max_abs(1) == reference.norm([each], math.inf)


@given(views(), st.sampled_from([0.3, -2.0, 1e-40]), st.booleans())
def test_views_are_written(given: tuple[Any, Callable[[Any], Any]], factor: float, clamp: bool) -> None:
    base, take = given
    stored, name = kernels.storage(base)
    view, wanted = take(stored), base.copy()
    if clamp and name in REAL:
        take(wanted)[...] = reference.clamped(take(base), -abs(factor), abs(factor))
        low, high = kernels.bounds(-abs(factor)), kernels.bounds(abs(factor))
        write = partial(kernels.array_list([(view, name)]).clamp, low, high, 1)
    else:
        take(wanted)[...] = reference.scaled(take(base), factor)
        write = partial(kernels.array_list([(view, name)]).scale, factor, 1)
    result = np.empty_like(view)
    write([result])
    assert result.tobytes() == take(wanted).tobytes()
    write([view])
    assert base.tobytes() == wanted.tobytes()
    assert untouched(base)


# -- memory that ends where the numbers do


@pytest.fixture(scope="module")
def pages() -> Any:
    """Bytes between two pages that cannot be touched."""
    if sys.platform == "win32":
        pytest.skip("about POSIX systems")
    size = mmap.PAGESIZE
    memory = mmap.mmap(-1, 12 * size)
    whole = np.frombuffer(memory, np.uint8)
    for page in (0, 11):
        address = ctypes.c_void_p(whole.ctypes.data + page * size)
        assert ctypes.CDLL(None).mprotect(address, ctypes.c_size_t(size), 0) == 0
    return whole[size : 11 * size]


@pytest.mark.parametrize("gaps", [1, -2])
@pytest.mark.parametrize("name", REAL)
def test_nothing_outside_is_touched(name: str, gaps: int, pages: Any) -> None:
    rng = np.random.default_rng(0)
    for length in [*range(1, 140), 4095, 4096, 4097]:
        numbers = reference.array(rng.standard_normal(length), name)
        for place in (slice(numbers.nbytes), slice(-numbers.nbytes, None)):
            view = pages[place].view(numbers.dtype)[::gaps]
            view[:] = array = numbers[::gaps].copy()
            for p in (1, 2):
                for how in ways_to_sum([array]):
                    assert power_sum([view], p, how) == power_sum([array], p, how)
            assert listed([view]).max_abs(1) == float(np.abs(array).max())
            listed([view]).scale_(0.5, 1)
            listed([view]).clamp_(kernels.bounds(-0.25), kernels.bounds(0.25), 1)
            assert view.tobytes() == reference.clamped(reference.scaled(array, 0.5), -0.25, 0.25).tobytes()
