"""The kernels for NVIDIA GPUs, run on an emulated GPU: exact norms, the rule's coefficients, products and clamps."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from support import emulated_gpu, reference
from support.tiers import quick

from unified_clip import _native
from unified_clip._compute import cuda, kernels
from unified_clip._compute.host import HOST
from unified_clip._core import rule
from unified_clip._core.exact import nearest

if _native.KERNELS is None:
    pytest.skip("the compiled kernels are not built", allow_module_level=True)

NATIVE: Any = _native.KERNELS
CODES = kernels.CODES
ORDERS = {1: 1, 2: 2, math.inf: 0}
LISTS = {
    "float32": ["float32"], "bfloat16": ["bfloat16"], "float16": ["float16"], "float64": ["float64"],
    "mixed": ["float32", "bfloat16", "float16"], "mixed with float64": ["float64", "float16", "float32"],
}  # fmt: skip
CHUNK = emulated_gpu.THREADS * 8 * 16
LENGTHS = (1, 3, 17, CHUNK // 4 - 1, CHUNK // 4, CHUNK // 4 + 1, CHUNK + 7, 3 * CHUNK)
"""Numbers of elements around those of one chunk, and of several."""

FAST, SLOW = 90, 89
"""Compute capabilities of GPUs with fast and with slow float64."""


@pytest.fixture(params=[FAST, SLOW])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return started(monkeypatch, request.param)


def started(monkeypatch: pytest.MonkeyPatch, capability: int = FAST, **options: Any) -> Any:
    monkeypatch.setenv("EMULATED_CAPABILITY", str(capability))
    emulated_gpu.install(monkeypatch)
    for name, value in options.items():
        monkeypatch.setattr(cuda, name, value)
    return cuda._launcher()


def unaligned(values: Any, dtype: str, shift: int) -> np.ndarray:
    """Return an array that begins `shift` elements after an aligned address."""
    numbers = np.zeros(len(values) + 16, reference.NUMPY[dtype])
    start = -numbers.ctypes.data % 16 // numbers.itemsize + shift
    numbers[start:][: len(values)] = reference.array(values, dtype)
    return numbers[start:][: len(values)]


def arrays(dtypes: Sequence[str], scale: float = 1.0, lengths: Sequence[int] = LENGTHS) -> list[np.ndarray]:
    source = np.random.default_rng(0)
    return [
        unaligned(source.normal(size=length) * scale, dtypes[index % len(dtypes)], index % 4)
        for index, length in enumerate(lengths)
    ]


def listed(values: Sequence[np.ndarray]) -> Any:
    codes = "".join(CODES[array.dtype.name] for array in values)
    parts = [1 + array.dtype.name.startswith("complex") for array in values]
    sizes = [array.size * count for array, count in zip(values, parts, strict=True)]
    return NATIVE.DeviceList(0, [array.ctypes.data for array in values], sizes, codes)


def sums_for(gpu: Any, device_list: Any, each: bool = False) -> np.ndarray:
    return np.full(gpu.numbers(device_list, each), np.nan)


def total_norm(gpu: Any, values: Sequence[np.ndarray], p: float) -> float:
    device_list = listed(values)
    sums, norm = sums_for(gpu, device_list), np.zeros(1)
    rounded = np.zeros(1, np.float64 if device_list.has_float64 else np.float32)
    gpu.norm(device_list, ORDERS[p], False, *(array.ctypes.data for array in (sums, norm, rounded)), 0)
    assert np.array_equal(norm, rounded.astype(np.float64), equal_nan=True)
    return float(norm[0])


def norms(gpu: Any, values: Sequence[np.ndarray]) -> list[float]:
    device_list = listed(values)
    sums, result = sums_for(gpu, device_list, True), np.zeros(len(values))
    gpu.norm(device_list, 2, True, sums.ctypes.data, result.ctypes.data, 0, 0)
    return result.tolist()


# -- norms

TIES = [
    ([2.0**24, *[2.0**12] * 6, 3.0], "float32", 2.0**24 + 4), ([2.0**53, *[2.0**27] * 3, 3.0], "float64", 2.0**53 + 4),
]  # fmt: skip
"""Squares whose sum is just above the square of a midpoint, and its correctly rounded root."""


@pytest.mark.parametrize(("values", "dtype", "expected"), TIES, ids=["float32", "float64"])
def test_sums_just_above_a_midpoint(gpu: Any, values: list[float], dtype: str, expected: float) -> None:
    array = np.array(values, dtype)
    assert reference.norm([array]) == expected
    assert total_norm(gpu, [array], 2) == expected


def midpoint(even: bool) -> list[float]:
    """Return integers, which bfloat16 has exactly, whose 1-norm is a midpoint between two float32."""
    return [2.0**24, 1.0] if even else [2.0**24, 2.0, 1.0]


@pytest.mark.parametrize("even", [True, False])
def test_midpoints_round_to_even(gpu: Any, even: bool) -> None:
    for dtype in ("float32", "bfloat16"):
        array = unaligned(midpoint(even), dtype, 0)
        assert total_norm(gpu, [array], 1) == 2.0**24 + (0 if even else 4) == reference.norm([array], 1)


@pytest.mark.parametrize("wide", [True, False])
def test_exact_midpoints_of_roots_round_to_even(gpu: Any, wide: bool) -> None:
    """The square of an integer between two norms, as a sum of few squares."""
    digits, dtype = (53, "float64") if wide else (24, "float32")
    for odd in (1, 3, 5):
        target = Fraction(2**digits + odd)  # between two norms of `digits` binary digits
        rest, values = target * target, []
        while rest and len(values) < 12:
            root = nearest(float(Fraction(math.isqrt(int(rest)))), dtype)
            while Fraction(root) ** 2 > rest:
                root = float(np.nextafter(np.dtype(dtype).type(root), 0))
            values.append(root)
            rest -= Fraction(root) ** 2
        assert not rest
        array = np.array(values, dtype)
        assert total_norm(gpu, [array], 2) == reference.norm([array]) == nearest(target, dtype)


@pytest.mark.parametrize("capability", [FAST, SLOW])
@pytest.mark.parametrize("even", [True, False])
def test_a_doubtful_fast_sum_is_computed_again(even: bool, capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass writes its sums only if the first one leaves doubt. It tells a sum just above from a midpoint."""
    gpu = started(monkeypatch, capability, FAST_FROM=0)
    for numbers, is_doubtful in ((midpoint(even), True), ([*midpoint(even), 2.0**-24], True), ([2.0**24, 4.0], False)):
        device_list = listed([unaligned(numbers, "bfloat16", 0)])
        sums, norm = sums_for(gpu, device_list), np.zeros(1)
        gpu.norm(device_list, 1, False, sums.ctypes.data, norm.ctypes.data, 0, 0)
        fast, precise = np.array_split(sums.reshape(-1, 3), 2)
        assert not np.isnan(fast[0]).any()
        assert np.isnan(precise).all() == (not is_doubtful)
        assert norm[0] == nearest(sum(numbers), "float32")


@pytest.mark.parametrize("capability", [FAST, SLOW])
def test_fast_sums_are_correctly_rounded(capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = started(monkeypatch, capability, FAST_FROM=0)
    for scale in (1.0, 1e-20, 1e18):
        values = arrays(["bfloat16"], scale)
        for p in (1, 2):
            assert total_norm(gpu, values, p) == reference.norm(values, p)


# -- the rule

NUMBERS = [0.0, 5e-324, 1e-7, 0.3, 1.0 - 2**-53, 1.0, 1.5, 7.25, 1e20, 1.7e308, math.inf, math.nan]


@pytest.mark.parametrize("convention", [rule.PYTORCH, rule.PADDLE, rule.TENSORFLOW_GLOBAL])
@pytest.mark.parametrize("threshold", [0.0, 1e-8, 0.3, 1.0, 1.0 + 1e-6, 7.25, 1e300])
def test_coefficients_have_the_bits_of_the_rule(
    threshold: float, convention: rule.ClipConvention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The norm of a number is its magnitude, so its product shows the coefficient."""
    gpu = started(monkeypatch)
    for number in NUMBERS:
        values = [np.array([number]), np.array([0.0])]
        expected = rule.coefficient(HOST, HOST.asarray(number), threshold, convention)
        with np.errstate(all="ignore"):
            products = [array * expected for array in values]
        device_list, rounded = listed(values), np.zeros(1)
        sums = sums_for(gpu, device_list)
        gpu.clip(device_list, 2, threshold, *convention, sums.ctypes.data, rounded.ctypes.data, [], 0)
        assert np.array_equal(rounded, [number], equal_nan=True)
        for array, product in zip(values, products, strict=True):
            assert np.array_equal(array.view(np.int64), product.view(np.int64)) or np.isnan(product).all()


# -- products and clamped values


def on_host(values: Sequence[np.ndarray], change: Any) -> list[np.ndarray]:
    copies = [array.copy() for array in values]
    views = [array.view(np.uint16) if array.dtype.name == "bfloat16" else array for array in copies]
    change(NATIVE.TensorList.of_arrays(views, "".join(CODES[array.dtype.name] for array in copies), writable=True))
    return copies


def assert_same(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Compare bits. All NaN are equal."""
    for one, other in zip(actual, expected, strict=True):
        integers = {2: np.int16, 4: np.int32, 8: np.int64}[one.itemsize]
        assert np.array_equal(np.isnan(one), np.isnan(other))
        assert np.array_equal(one.view(integers)[~np.isnan(one)], other.view(integers)[~np.isnan(other)])


# -- launches


@pytest.fixture(params=["12000", "13000"])
def any_driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Before CUDA 12.1, the parameters of a launch have 4 KB."""
    monkeypatch.setenv("EMULATED_DRIVER", request.param)
    return started(monkeypatch)


@pytest.mark.parametrize("length", quick([1, 240, 241, 2032, 2100], 241, 2100))
def test_long_lists_take_several_launches(any_driver: Any, length: int) -> None:
    values = arrays(["float32"], lengths=[1 + index % 5 for index in range(length)])
    most = 240 if any_driver.driver_version < 12010 else 2032
    launches = emulated_gpu.variable("emulated_launches")
    launches.value = 0
    assert total_norm(any_driver, values, 2) == reference.norm(values)
    assert launches.value == math.ceil(length / most) + 1
    assert norms(any_driver, values) == [reference.norm([array]) for array in values]
    expected = on_host(values, lambda tensors: tensors.scale_(0.5, 1))
    results, half = [np.zeros_like(array) for array in values], np.array([0.5])
    any_driver.scale(listed(values), half.ctypes.data, False, [array.ctypes.data for array in results], 0)
    assert_same(results, expected)


def test_sums_of_several_devices_are_finished_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, values = started(monkeypatch), arrays(LISTS["mixed"])
    parts, depths = [], []
    for half in (values[:4], values[4:]):
        device_list = listed(half)
        sums = sums_for(gpu, device_list)
        count, depth = gpu.add(device_list, 2, sums.ctypes.data, 0)
        parts.append(sums[: 3 * count])
        depths.append(depth)
    sums, norm, rounded = np.concatenate(parts), np.zeros(1), np.zeros(1, np.float32)
    gpu.finish(
        1, 2, False, sums.ctypes.data, len(sums) // 3, max(depths) + len(sums), norm.ctypes.data, rounded.ctypes.data, 0
    )
    assert norm[0] == rounded[0] == reference.norm(values)


def test_a_kernel_is_loaded_once_and_in_the_relaxed_capture_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = emulated_gpu.install(monkeypatch)
    monkeypatch.setenv("UNIFIED_CLIP_CUDA_CACHE", "0")
    capture = emulated_gpu.variable("emulated_capture")
    monkeypatch.setattr(capture, "value", 1, raising=False)
    for _ in range(2):
        assert total_norm(cuda._launcher(), [np.ones(4, np.float32)], 2) == 2
    assert compiler.compiled == 2
    capture.value = 0


# -- which GPUs, and the cache


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("EMULATED_CAPABILITY", "61", "the GPU has the compute capability 6.1"),
        ("driver", "libcuda-missing.so.1", "libcuda-missing"),
    ],
)
def test_a_device_that_lacks_something_warns_once(
    setting: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated_gpu.install(monkeypatch)
    if setting == "driver":
        monkeypatch.setattr(cuda, "DRIVER", value)
    else:
        monkeypatch.setenv(setting, value)
    with pytest.warns(Warning, match=reason):
        assert cuda.launcher(0) is None
    assert cuda.launcher(0) is None


def test_kernels_are_kept_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    compiler = emulated_gpu.install(monkeypatch)
    monkeypatch.setenv("UNIFIED_CLIP_CUDA_CACHE", str(tmp_path / "cache"))
    options = [*cuda.PROBE, f"-DTHREADS={cuda.THREADS}"]
    code = cuda.compiled(compiler, 90, options)
    assert cuda.compiled(compiler, 90, options) == code
    assert compiler.compiled == 1
    assert cuda.compiled(compiler, 80, options) == code  # another file
    (file, other) = sorted((tmp_path / "cache").iterdir())
    file.write_bytes(file.read_bytes()[:-1])
    other.write_bytes(b"")
    assert cuda.compiled(compiler, 90, options) == code
    assert cuda.compiled(compiler, 80, options) == code
    assert compiler.compiled == 4
    monkeypatch.setattr(cuda, "MAX_CACHED", 1)
    cuda.compiled(compiler, 75, options)
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize(("name", "value"), [("UNIFIED_CLIP_CUDA", "yes"), ("UNIFIED_CLIP_TRITON", "1")])
def test_settings_that_are_wrong_or_removed(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {name: value})
    if name == "UNIFIED_CLIP_CUDA":
        with pytest.raises(ValueError, match="UNIFIED_CLIP_CUDA is 'yes'"):
            cuda._is_enabled()
    else:
        with pytest.warns(Warning, match="UNIFIED_CLIP_CUDA=1"):
            assert not cuda._is_enabled()
