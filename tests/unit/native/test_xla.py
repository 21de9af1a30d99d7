"""The function that XLA calls, called as XLA does: with a frame of buffers, results and attributes."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p, cast, pointer, sizeof
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from unified_clip._native import KERNELS

if KERNELS is None:
    pytest.skip("this build has no compiled kernels", allow_module_level=True)

DTYPES = {
    "int64": 5, "float16": 10, "float32": 11, "float64": 12, "complex64": 15, "bfloat16": 16, "complex128": 18,
}  # fmt: skip
METADATA, EXECUTE, SCALAR = 1, 3, 3


class Version(Structure):
    _fields_ = [("size", c_size_t), ("extensions", c_void_p), ("major", c_int), ("minor", c_int)]


class Metadata(Structure):
    _fields_ = [("size", c_size_t), ("version", Version), ("traits", c_uint32)]


class Extension(Structure):
    _fields_ = [("size", c_size_t), ("type", c_int), ("next", c_void_p), ("metadata", POINTER(Metadata))]


class ErrorArguments(Structure):
    _fields_ = [("size", c_size_t), ("extensions", c_void_p), ("message", c_char_p), ("code", c_int)]


CREATE_ERROR = ctypes.CFUNCTYPE(c_void_p, POINTER(ErrorArguments))


class Api(Structure):
    _fields_ = [
        ("size", c_size_t), ("extensions", c_void_p), ("version", Version), ("internal", c_void_p),
        ("create_error", CREATE_ERROR),
    ]  # fmt: skip


class Buffer(Structure):
    _fields_ = [
        ("size", c_size_t), ("extensions", c_void_p), ("dtype", c_int), ("data", c_void_p), ("rank", c_int64),
        ("dimensions", POINTER(c_int64)),
    ]  # fmt: skip


class Items(Structure):
    _fields_ = [
        ("size", c_size_t), ("extensions", c_void_p), ("count", c_int64), ("types", POINTER(c_int)),
        ("items", POINTER(c_void_p)),
    ]  # fmt: skip


class Name(Structure):
    _fields_ = [("text", c_char_p), ("length", c_size_t)]


class Scalar(Structure):
    _fields_ = [("dtype", c_int), ("value", c_void_p)]


class Attributes(Structure):
    _fields_ = [
        ("size", c_size_t), ("extensions", c_void_p), ("count", c_int64), ("types", POINTER(c_int)),
        ("names", POINTER(POINTER(Name))), ("items", POINTER(c_void_p)),
    ]  # fmt: skip


class Frame(Structure):
    _fields_ = [
        ("size", c_size_t), ("extensions", c_void_p), ("api", POINTER(Api)), ("context", c_void_p), ("stage", c_int),
        ("arguments", Items), ("results", Items), ("attributes", Attributes), ("future", c_void_p),
    ]  # fmt: skip


def handler(capsule: Any) -> Any:
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    return ctypes.CFUNCTYPE(c_void_p, POINTER(Frame))(address(capsule, None))


class Call:
    def __init__(
        self, arrays: Sequence[Any], result: Any, attributes: Mapping[str, Any], capsule: Any = KERNELS.xla_norm
    ) -> None:
        self._handle = handler(capsule)
        results = result if isinstance(result, list) else [result]
        self.kept: list[Any] = []
        self.error: tuple[int, str] | None = None
        self._create_error = CREATE_ERROR(self._keep_error)
        api = Api(sizeof(Api), None, Version(), None, self._create_error)
        self.frame = Frame(
            sizeof(Frame), None, pointer(api), None, EXECUTE, self._items(arrays), self._items(results),
            self._attributes(attributes),
        )  # fmt: skip
        self.kept.append(api)

    def run(self) -> None:
        failed = self._handle(ctypes.byref(self.frame))
        assert bool(failed) == (self.error is not None)

    def _keep_error(self, arguments: Any) -> int:
        self.error = arguments.contents.code, arguments.contents.message.decode()
        return 1

    def _items(self, arrays: Sequence[Any]) -> Items:
        buffers = [
            Buffer(
                sizeof(Buffer), None, DTYPES[array.dtype.name], array.ctypes.data, array.ndim,
                (c_int64 * array.ndim)(*array.shape),
            )
            for array in arrays
        ]  # fmt: skip
        self.kept += [*arrays, *buffers]
        types = (c_int * len(buffers))(*[1] * len(buffers))
        places = (c_void_p * len(buffers))(*[ctypes.addressof(buffer) for buffer in buffers])
        return Items(sizeof(Items), None, len(buffers), types, places)

    def _attributes(self, attributes: Mapping[str, Any]) -> Attributes:
        names = [Name(name.encode(), len(name)) for name in attributes]
        values = [c_int64(value) if isinstance(value, int) else ctypes.c_double(value) for value in attributes.values()]
        dtypes = [DTYPES["int64" if isinstance(value, int) else "float64"] for value in attributes.values()]
        scalars = [Scalar(dtype, ctypes.addressof(value)) for dtype, value in zip(dtypes, values, strict=True)]
        self.kept += [names, values, scalars]
        count = len(names)
        return Attributes(
            sizeof(Attributes), None, count, (c_int * count)(*[SCALAR] * count),
            (POINTER(Name) * count)(*map(pointer, names)),
            (c_void_p * count)(*[ctypes.addressof(scalar) for scalar in scalars]),
        )  # fmt: skip


def norms(arrays: Sequence[Any], shape: Sequence[int] = (), **attributes: Any) -> Any:
    result = np.full(shape, -1.0)
    call = Call(arrays, result, {"per_tensor": 0, "p": 2, "threads": 2} | attributes)
    call.run()
    assert call.error is None
    return result.tolist()


def test_a_norm_is_rounded_to_float32_unless_an_array_is_float64() -> None:
    assert norms([np.array([1.0, 1.0], "float32")]) == float(np.float32(math.sqrt(2)))
    assert norms([np.array([1.0], "float32"), np.array([1.0])]) == math.sqrt(2)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_long_arrays(threads: int) -> None:
    array = np.random.default_rng(0).standard_normal(300_001).astype("float32")
    exact = math.sqrt(math.fsum(float(value) ** 2 for value in array))
    assert norms([array], threads=threads) == float(np.float32(exact))


@pytest.mark.parametrize(
    ("arrays", "attributes", "message"),
    [
        ([np.zeros(2, "int64")], {"per_tensor": 0, "p": 2, "threads": 1}, "take floating-point and complex numbers"),
        ([np.zeros(2)], {"per_tensor": 0, "p": 3, "threads": 1}, "p is 1 or 2"),
        ([np.zeros(2)], {"per_tensor": 0, "threads": 1}, "need the int64 attribute p"),
        ([np.zeros(2)], {"per_tensor": 0, "p": 2.0, "threads": 1}, "need the int64 attribute p"),
    ],
)
def test_calls_that_do_not_fit_return_an_error(arrays: list[Any], attributes: dict[str, Any], message: str) -> None:
    call = Call(arrays, np.zeros(()), attributes)
    call.run()
    assert call.error is not None
    code, text = call.error
    assert code == 3
    assert message in text


def test_the_result_has_to_be_float64() -> None:
    call = Call([np.zeros(2)], np.zeros((), "float32"), {"per_tensor": 0, "p": 2, "threads": 1})
    call.run()
    assert call.error == (3, "unified_clip's norm returns one float64 array")


def scaled(arrays: list[Any], coefs: Any) -> list[Any]:
    results = [np.full_like(array, 7) for array in arrays]
    call = Call([*arrays, coefs], results, {"threads": 2}, KERNELS.xla_scale)
    call.run()
    assert call.error is None
    return results


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "int64"])
def test_products_of_every_dtype_with_one_coefficient_or_with_one_for_each(dtype: str) -> None:
    dtype = getattr(ml_dtypes, dtype, dtype)
    arrays = [np.array([[3.0, -4.0]], dtype), np.zeros((0, 2), dtype), np.array(8.0, dtype)]
    assert [each.tolist() for each in scaled(arrays, np.array([0.5]))] == [[[1.5, -2.0]], [], 4.0]
    assert [each.tolist() for each in scaled(arrays, np.array([0.5, 1.0, 0.25]))] == [[[1.5, -2.0]], [], 2.0]


def test_a_product_is_rounded_once_keeps_subnormals_and_copies_every_bit_with_a_coefficient_of_1() -> None:
    smallest = np.array([1e-40, 3.0], "float32")
    (product,) = scaled([smallest], np.array([0.5]))
    assert product.tolist() == [float(np.float32(5e-41)), 1.5]
    quiet = np.array([0x7FC12345], "uint32").view("float32")
    assert scaled([quiet], np.array([1.0]))[0].tobytes() == quiet.tobytes()


@pytest.mark.parametrize(
    ("arrays", "coefs", "results", "message"),
    [
        ([], np.ones(1), [], "a float64 array after the arrays"),
        ([np.ones(2)], np.ones(1), [], "a float64 array after the arrays"),
        ([np.ones(2)], np.ones(1, "float32"), [np.ones(2)], "a float64 array after the arrays"),
        ([np.ones(2)], np.ones(2), [np.ones(2)], "one coefficient, or one for each array"),
        ([np.ones(2, "int64")], np.ones(1), [np.ones(2, "int64")], "take floating-point and complex numbers"),
        ([np.ones(2)], np.ones(1), [np.ones(3)], "the shape and dtype of its array"),
        ([np.ones(2)], np.ones(1), [np.ones(2, "float32")], "the shape and dtype of its array"),
    ],
)
def test_scaling_that_does_not_fit_returns_an_error(
    arrays: list[Any], coefs: Any, results: list[Any], message: str
) -> None:
    call = Call([*arrays, coefs], results, {"threads": 1}, KERNELS.xla_scale)
    call.run()
    assert call.error is not None
    assert message in call.error[1]


def test_it_computes_in_no_other_stage_and_states_the_version_of_the_interface() -> None:
    result = np.full((), -1.0)
    call = Call([np.ones(4)], result, {"per_tensor": 0, "p": 2, "threads": 1})
    for stage in range(EXECUTE):
        call.frame.stage = stage
        call.run()
    assert result == -1.0
    metadata = Metadata(sizeof(Metadata), Version(sizeof(Version), None, -1, -1), 0)
    extension = Extension(sizeof(Extension), METADATA, None, pointer(metadata))
    call.frame.extensions = cast(pointer(extension), c_void_p)
    call.run()
    assert (metadata.version.major, metadata.version.minor) == (0, 1)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "int64"])
def test_every_dtype(dtype: str) -> None:
    arrays = [
        np.array([[3.0, -4.0]], ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype),
        np.zeros((0, 2), "float32"),
    ]
    assert norms(arrays) == 5.0
    assert norms(arrays[:1], p=1) == 7.0


def test_one_norm_for_each_array_and_for_each_member_of_a_batch() -> None:
    batch = np.array([[3.0, 4.0], [6.0, 8.0], [0.0, 0.0]], "float32")
    other = np.array([[12.0], [0.0], [1.0]], "float32")
    assert norms([batch, other], [3]) == [13.0, 10.0, 1.0]
    assert norms([batch, other], [3, 2], per_tensor=1) == [[5.0, 12.0], [10.0, 0.0], [0.0, 1.0]]
    assert norms([batch[0], other[0]], [2], per_tensor=1) == [5.0, 12.0]
    assert norms([np.zeros((0, 5), "float32")], [0]) == []
