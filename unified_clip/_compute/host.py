"""The host path, which reads and writes the memory of eager tensors. Results have the same bits on every framework."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any

import numpy as np

from .._core.backend import Backend, Route
from .._core.exact import FORMATS, Accumulator, nearest, rounded_norm
from .._core.path import Change, Path, Scalars
from .._core.types import Deferred, Scalar, Tensor, Write
from .._core.writers import nothing
from .._native import KERNELS
from . import checksums, kernels, processor
from .device import norm_dtype
from .kernels import Array


class HostScalars(Scalars):
    cos = staticmethod(math.cos)

    def asarray(self, value: Any) -> Scalar:
        return float(value)

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return np.where(condition, yes, no) if isinstance(condition, np.ndarray) else yes if condition else no

    def is_true(self, condition: Any) -> bool:
        if isinstance(condition, np.ndarray):
            return b"\0" not in condition.tobytes()  # of bools; NumPy's functions are slower for few of them
        return bool(condition)

    def to_float32(self, scalar: Scalar) -> Scalar:
        return nearest(scalar, "float32")

    def least(self, numbers: Scalar) -> Scalar:
        return float(numbers.min())


HOST = HostScalars()


class HostPath(Path):
    on_host = True
    xp = HOST

    def __init__(self, backend: Backend, tensors: Sequence[Tensor]) -> None:
        self._backend, self._tensors = backend, list(tensors)
        self._dtypes = [backend.dtype(tensor) for tensor in self._tensors]
        self._views = [backend.host_view(tensor) for tensor in self._tensors]
        self._list = kernels.array_list(self._parts)
        self.norm_dtype = norm_dtype(self._dtypes)
        self._threads = 1 if self._list.is_short else backend.threads() or processor.default_threads()
        self._has_complex = any(dtype.startswith("complex") for dtype in self._dtypes)

    @property
    def _parts(self) -> list[kernels.Part]:
        return list(zip(self._views, self._dtypes, strict=True))

    @property
    def framework(self) -> str:
        return self._backend.name

    def norm(self, p: float) -> Scalar:
        if p == 2 or (p == 1 and not self._has_complex):
            return self._list.norm(int(p), self.norm_dtype == "float64", self._threads)
        if p == 1:
            return rounded_norm(partial(self.power_sum, 1), 1, self.norm_dtype)
        if p == math.inf:
            return self.max_abs(self.norm_dtype)
        with processor.ieee_arithmetic():
            return kernels.general_norm(self._parts, p, self.norm_dtype, self._threads)

    def power_sum(self, p: int, exactly: bool) -> Accumulator:
        if p == 2 or not self._has_complex:
            return kernels.power_sum(self._list, p, self.norm_dtype, self._threads, exactly)
        return kernels.power_sum(self._magnitudes, p, "float64", self._threads, exactly)  # moduli are float64

    def max_abs(self, dtype: str) -> float:
        return nearest(self._magnitudes.max_abs(self._threads), dtype)

    @property
    def _magnitudes(self) -> Any:
        return kernels.array_list(kernels.magnitudes(self._parts)) if self._has_complex else self._list

    def checksum(self) -> int:
        return checksums.checksum(self._views)

    def relative_sum(self, p: float, top: float) -> tuple[float, float]:
        return kernels.relative_sum(kernels.magnitudes(self._parts), p, top)

    def slice_norms(self, axes: Sequence[int]) -> Scalar:
        return kernels.slice_norms(*self._parts[0], axes, self.norm_dtype, self._threads)

    def scale(self, coef: Scalar) -> list[Tensor]:
        if self.is_one(coef):
            return self.unchanged()
        if isinstance(coef, np.ndarray):  # one for each slice
            return self._new_arrays(partial(kernels.ArrayList(self._parts).scale, coef, self._threads))
        return self._products(coef)

    def _products(self, coef: float) -> list[Tensor]:
        products = self._backend.products(self._tensors, [coef])
        return self._new(partial(self._list.scale, coef, self._threads)) if products is None else products

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        if self.is_one(coef):
            return []
        is_array = isinstance(coef, np.ndarray)  # one for each slice
        arrays = kernels.ArrayList(self._parts) if is_array else self._list
        return self._writes(partial(arrays.scale_, coef, self._threads), lambda: self.scale(coef))

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        dtype = self._dtypes[0]
        return not bool(np.all(self._bound(low, dtype) <= self._bound(high, dtype)))

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and self._are_floats:
            return self._new(partial(self._list.clamp, kernels.bounds(low), kernels.bounds(high), self._threads))
        return self._new_arrays(partial(self._clamp_each, low, high))

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        write = partial(self._list.clamp_, kernels.bounds(low), kernels.bounds(high), self._threads)
        return self._writes(write, lambda: self.clamp(low, high))

    @property
    def _are_floats(self) -> bool:
        return FORMATS.keys() >= set(self._dtypes)

    def _clamp_each(self, low: Any, high: Any, results: Sequence[Array]) -> None:
        for (view, dtype), out in zip(self._parts, results, strict=True):
            kernels.clamp(view, dtype, self._bound(low, dtype), self._bound(high, dtype), out)

    def zeroed(self, results: list[Tensor], keep: Any) -> list[Tensor]:
        return results if keep else self._new_arrays(_fill_with_zeros)

    def prepare_zeroed(self, change: Change, keep: Any) -> list[Write]:
        if keep:
            return change.writes()
        views = [view for view in self._views if view.size]  # an empty array may be read-only
        return self._writes(partial(_fill_with_zeros, views), lambda: self.zeroed([], keep))

    def _writes(self, write: Callable[[], object], results: Callable[[], list[Tensor]]) -> list[Write]:
        return [Write(partial(self._backend.bump_versions, self._tensors), nothing), Write(write)]

    def unchanged(self) -> list[Tensor]:
        if not (self._backend.writable or self._backend.donates):
            return list(self._tensors)
        return self._products(1.0)

    def as_norm(self, n: Scalar) -> Tensor:
        return self._backend.placed([self._backend.norm_from_host(float(n), self.norm_dtype)], [self._tensors])[0]

    def is_one(self, coef: Scalar) -> bool:
        return coef == 1.0 if isinstance(coef, float) else bool(np.all(coef == 1.0))

    def is_finite(self, n: Scalar) -> bool | None:
        return bool(np.isfinite(n))

    def nonfinite_counts(self) -> list[tuple[Scalar, Scalar]]:
        decoded = [kernels.decode(*part) for part in self._parts]
        return [(int(np.isnan(values).sum()), int(np.isinf(values).sum())) for values in decoded]

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        return Deferred(
            lambda: [scalar if type(scalar) is float else np.asarray(scalar).tolist() for scalar in scalars]
        )

    def scope(self) -> AbstractContextManager[Any]:
        return processor.ieee_arithmetic()

    def _bound(self, bound: Any, dtype: str) -> Array:
        if self._backend.is_tensor(bound):
            return kernels.round_to(kernels.decode(self._backend.host_view(bound), self._backend.dtype(bound)), dtype)
        return np.asarray(nearest(bound, dtype)) if dtype in FORMATS else np.asarray(bound, dtype)

    def _new(self, compute: Callable[[list[Array]], object]) -> list[Tensor]:
        return self._new_arrays(compute)

    def _new_arrays(self, compute: Callable[[list[Array]], object]) -> list[Tensor]:
        new = np.empty_like if self._backend.writable else kernels.shareable_empty_like
        results = [new(view) for view in self._views]
        compute(results)
        return self._backend.placed(self._backend.list_from_host(results, self._dtypes), zip(self._tensors))


def _fill_with_zeros(arrays: Sequence[Array]) -> None:
    for array in arrays:
        array.fill(0)


# -- the choice of path


ROUTE = Route(
    "host", lambda backend, inputs: backend.fits_host(inputs), lambda backend, inputs: HostPath(backend, inputs.tensors)
)


def kernels_in_graphs() -> bool:
    """Return whether compiled graphs on a CPU can call the compiled kernels."""
    choice = os.environ.get("UNIFIED_CLIP_GRAPH", "")
    if choice not in ("", "framework"):
        raise ValueError(f"UNIFIED_CLIP_GRAPH is {choice!r}. Set it to 'framework', or leave it unset")
    return not choice and not forced_path()


def forced_path() -> bool:
    """Return whether UNIFIED_CLIP_PATH=framework is set. Tests set it to run the device path on a CPU."""
    choice = os.environ.get("UNIFIED_CLIP_PATH", "")
    if choice not in ("", "framework"):
        raise ValueError(f"UNIFIED_CLIP_PATH is {choice!r}. Set it to 'framework', or leave it unset")
    return choice == "framework"


# -- tensors that the compiled kernels have collected from a list


NO_SCOPE = nullcontext()


class TensorListPath(HostPath):
    _has_complex = False
    _are_floats = True

    def __init__(self, backend: Backend, tensor_list: Any) -> None:
        self._backend, self._list, self._tensors = backend, tensor_list, tensor_list.tensors
        self.norm_dtype = "float64" if tensor_list.has_float64 else "float32"
        self._threads = 1 if tensor_list.is_short else backend.threads() or processor.default_threads()

    @cached_property
    def _dtypes(self) -> list[str]:  # type: ignore[override]  # few calls need dtypes or views
        return [self._backend.dtype(tensor) for tensor in self._tensors]

    @cached_property
    def _views(self) -> list[Array]:  # type: ignore[override]
        return [self._backend.host_view(tensor) for tensor in self._tensors]

    @property
    def tensors(self) -> list[Tensor]:
        return self._tensors

    def per_tensor(self) -> PerTensorPath:
        return PerTensorPath(self)

    _square_sums: tuple[list[float], list[float]] | None = None
    """(sums of squares, relative errors) that `per_tensor` has computed."""

    def norm(self, p: float) -> Scalar:
        if p == 2 and self._square_sums is not None:
            (sums, errors), self._square_sums = self._square_sums, None
            norm = kernels.certified_root(math.fsum(sums), max(errors, default=0.0) + 2.0**-52)
            if norm is not None:
                return norm
        return super().norm(p)

    def part(self, group: Sequence[int]) -> TensorListPath:
        return TensorListPath(self._backend, self._list.part(list(group)))

    def as_norm(self, n: Scalar) -> Tensor:
        if not self._list.makes_tensors:
            return super().as_norm(n)
        return self._list.number(n, self.norm_dtype == "float64")

    def scope(self) -> AbstractContextManager[Any]:
        return NO_SCOPE if processor.keeps_subnormals() else processor.ieee_arithmetic()

    def _new(self, compute: Callable[..., Any]) -> list[Tensor]:
        if self._list.makes_tensors:
            results: list[Tensor] = compute()
            return results
        if not self._backend.takes_capsules:
            return self._new_arrays(compute)
        return self._backend.placed(self._backend.from_capsules(compute()), zip(self._tensors))


class PerTensorPath(TensorListPath):
    def __init__(self, full_list: TensorListPath) -> None:
        super().__init__(full_list._backend, full_list._list)
        self._whole = full_list

    def norm(self, p: float) -> Array:
        if not self._list.has_float64:
            return self._norms()
        is_wide = np.array(list(self._list.codes)) == kernels.CODES["float64"]
        norms = np.empty(len(is_wide))
        if not is_wide.all():
            norms[~is_wide] = self.part(np.flatnonzero(~is_wide).tolist()).per_tensor()._norms()
        for index in np.flatnonzero(is_wide).tolist():
            norms[index] = self.part([index]).norm(2)
        return norms

    def _norms(self) -> Array:
        self._whole._square_sums = self._list.square_sums(self._threads)
        norms, doubt = kernels.certified_roots(*self._whole._square_sums)
        for index in doubt:
            norms[index] = self.part([index]).norm(2)
        return norms

    def scale(self, coef: Scalar) -> list[Tensor]:
        if isinstance(coef, float):
            return super().scale(coef)
        indices, changed, coefs = self._changed(coef)
        products = self._backend.products(changed._tensors, coefs)
        if products is None:
            products = changed._new(partial(changed._list.scale_each, coefs, self._threads))
        results = dict(zip(indices, products, strict=True))
        return [results.get(index, tensor) for index, tensor in enumerate(self._tensors)]

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        if isinstance(coef, float):
            return super().prepare_scale(coef)
        _, changed, coefs = self._changed(coef)
        return changed._writes(partial(changed._list.scale_each_, coefs, self._threads), changed.unchanged)

    def scope(self) -> AbstractContextManager[Any]:
        return processor.ieee_arithmetic()

    def _changed(self, coef: Array) -> tuple[list[int], TensorListPath, list[float]]:
        indices = np.flatnonzero(coef != 1.0).tolist()
        return indices, self.part(indices), coef[indices].tolist()


def collector(
    tensor: type,
    parameter: type | None = None,
    methods: Sequence[tuple[str, bool]] = (),
    recording: tuple[str, bool] = ("", True),
) -> Any | None:
    """Return a compiled object that collects the tensors of a list, or None if no such object is available.

    methods: Tuples (tensor method, the result of the method for a tensor that the kernels support).
    recording: (tensor attribute, the value of the attribute for a tensor that records a derivative).
    """
    exchange = getattr(tensor, "__dlpack_c_exchange_api__", None)
    try:
        return KERNELS and KERNELS.Collector(tensor, parameter, exchange, methods, recording)
    except ValueError:  # this version of DLPack's interface is unknown
        return None


def path_over(backend: Backend, tensor_list: Any | None) -> TensorListPath | None:
    return TensorListPath(backend, tensor_list) if tensor_list is not None and tensor_list.tensors else None
