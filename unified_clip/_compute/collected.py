"""The host path for tensors that the compiled kernels have collected from a list."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any

import numpy as np

from .._core.backend import Backend
from .._core.types import Scalar, Tensor, Write
from .._native import KERNELS
from . import kernels, processor
from .host import HostPath
from .kernels import Array

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
