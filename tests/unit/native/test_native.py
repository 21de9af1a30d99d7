"""The compiled kernels: exact results for all kinds of numbers, with NumPy's bits, for any number of threads and any
memory."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
import threading
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import unified_clip
from unified_clip import _native
from unified_clip._compute import kernels, processor
from unified_clip._core.exact import UNIT, nearest

if _native.KERNELS is None:
    pytest.skip("the compiled kernels are not built", allow_module_level=True)

NATIVE: Any = _native.KERNELS
STORED = {"e": np.float16, "B": np.uint16, "f": np.float32, "d": np.float64}
NAMES = {code: name for name, code in kernels.CODES.items()}


def stored(values: Any, code: str) -> Any:
    numbers = [nearest(float(value), NAMES[code]) for value in np.ravel(values)]
    return kernels.encode(np.array(numbers, np.float32 if code == "B" else STORED[code]), NAMES[code])


def listed(arrays: list[Any], codes: str) -> Any:
    return NATIVE.TensorList.of_arrays(arrays, codes)


def total(arrays: list[Any], codes: str, p: int, how: str = "exact", threads: int = 1) -> Fraction:
    text, nan, infinite = listed(arrays, codes).power_sum(p, how, threads)
    assert not nan
    assert not infinite
    return Fraction(int.from_bytes(text, "little"), 2**UNIT)


def test_many_short_buffers_are_no_longer_a_block_than_one_long_one() -> None:
    """A float64 sum that begins with 1 loses each square of 2**-27. Together, 40,000 squares exceed the error bound of
    a block."""
    arrays = [np.ones(1, np.float32), *[np.full(1, 2.0**-27, np.float32)] * 40_000]
    exact = 1 + 40_000 * Fraction(1, 2**54)
    got = total(arrays, "f" * len(arrays), 2, how="blocks")
    assert abs(got - exact) <= exact / 2**40


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_do_not_show(threads: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n).astype(np.float32) for n in (1, 300_000, 5, 4096, 150_001)]
    text = listed(arrays, "fffff").power_sum(2, "exact", threads)
    assert text == listed(arrays, "fffff").power_sum(2, "exact", 1)
    for is_float64 in (False, True):
        alone = listed(arrays, "fffff").norm(2, is_float64, 1)
        assert listed(arrays, "fffff").norm(2, is_float64, threads) == alone
    assert listed(arrays, "fffff").max_abs(threads) == max(float(np.abs(a).max()) for a in arrays)
    results = [np.empty_like(a) for a in arrays]
    listed(arrays, "fffff").scale(0.3, threads, results)
    for array, result in zip(arrays, results, strict=True):
        assert np.array_equal(result, array * np.float32(0.3))


@pytest.mark.parametrize("code", STORED)
def test_what_is_not_finite_is_told(code: str) -> None:
    for values, nan, infinite in (([1.0, math.nan], True, False), ([math.inf, 1.0], False, True)):
        array = stored(np.nan_to_num(values), code)
        special = {"e": {True: 0x7E00, False: 0x7C00}, "B": {True: 0x7FC0, False: 0x7F80}}
        if code in special:
            array.view(np.uint16)[int(nan)] = special[code][nan]
        else:
            array[:] = values
        for how in ("exact", "compensated", "blocks") if code != "d" else ("exact", "compensated"):
            assert listed([array], code).power_sum(2, how, 1)[1:] == (nan, infinite)
        got = listed([array, np.ones(3, np.float32)], code + "f").max_abs(1)
        assert math.isnan(got) if nan else got == math.inf


@pytest.mark.parametrize("place", [0, 150_000, 299_999])
def test_what_is_not_finite_is_told_by_every_thread(place: int) -> None:
    for value in (math.nan, math.inf):
        array = np.ones(300_000, np.float32)
        array[place] = value
        for how in ("exact", "compensated", "blocks"):
            flags = listed([array], "f").power_sum(2, how, 3)[1:]
            assert flags == (math.isnan(value), math.isinf(value))
        got = listed([array], "f").max_abs(3)
        assert math.isnan(got) if math.isnan(value) else got == value


@pytest.mark.skipif(processor.LIBM is None, reason="the processor's mode is set as on x86-64 Linux")
@pytest.mark.parametrize("threads", [1, 2])
def test_subnormal_numbers_are_kept_in_a_thread_that_flushes_them(threads: int) -> None:
    array, result = np.full(200_000, 1.0, np.float32), np.empty(200_000, np.float32)
    tiny = np.full(200_000, 1e-40, np.float32)
    expected = listed([tiny], "f").power_sum(2, "exact", 1)
    saved, flushing = ctypes.create_string_buffer(32), ctypes.create_string_buffer(32)
    processor.LIBM.fegetenv(saved)
    control = int.from_bytes(saved.raw[28:32], "little") | 0x8040  # flush results, take subnormal numbers for zero
    flushing.raw = saved.raw[:28] + control.to_bytes(4, "little")
    processor.LIBM.fesetenv(flushing)
    try:
        listed([array], "f").scale(1e-40, threads, [result])
        output = listed([tiny], "f").power_sum(2, "exact", threads)
    finally:
        processor.LIBM.fesetenv(saved)
    assert output == expected
    assert result.view(np.uint32).tolist() == tiny.view(np.uint32).tolist()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("coef", [1.0, 0.5, 0.3, 1e-3, 6e-8, 1e-30, 0.0, -0.7, math.inf, math.nan])
@pytest.mark.parametrize("count", [2**16, 2**16 - 1, 3])
def test_every_16_bit_number_is_scaled_as_numpy_does(name: str, coef: float, count: int) -> None:
    numbers = np.arange(2**16, dtype=np.uint16)[-count:].view(np.float16 if name == "float16" else np.uint16)
    expected, got = np.empty_like(numbers), np.empty_like(numbers)
    with processor.ieee_arithmetic():
        kernels._scale(numbers, name, coef, expected)
    listed([numbers], kernels.CODES[name]).scale(coef, 2, [got])
    same_numbers(got, expected, name)
    listed([numbers], kernels.CODES[name]).scale(coef, 2, [numbers])
    same_numbers(numbers, expected, name)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_coefficient_whose_nan_has_other_bits_makes_every_16_bit_number_nan(name: str) -> None:
    numbers = np.arange(2**16, dtype=np.uint16).view(np.float16 if name == "float16" else np.uint16)
    coef = np.uint64(0x7FFFFFFFFFFFFFFF).view(np.float64).item()
    listed([numbers], kernels.CODES[name]).scale(coef, 2, [numbers])
    assert np.isnan(kernels.decode(numbers, name)).all()


def same_numbers(got: Any, expected: Any, name: str) -> None:
    a, b = (kernels.decode(np.ascontiguousarray(each), name) for each in (got, expected))
    parts = [(a.real, b.real), (a.imag, b.imag)] if name.startswith("complex") else [(a, b)]
    for x, y in parts:
        assert np.array_equal(x, y, equal_nan=True)
        assert np.array_equal(np.signbit(x[~np.isnan(x)]), np.signbit(y[~np.isnan(y)]))


# -- threads that a training job can live with


def test_the_lock_is_released() -> None:
    array = np.ones(30_000_000, np.float32)
    ticks = []
    done = threading.Event()

    def tick() -> None:
        while not done.wait(0.001):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    listed([array], "f").power_sum(2, "exact", 1)
    done.set()
    thread.join()
    assert len(ticks) > 10


def test_no_thread_is_left_behind() -> None:
    listed([np.ones(500_000, np.float32)], "f").power_sum(2, "exact", 4)
    if os.path.isdir("/proc/self/task"):  # noqa: PTH112
        before = len(os.listdir("/proc/self/task"))  # noqa: PTH208
        listed([np.ones(500_000, np.float32)], "f").power_sum(2, "exact", 4)
        assert len(os.listdir("/proc/self/task")) <= before  # noqa: PTH208


@pytest.mark.parametrize(("setting", "threads"), [("3", 3), ("2,1", 2), ("", None), ("0", None), ("many", None)])
def test_the_number_of_threads_follows_openmps_setting(
    monkeypatch: pytest.MonkeyPatch, setting: str, threads: int | None
) -> None:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    assert processor.default_threads() == (threads or usable)


# -- with the extension and without


def loaded(setting: str, code: str = "import unified_clip; print(unified_clip.native_available())") -> Any:
    environment = os.environ | {"UNIFIED_CLIP_NATIVE": setting, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["PYTHONSAFEPATH"] = "1"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


def test_kernels_in_graphs_are_asked_for_by_the_name_of_a_framework() -> None:
    assert not unified_clip.native_available("numpy")
    with pytest.raises(ValueError, match=r"there is no framework 'onnx'. Use one of jax, mlx, numpy, paddle,"):
        unified_clip.native_available("onnx")


def test_the_setting_leaves_it_out_or_requires_it() -> None:
    assert unified_clip.native_available()
    assert [loaded(setting).stdout for setting in ("", "0", "1")] == ["True\n", "False\n", "True\n"]
    assert "UNIFIED_CLIP_NATIVE is 'yes'. Set it to 0 or 1" in loaded("yes").stderr


def test_a_required_extension_that_is_not_there_is_an_import_error() -> None:
    code = "import sys; sys.modules['unified_clip._native._kernels'] = None\nimport unified_clip.numpy"
    assert loaded("", code).returncode == 0
    failed = loaded("1", code)
    assert "ImportError: UNIFIED_CLIP_NATIVE=1 needs the compiled kernels, but they cannot be loaded" in failed.stderr
