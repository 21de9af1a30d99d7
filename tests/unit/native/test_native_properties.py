"""The compiled kernels match exact rational arithmetic, for any numbers, addresses and views."""

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

if _native.KERNELS is None:
    pytest.skip("the compiled kernels are not built", allow_module_level=True)

NATIVE: Any = _native.KERNELS
NARROW = ["float16", "bfloat16", "float32"]
REAL = [*NARROW, "float64"]


def exponents(name: str) -> tuple[int, int]:
    return FORMATS[name].min_exponent - FORMATS[name].precision + 1, FORMATS[name].max_exponent


def copy_at_offset(array: Any, offset: int) -> Any:
    memory = np.full(array.nbytes + 32, 0xA5, np.uint8)
    view = memory[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def storage(array: Any) -> Any:
    return kernels.storage(array)[0]


def is_surrounding_unchanged(view: Any) -> bool:
    start = view.ctypes.data - view.base.ctypes.data
    return bool((np.delete(view.base, slice(start, start + view.nbytes)) == 0xA5).all())


def numbers(name: str) -> st.SearchStrategy[float]:
    edges = [0.0, 1.0, 2.0 ** exponents(name)[0], 2.0 ** FORMATS[name].min_exponent, float(reference.LARGEST[name])]
    finite = st.floats(allow_nan=False, allow_infinity=False, width={"float16": 16, "float64": 64}.get(name, 32))
    rounded = finite.map(lambda value: float(reference.array(value, name))).filter(math.isfinite)
    return st.one_of(rounded, st.sampled_from([sign * edge for sign in (1.0, -1.0) for edge in edges]))


@st.composite
def arrays(draw: st.DrawFn, names: list[str]) -> Any:
    name = draw(st.sampled_from(names))
    values = draw(st.lists(numbers(name), min_size=1, max_size=5))
    length = draw(st.one_of(st.integers(0, 70), st.sampled_from([4095, 4096, 4097, 9000])))
    shuffled = np.random.default_rng(draw(st.integers(0, 9))).permutation(np.resize(values, length))
    return copy_at_offset(reference.array(shuffled, name), draw(st.integers(0, 15)))


def tensor_list_of(arrays_: list[Any]) -> Any:
    tensor_list = kernels.array_list([kernels.storage(array) for array in arrays_])
    assert isinstance(tensor_list, NATIVE.TensorList)
    return tensor_list


def power_sum(arrays_: list[Any], p: int, method: str, threads: int = 1) -> Accumulator:
    limbs, nan, infinite = tensor_list_of(arrays_).power_sum(p, method, threads)
    return kernels.SUMS[method](int.from_bytes(limbs, "little")) + Accumulator(nan=nan, infinite=infinite)


def sum_methods(arrays_: list[Any]) -> list[str]:
    return ["exact", "compensated", *(["blocks"] if all(array.dtype != np.float64 for array in arrays_) else [])]


def rational_sum(arrays_: list[Any], p: int) -> Fraction:
    total = Fraction(0)
    for array in arrays_:
        for value, count in zip(*np.unique(np.abs(array.astype(np.float64)), return_counts=True), strict=True):
            total += int(count) * Fraction(float(value)) ** p
    return total


def rational_norm(total: Fraction, p: int, dtype: str) -> float:
    return reference.nearest_root(total, dtype) if p == 2 else reference.nearest(total, dtype)


def assert_norms_are_exact(arrays_: list[Any], p: int, total: Fraction, threads: int = 1) -> None:
    for method in sum_methods(arrays_):
        accumulated = power_sum(arrays_, p, method, threads)
        assert abs(Fraction(accumulated.total, 2**UNIT) - total) <= Fraction(accumulated.slack, 2**UNIT)
    for dtype in ("float32", "float64") if "blocks" in sum_methods(arrays_) else ("float64",):
        expected = rational_norm(total, p, dtype)
        assert (
            rounded_norm(partial(kernels.power_sum, tensor_list_of(arrays_), p, dtype, threads), p, dtype) == expected
        )
        assert tensor_list_of(arrays_).norm(p, dtype == "float64", threads) == expected


# -- sums and norms


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("names", [NARROW, REAL], ids=["narrow", "real"])
@given(data=st.data())
def test_norms_of_lists_are_exact(names: list[str], p: int, data: st.DataObject) -> None:
    arrays_ = data.draw(st.lists(arrays(names), max_size=5))
    assert_norms_are_exact(arrays_, p, rational_sum(arrays_, p))
    greatest = max((float(np.abs(array.astype(np.float64)).max()) for array in arrays_ if array.size), default=0.0)
    assert tensor_list_of(arrays_).max_abs(1) == greatest


def integers_with_power_sum(total: int, p: int, bits: int) -> list[int]:
    terms_: list[int] = []
    while total:
        term = math.isqrt(total) if p == 2 else total
        spare = max(0, term.bit_length() - bits)
        terms_.append(term >> spare << spare)
        total -= terms_[-1] ** p
    return terms_


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("name", REAL)
@given(data=st.data())
def test_norms_half_way_between_two_floats_are_exact(name: str, p: int, data: st.DataObject) -> None:
    bits = FORMATS["float64" if name == "float64" else "float32"].precision
    middle = 2 * data.draw(st.integers(2 ** (bits - 1), 2**bits - 1)) + 1
    beside = data.draw(st.sampled_from([-1, 0, 1]))  # the smallest change that decides the rounding
    values = integers_with_power_sum(middle**p + beside, p, FORMATS[name].precision)
    low, high = exponents(name)
    exponent = data.draw(st.integers(low, high - bits - 1))
    wide = np.array([math.ldexp(value, exponent) for value in data.draw(st.permutations(values))])
    step = data.draw(st.integers(1, 3))
    arrays_ = [copy_at_offset(reference.array(wide[start::step], name), start) for start in range(step)]
    assert_norms_are_exact(arrays_, p, (middle**p + beside) * Fraction(2) ** (exponent * p))


@pytest.mark.nightly
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("name", REAL)
@given(data=st.data())
def test_norms_of_one_large_and_many_small_numbers_are_exact(name: str, p: int, data: st.DataObject) -> None:
    low, high = exponents(name)
    great = data.draw(st.integers(low, high))
    small = data.draw(st.one_of(st.just(low), st.integers(max(low, great - 60), great)))
    count = data.draw(st.one_of(st.integers(1, 5000), st.just(200_000)))
    place = data.draw(st.integers(0, count))
    array = reference.array(np.insert(np.full(count, 2.0**small), place, 2.0**great), name)
    total = Fraction(2) ** (great * p) + count * Fraction(2) ** (small * p)
    assert_norms_are_exact([copy_at_offset(array, 1)], p, total, threads=data.draw(st.integers(1, 3)))


# -- scaling


def scaled(value: float, coef: float, name: str) -> float:
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


@given(inputs=st.lists(arrays(REAL), max_size=4), coef=COEFFICIENTS, offset=st.integers(0, 15))
def test_scaled_lists_are_rounded_once(inputs: list[Any], coef: float, offset: int) -> None:
    with np.errstate(over="ignore"):
        narrow = float(np.float32(coef))
    inputs = [array for array in inputs if array.dtype == np.float64 or math.isfinite(narrow)]
    expected = [all_scaled(array, coef if array.dtype == np.float64 else narrow).tobytes() for array in inputs]
    new_arrays = [copy_at_offset(np.zeros_like(array), offset) for array in inputs]
    for results in (new_arrays, inputs):
        tensor_list_of(inputs).scale(coef, 1, [storage(array) for array in results])
        assert [array.tobytes() for array in results] == expected
        assert all(is_surrounding_unchanged(array) for array in results)


# -- views


@st.composite
def views(draw: st.DrawFn) -> tuple[Any, Callable[[Any], Any]]:
    shape = draw(npst.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=6))
    index = draw(npst.basic_indices(shape, min_dims=1, allow_newaxis=True))
    name = draw(st.sampled_from([*REAL, "complex64", "complex128"]))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    values = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if name.startswith("complex") else 0)
    axes = draw(st.permutations(range(np.empty(shape)[index].ndim)))
    return copy_at_offset(reference.array(values, name), draw(st.integers(0, 15))), lambda array: array[
        index
    ].transpose(axes)


@given(views(), st.integers(1, 3))
def test_norms_of_views_are_exact(array_and_view: tuple[Any, Callable[[Any], Any]], repeats: int) -> None:
    view = array_and_view[1](array_and_view[0])
    for viewed in (
        view,
        np.broadcast_to(view, (repeats, *view.shape)),
        np.broadcast_to(view[..., None], (*view.shape, repeats)),
    ):
        name = kernels.storage(viewed)[1]
        dtype = reference.norm_dtype([name])
        assert tensor_list_of([viewed]).norm(2, dtype == "float64", 1) == reference.norm([viewed])
        if name in REAL:
            assert tensor_list_of([viewed]).norm(1, dtype == "float64", 1) == reference.norm([viewed], 1)
            assert tensor_list_of([viewed]).max_abs(1) == reference.norm([viewed], math.inf)


@given(views(), st.sampled_from([0.3, -2.0, 1e-40]), st.booleans())
def test_views_are_scaled_and_clamped(
    array_and_view: tuple[Any, Callable[[Any], Any]], factor: float, clamp: bool
) -> None:
    base, take_view = array_and_view
    stored, name = kernels.storage(base)
    view, expected = take_view(stored), base.copy()
    if clamp and name in REAL:
        take_view(expected)[...] = reference.clamped(take_view(base), -abs(factor), abs(factor))
        low, high = kernels.bounds(-abs(factor)), kernels.bounds(abs(factor))
        write = partial(kernels.array_list([(view, name)]).clamp, low, high, 1)
    else:
        take_view(expected)[...] = reference.scaled(take_view(base), factor)
        write = partial(kernels.array_list([(view, name)]).scale, factor, 1)
    result = np.empty_like(view)
    write([result])
    assert result.tobytes() == take_view(expected).tobytes()
    write([view])
    assert base.tobytes() == expected.tobytes()
    assert is_surrounding_unchanged(base)


# -- memory limits


@pytest.fixture(scope="module")
def pages() -> Any:
    if sys.platform == "win32":
        pytest.skip("about POSIX systems")
    size = mmap.PAGESIZE
    memory = mmap.mmap(-1, 12 * size)
    bytes_ = np.frombuffer(memory, np.uint8)
    for page in (0, 11):
        address = ctypes.c_void_p(bytes_.ctypes.data + page * size)
        assert ctypes.CDLL(None).mprotect(address, ctypes.c_size_t(size), 0) == 0
    return bytes_[size : 11 * size]


@pytest.mark.nightly
@pytest.mark.parametrize("gaps", [1, -2])
@pytest.mark.parametrize("name", REAL)
def test_kernels_read_and_write_only_the_given_memory(name: str, gaps: int, pages: Any) -> None:
    rng = np.random.default_rng(0)
    for length in [*range(1, 140), 4095, 4096, 4097]:
        array_of_numbers = reference.array(rng.standard_normal(length), name)
        for place in (slice(array_of_numbers.nbytes), slice(-array_of_numbers.nbytes, None)):
            view = pages[place].view(array_of_numbers.dtype)[::gaps]
            view[:] = array = array_of_numbers[::gaps].copy()
            for p in (1, 2):
                for method in sum_methods([array]):
                    assert power_sum([view], p, method) == power_sum([array], p, method)
            assert tensor_list_of([view]).max_abs(1) == float(np.abs(array).max())
            tensor_list_of([view]).scale_(0.5, 1)
            tensor_list_of([view]).clamp_(kernels.bounds(-0.25), kernels.bounds(0.25), 1)
            assert view.tobytes() == reference.clamped(reference.scaled(array, 0.5), -0.25, 0.25).tobytes()
