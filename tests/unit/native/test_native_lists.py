"""The compiled kernels on arrays with gaps, complex arrays and collected lists. Also clamping, and the memory of
results."""

from __future__ import annotations

import ctypes
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unified_clip.numpy as uc
from unified_clip import _native
from unified_clip._backends import numpy
from unified_clip._compute import host, kernels
from unified_clip._core.exact import nearest
from unified_clip._core.writers import make_all

if _native.KERNELS is None:
    pytest.skip("the compiled kernels are not built", allow_module_level=True)

NATIVE: Any = _native.KERNELS
PIECE = 16 * 4096  # numbers from which on several threads share a list
RNG = np.random.default_rng(7)


def listed(arrays: list[np.ndarray], codes: str) -> Any:
    return NATIVE.TensorList.of_arrays(arrays, codes)


def list_of(*arrays: np.ndarray) -> Any:
    return numpy.COLLECTOR.of_tensors(list(arrays), False, False)


def test_a_list_is_short_until_two_threads_share_it() -> None:
    assert list_of(np.ones(PIECE), np.ones(PIECE - 1)).is_short
    assert not list_of(np.ones(PIECE), np.ones(PIECE)).is_short


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("low", "high"), [(-0.3, 0.7), (0.0, math.inf), (-math.inf, 1e-41), (-7e4, 7e4), (0.1, 0.1)])
def test_clamping_is_what_numpy_does(dtype: str, low: float, high: float) -> None:
    numbers = np.concatenate(
        [RNG.standard_normal(5000), [0.0, -0.0, 1e-41, -1e-41, 65504, -65504, math.inf, -math.inf]]
    )
    array = np.concatenate([kernels.encode(numbers.astype(np.float32), dtype).ravel()])
    array = numbers if dtype == "float64" else array if dtype != "float32" else numbers.astype(np.float32)
    nan = kernels.encode(np.full(3, np.nan, np.float32), dtype).astype(array.dtype)
    array = np.concatenate([array, nan])
    expected, result = np.empty_like(array), np.empty_like(array)
    kernels.clamp(array, dtype, *(np.asarray(nearest(bound, dtype)) for bound in (low, high)), expected)
    arrays = listed([array], kernels.CODES[dtype])
    arrays.clamp(kernels.bounds(low), kernels.bounds(high), 2, [result])
    assert result.tobytes() == expected.tobytes()
    arrays.clamp_(kernels.bounds(low), kernels.bounds(high), 2)
    assert array.tobytes() == expected.tobytes()


def test_times_one_changes_no_bit() -> None:
    signalling = np.array([0x7F800001, 0xFFC12345, 0x80000000, 1], np.uint32).view(np.float32)
    result = np.zeros_like(signalling)
    listed([signalling], "f").scale(1.0, 1, [result])
    assert result.tobytes() == signalling.tobytes()


# -- slices

HALF_WAY = [16777216.0, 5792.0, 84.0, 8.0, 7.0]
"""Their norm is 2**24 + 1, which lies half-way between two float32."""


LOSES = np.zeros(4096, np.float32)
"""The norm is just above this midpoint. A float64 sum loses the small squares one after the other."""

LOSES[0] = 2.0**24
LOSES[1:7] = [5792, 84, 10, 3, 1, 1]
LOSES[32::32] = 0.174


def slice_norms_one_by_one(view: Any, axes: tuple[int, ...]) -> Any:
    kept = tuple(axis for axis in range(view.ndim) if axis not in axes)
    norms = np.empty([view.shape[axis] for axis in kept])
    for index in np.ndindex(norms.shape):
        one = np.transpose(view, (*kept, *axes))[index]
        norms[index] = kernels.array_list([(one, view.dtype.name)]).norm(2, False, 1)
    return np.expand_dims(norms, axes)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("axes", [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_the_norm_of_each_slice_is_correctly_rounded(dtype: str, axes: tuple[int, ...], threads: int) -> None:
    base = (
        RNG.standard_normal((7, 6, 5)) + (1j * RNG.standard_normal((7, 6, 5)) if dtype == "complex64" else 0)
    ).astype(dtype)
    for view in (base, base.transpose(2, 0, 1), base[::-1, :, ::2], base[:, 1:4], np.broadcast_to(base[:1], (4, 6, 5))):
        result = kernels.slice_norms(view, dtype, axes, "float32", threads)
        np.testing.assert_array_equal(result, slice_norms_one_by_one(view, axes))


@pytest.mark.parametrize("axis", [0, 1])
def test_threads_share_long_slices_and_many(axis: int) -> None:
    view = RNG.standard_normal((300, 1000)).astype(np.float32)
    result = kernels.slice_norms(view, "float32", (axis,), "float32", 3)
    np.testing.assert_array_equal(result, slice_norms_one_by_one(view, (axis,)))


def test_the_norm_of_a_slice_half_way_is_rounded_as_the_exact_one() -> None:
    view = np.array([[*HALF_WAY, 0.0], [*HALF_WAY, 2.0**-10]], np.float32)
    assert kernels.slice_norms(view, "float32", (1,), "float32").tolist() == [[16777216.0], [16777218.0]]
    assert kernels.slice_norms(view.T, "float32", (0,), "float32").tolist() == [[16777216.0, 16777218.0]]
    assert kernels.slice_norms(LOSES[None], "float32", (1,), "float32").tolist() == [[16777218.0]]


def test_slices_of_nothing_have_norm_zero() -> None:
    assert kernels.slice_norms(np.ones((3, 0), np.float32), "float32", (1,), "float32").tolist() == [[0.0]] * 3
    assert kernels.slice_norms(np.ones((0, 3), np.float32), "float32", (1,), "float32").shape == (0, 1)


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_sums_of_squares_of_each_array_do_not_depend_on_gaps(dtype: str) -> None:
    base = (100 * RNG.standard_normal((40, 61, 3))).round().astype(dtype)
    views = [base, base.T, base[::2, :, 1:], base[::-1]]
    sums, rel_error = listed(views, kernels.CODES[dtype] * 4).square_sums(2)
    assert sums == [float((np.abs(view.astype(np.complex128)) ** 2).sum().round()) for view in views]
    assert max(rel_error) < 2**-39


# -- lists found in one go


COLLECTOR: Any = NATIVE.Collector(np.ndarray, None, None, [], ("", True))


def test_dense_real_arrays_are_found() -> None:
    given = [np.ones(3, np.float32), None, np.ones((2, 3)).T, np.array(2, np.float16), np.ones((4, 4, 4))[1]]
    tensors = COLLECTOR.of_tensors(given, False, True)
    assert [tensor is array for tensor, array in zip(tensors.tensors, given[:1] + given[2:], strict=True)] == [True] * 4
    assert tensors.has_float64
    assert tensors.max_abs(1) == 2


@pytest.mark.parametrize(
    "other",
    [
        np.ones((4, 4), np.float32)[:, ::2],
        np.ones(4, np.float32)[::-1],
        np.ones(0, np.float32),
        np.ones(2, np.complex64),
        np.ones(2, np.int32),
        np.ones(2, ">f4"),
        np.ma.masked_array([1.0, 2.0]),
        np.float32(1.0),
        1.0,
        [np.ones(2)],
    ],
    ids=["gaps", "backwards", "nothing", "complex", "integers", "byte order", "masked", "scalar", "number", "nested"],
)
def test_anything_else_is_for_somebody_who_looks_closer(other: Any) -> None:
    assert COLLECTOR.of_tensors([np.ones(2, np.float32), other], False, False) is None


def test_arrays_to_be_written_are_each_in_a_place_of_their_own() -> None:
    base = np.ones(10, np.float32)
    read_only = np.ones(3)
    read_only.flags.writeable = False
    for given in ([base[:6], base[5:]], [base, base], [read_only]):
        assert COLLECTOR.of_tensors(given, False, True) is None
        assert COLLECTOR.of_tensors(given, False, False) is not None
    assert COLLECTOR.of_tensors([base[:5], base[5:]], False, True) is not None


def test_each_norm_is_correctly_rounded() -> None:
    given = [
        np.array(HALF_WAY, np.float32),
        np.array([*HALF_WAY, 2.0**-10], np.float32),
        np.array([3.0, 4.0]),
        LOSES,
        RNG.standard_normal(100_000).astype(np.float32),
        np.array([3e38, 3e38], np.float32),
        np.array([1e-45], np.float32),
        np.array([np.nan, 1.0], np.float16),
        np.array([np.inf, 1.0], np.float16),
        RNG.standard_normal(100_000),
    ]
    path = host.TensorListPath(numpy.BACKEND, COLLECTOR.of_tensors(given, False, False)).per_tensor()
    with path.scope():
        norms = path.norm(2)
        expected = [kernels.array_list([(a, a.dtype.name)]).norm(2, a.dtype == np.float64, 1) for a in given]
    assert norms[:4].tolist() == [16777216.0, 16777218.0, 5.0, 16777218.0]
    np.testing.assert_array_equal(norms, expected)


def test_each_is_scaled_by_its_own_coefficient() -> None:
    given = [np.array([3.0, 4.0], np.float32), np.array([0.5]), np.array([6.0, 8.0], np.float16)]
    path = host.TensorListPath(numpy.BACKEND, COLLECTOR.of_tensors(given, False, True)).per_tensor()
    coefs = np.array([0.5, 1.0, 0.25])
    scaled = path.scale(coefs)
    assert scaled[1] is given[1]
    make_all(path.prepare_scale(coefs))
    for results in (scaled, given):
        assert [array.tolist() for array in results] == [[1.5, 2.0], [0.5], [1.5, 2.0]]


class Parameter:
    is_leaf = True

    def __init__(self) -> None:
        self.grad = np.ones(2, np.float32)


def excluded() -> Any:
    parameter = Parameter()
    parameter.need_clip = False  # type: ignore[attr-defined]
    return parameter


def failing(error: BaseException) -> Any:
    class FailingParameter(Parameter):
        @property
        def need_clip(self) -> bool:
            raise error

    return FailingParameter()


def computing(error: Exception) -> Any:
    class ComputingParameter(Parameter):
        def __getattr__(self, name: str) -> bool:
            raise error

    return ComputingParameter()


@pytest.mark.parametrize(
    ("parameter", "is_plain"),
    [
        (Parameter(), True),
        (excluded(), False),
        (failing(AttributeError("no attribute")), True),
        (failing(RuntimeError("no value")), False),
        (computing(AttributeError("no attribute")), True),
        (computing(RuntimeError("no value")), False),
    ],
    ids=["absent", "false", "property, absent", "property, error", "__getattr__, absent", "__getattr__, error"],
)
def test_parameters_whose_need_clip_is_false_or_fails_are_not_plain(parameter: Any, is_plain: bool) -> None:
    collector = NATIVE.Collector(np.ndarray, type(parameter), None, [], ("", True))
    collected_lists = [collector.of_parameters([parameter]), collector.of_param_grads([(parameter, parameter.grad)])]
    assert [tensors is not None for tensors in collected_lists] == [is_plain, is_plain]


def test_an_interruption_of_need_clip_ends_the_call() -> None:
    parameter = failing(KeyboardInterrupt())
    collector = NATIVE.Collector(np.ndarray, type(parameter), None, [], ("", True))
    with pytest.raises(KeyboardInterrupt):
        collector.of_parameters([parameter])


def test_a_later_version_of_the_exchange_interface_has_no_collector() -> None:
    class Deferred:
        versions = (ctypes.c_uint32 * 64)(2)

    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    Deferred.__dlpack_c_exchange_api__ = new(ctypes.addressof(Deferred.versions), b"dlpack_exchange_api", None)
    assert host.collector(Deferred) is None
    assert host.collector(np.ndarray) is not None


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8", ">c8", ">c16"])
def test_arrays_in_the_other_byte_order_are_read_and_written_as_they_are(dtype: str) -> None:
    def given() -> list[Any]:
        return [np.array([3.0, 4.0], dtype), np.array([0.0], np.float32), np.array([12.0], dtype.lstrip(">"))]

    clipped, norm = uc.clip_by_global_norm(given(), 6.5)
    written = given()
    assert norm == uc.clip_grad_norm_(written, 6.5) == uc.get_total_norm(given()) == 13.0
    for results in (clipped, written):
        assert [array.dtype for array in results] == [array.dtype for array in given()]
        np.testing.assert_allclose(np.concatenate([array.real for array in results]), [1.5, 2.0, 0.0, 6.0], rtol=1e-3)
    np.testing.assert_allclose(uc.clip_by_norm(given()[0], 1.0, axes=0), [0.6, 0.8], rtol=1e-3)
    assert uc.get_total_norm(given(), "inf") == 12.0
    if "f" in dtype:
        assert uc.clip_by_value(given()[0], -1.0, 3.5).tolist() == [3.0, 3.5]


def test_an_empty_array_may_be_read_only() -> None:
    empty, array = np.zeros(0), np.array([3.0, 4.0])
    empty.flags.writeable = False
    uc.clip_grad_norm_([array, empty], 1.0)
    uc.clip_grad_value_([array, empty], 0.7)
    np.testing.assert_allclose(array, [0.6, 0.7], rtol=1e-5)


# -- the memory of results


def found(*lengths: int) -> Any:
    """Return a list whose results are capsules. A capsule that nobody takes releases its memory."""
    return COLLECTOR.of_tensors([np.ones(n, np.float32) for n in lengths], False, False)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def with_nothing_kept() -> int:
    """Return the resident memory after calls whose results have been released."""
    few = found(2_000_000)
    for _ in range(12):
        few.scale(0.5, 2)
    return resident()


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here")


@needs_proc
def test_memory_of_results_is_used_again_and_given_back() -> None:
    tensors, size = found(3_000_000, 5, 600_000, 700_000), 17_200_000
    before = with_nothing_kept()
    for _ in range(50):
        tensors.scale(0.5, 2)
    assert resident() - before < 1.5 * size
    parameters = [tensors.scale(0.5, 2) for _ in range(4)]
    assert resident() - before > 2.5 * size
    del parameters
    assert with_nothing_kept() - before < 0.5 * size


@needs_proc
def test_a_short_result_that_is_kept_keeps_no_long_one() -> None:
    tensors = found(3_000_000, 5)
    before = with_nothing_kept()
    kept = []
    for _ in range(20):
        long, short = tensors.scale(0.5, 1)
        kept.append(short)
        del long
    assert resident() - before < 10 * 12_000_000


def release(capsule: Any) -> None:
    """Release a capsule as its new owner does, without the interpreter lock."""
    get, rename = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_SetName
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    managed = get(capsule, b"dltensor")
    rename(capsule, USED)
    offset = ctypes.sizeof(ctypes.c_void_p) * 7  # past the tensor and the context
    function = ctypes.c_void_p.from_address(managed + offset).value
    assert function
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(managed)


USED = b"used_dltensor"


def test_results_may_be_released_by_any_thread() -> None:
    tensors = found(600_000, 700_000, 5)

    def make_and_release(_: int) -> None:
        for _ in range(15):
            for capsule in tensors.scale(0.5, 1):
                release(capsule)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make_and_release, range(4)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_of_fork_makes_results_too() -> None:
    tensors = found(600_000, 700_000)
    parameters = tensors.scale(0.5, 2)
    child = os.fork()
    if not child:
        del parameters
        results = [np.from_dlpack(Exporter(capsule)) for capsule in tensors.scale(0.25, 2)]
        os._exit(0 if all((array == 0.25).all() for array in results) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all((np.from_dlpack(Exporter(capsule)) == 0.5).all() for capsule in parameters)


class Exporter:
    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0
