"""The host path, which reads and writes the memory of eager tensors. Results have the same bits on every framework."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from .._core.backend import Backend, Route
from .._core.exact import FORMATS, Accumulator, nearest, rounded_norm
from .._core.path import Change, Path
from .._core.types import Deferred, GraphCallback, Scalar, Tensor, Write
from .._core.writers import nothing
from . import checksums, kernels, processor
from .device import norm_dtype
from .kernels import Array
from .scalars import HOST


class HostPath:
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

    def slice_norms(self, axes: Sequence[int], groups: Tensor | None = None) -> Scalar:
        view, dtype = self._parts[0]
        if groups is None:
            return kernels.slice_norms(view, dtype, axes, self.norm_dtype, self._threads)
        rows = self._backend.host_view(groups)
        return kernels.grouped_slice_norms(view, dtype, axes, rows, self.norm_dtype, self._threads)

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

    def nonfinite_counts(self) -> list[tuple[int, int]]:
        decoded = [kernels.decode(*part) for part in self._parts]
        return [(int(np.isnan(values).sum()), int(np.isinf(values).sum())) for values in decoded]

    def count_nonfinite(self) -> tuple[Scalar, Scalar]:
        nan, inf = zip((0, 0), *self.nonfinite_counts(), strict=True)
        return float(sum(nan)), float(sum(inf))

    def in_graph(self, scalars: Sequence[Scalar]) -> bool:
        return False

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        return Deferred(
            lambda: [scalar if type(scalar) is float else np.asarray(scalar).tolist() for scalar in scalars]
        )

    def graph_callback(self) -> GraphCallback | None:
        return None

    def per_tensor(self) -> Path | None:
        return None

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


def kernels_in_graphs(by_default: bool = True) -> bool:
    """Return whether compiled graphs on a CPU can call the compiled kernels."""
    choice = os.environ.get("UNIFIED_CLIP_GRAPH", "")
    if choice not in ("", "framework", "kernels"):
        raise ValueError(f"UNIFIED_CLIP_GRAPH is {choice!r}. Set it to 'framework' or 'kernels', or leave it unset")
    return (by_default if not choice else choice == "kernels") and not forced_path()


def forced_path() -> bool:
    """Return whether UNIFIED_CLIP_PATH=framework is set. Tests set it to run the device path on a CPU."""
    choice = os.environ.get("UNIFIED_CLIP_PATH", "")
    if choice not in ("", "framework"):
        raise ValueError(f"UNIFIED_CLIP_PATH is {choice!r}. Set it to 'framework', or leave it unset")
    return choice == "framework"
