"""The host path: eager tensors of any framework as raw memory, through NumPy views.

All frameworks share this code, so the same numbers have the same bits on all of them. Subnormal numbers are kept.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from .._core.backend import Backend
from .._core.exact import FORMATS, Accumulator, nearest, rounded_norm
from .._core.path import Path
from .._core.types import Deferred, GraphCallback, Scalar, Tensor, Write
from .._core.writers import nothing
from . import checksums, kernels, processor
from .device import norm_dtype
from .kernels import Array
from .scalars import HOST


class HostPath:
    """`Path` over NumPy views of the tensors' memory."""

    on_host = True
    xp = HOST

    def __init__(self, backend: Backend, tensors: Sequence[Tensor], views: Sequence[Array]) -> None:
        self._backend = backend
        self._tensors = list(tensors)
        self._dtypes = [backend.dtype(tensor) for tensor in self._tensors]
        self._views = list(views)
        self.norm_dtype = norm_dtype(self._dtypes)
        self._threads = backend.threads() or processor.default_threads()

    @property
    def framework(self) -> str:
        return self._backend.name

    def norm(self, p: float) -> Scalar:
        if p in (1, 2):
            return rounded_norm(partial(self.power_sum, int(p)), int(p), self.norm_dtype)
        return kernels.general_norm(self._magnitudes(p), p, self.norm_dtype, self._threads)

    def power_sum(self, p: int, exactly: bool) -> Accumulator:
        return kernels.power_sum(self._magnitudes(p), p, self.norm_dtype, exactly=exactly, threads=self._threads)

    def max_abs(self, dtype: str) -> float:
        return kernels.max_abs(self._magnitudes(math.inf), dtype, self._threads)

    def checksum(self) -> int:
        return checksums.checksum(self._views)

    def relative_sum(self, p: float, top: float) -> tuple[float, float]:
        return kernels.relative_sum(self._magnitudes(p), p, top)

    def general_root(self, total: tuple[float, float], p: float, top: float, dtype: str) -> float:
        return kernels.general_root(total, p, top, dtype)

    def _magnitudes(self, p: float) -> list[tuple[Array, str]]:
        return [part for view, dtype in self._buffers() for part in kernels.real_parts(view, dtype, p)]

    def slice_norms(self, axes: Sequence[int], groups: Tensor | None = None) -> Scalar:
        view, dtype = self._views[0], self._dtypes[0]
        if groups is None:
            return kernels.slice_norms(view, dtype, axes, self.norm_dtype, self._threads)
        rows = self._backend.host_view(groups)
        return kernels.grouped_slice_norms(view, dtype, axes, rows, self.norm_dtype, self._threads)

    def scale(self, coef: Scalar) -> list[Tensor]:
        if self.is_one(coef):
            return self.unchanged()
        return self._new(lambda results: kernels.scale(self._views, self._dtypes, coef, results, self._threads))

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        if self.is_one(coef):
            return []
        views, dtypes = self._to_be_written()
        return self._writes(lambda: kernels.scale(views, dtypes, coef, views, self._threads))

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        dtype = self._dtypes[0]
        return not bool(np.all(self._bound(low, dtype) <= self._bound(high, dtype)))

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        return self._new(lambda results: self._clamping(self._views, self._dtypes, low, high, results)())

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        views, dtypes = self._to_be_written()
        return self._writes(self._clamping(views, dtypes, low, high, views))

    def _writes(self, write: Callable[[], object], tensors: Sequence[Tensor] | None = None) -> list[Write]:
        """Return a write into raw memory, after one that bumps the versions of automatic differentiation."""
        written = self._tensors if tensors is None else tensors
        return [Write(lambda: self._backend.bump_versions(written), nothing), Write(write)]

    def _to_be_written(self) -> tuple[list[Array], list[str]]:
        """Return all views but empty ones, which may be read-only."""
        writable = [(view, dtype) for view, dtype in self._buffers() if view.size]
        return [view for view, _ in writable], [dtype for _, dtype in writable]

    def zeroed(self, results: list[Tensor], keep: Any) -> list[Tensor]:
        return results if keep else self._new(_fill_with_zeros)

    def prepare_write(self, results: list[Tensor]) -> list[Write]:
        sources = [self._backend.host_view(result) for result in results]
        return self._writes(lambda: _copy_all(self._views, sources))

    def prepare_zero(self, keep: Any) -> list[Write]:
        views = self._to_be_written()[0]
        return [] if keep else self._writes(lambda: _fill_with_zeros(views))

    def unchanged(self) -> list[Tensor]:
        if not (self._backend.writable or self._backend.donates):
            return list(self._tensors)
        return self._new(lambda results: list(map(np.copyto, results, self._views)))

    def as_norm(self, n: Scalar) -> Tensor:
        return self._backend.placed([self._backend.norm_from_host(float(n), self.norm_dtype)], [self._tensors])[0]

    def is_one(self, coef: Scalar) -> bool:
        return bool(np.all(coef == 1.0))

    def is_finite(self, n: Scalar) -> bool | None:
        return bool(np.isfinite(n))

    def nonfinite_counts(self) -> list[tuple[int, int]]:
        decoded = [kernels.decode(view, dtype) for view, dtype in self._buffers()]
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

    def _clamping(
        self, views: Sequence[Array], dtypes: Sequence[str], low: Any, high: Any, results: Sequence[Array]
    ) -> Callable[[], None]:
        """Return a function that writes clamped values. The bounds are read first, since that may fail."""
        if kernels.clamps_list([*views, *results], dtypes, low, high):
            return lambda: kernels.clamp_all(views, dtypes, low, high, results, self._threads)
        bounds = [(self._bound(low, dtype), self._bound(high, dtype)) for dtype in dtypes]

        def clamp() -> None:
            for view, dtype, (least, most), out in zip(views, dtypes, bounds, results, strict=True):
                kernels.clamp(view, dtype, least, most, out)

        return clamp

    def _bound(self, bound: Any, dtype: str) -> Array:
        """Return a number or a tensor rounded once to the dtype; bfloat16 as float32."""
        if self._backend.is_tensor(bound):
            return kernels.round_to(kernels.decode(self._backend.host_view(bound), self._backend.dtype(bound)), dtype)
        return np.asarray(nearest(bound, dtype)) if dtype in FORMATS else np.asarray(bound, dtype)

    def _buffers(self) -> Iterable[tuple[Array, str]]:
        return zip(self._views, self._dtypes, strict=True)

    def _new(self, compute: Callable[[list[Array]], Any]) -> list[Tensor]:
        new = np.empty_like if self._backend.writable else kernels.shareable_empty_like
        results = [new(view) for view in self._views]
        compute(results)
        return self._backend.placed(self._backend.list_from_host(results, self._dtypes), zip(self._tensors))


def _copy_all(views: Sequence[Array], results: Sequence[Array]) -> None:
    for view, result in zip(views, results, strict=True):
        if view.size:
            np.copyto(view, result)


def _fill_with_zeros(arrays: Sequence[Array]) -> None:
    for array in arrays:
        array.fill(0)


# -- the choice of path


def kernels_in_graphs() -> bool:
    """Return whether compiled graphs may call the compiled kernels, where a framework supports it.

    UNIFIED_CLIP_GRAPH=framework keeps graphs free of them.
    """
    choice = os.environ.get("UNIFIED_CLIP_GRAPH", "")
    if choice not in ("", "framework"):
        raise ValueError(f"UNIFIED_CLIP_GRAPH is {choice!r}. Set it to 'framework', or leave it unset")
    return not choice and not forced_path()


def forced_path(*own: str) -> str:
    """Return the device path that UNIFIED_CLIP_PATH forces, for tests on a CPU; empty if it is unset.

    That is 'framework', or one of the framework's `own`.
    """
    choice = os.environ.get("UNIFIED_CLIP_PATH", "")
    known = ("framework", *own)
    if choice not in ("", *known):
        settings = " or ".join(map(repr, known))
        raise ValueError(f"UNIFIED_CLIP_PATH is {choice!r}. Set it to {settings}, or leave it unset")
    return choice
