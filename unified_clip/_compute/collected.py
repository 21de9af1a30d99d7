"""The host path over gradients that the compiled kernels collect in one pass, without a NumPy array for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any, cast

import numpy as np

from .._core.backend import Backend, Parameters
from .._core.exact import Accumulator, nearest, rounded_norm
from .._core.path import CollectedPath
from .._core.types import Scalar, Tensor, Write
from .._native import KERNELS
from . import kernels, processor
from .host import HostPath
from .kernels import Array

NO_SCOPE = nullcontext()


class TensorListPath(HostPath):
    """The host path over a tensor list of the compiled kernels."""

    def __init__(self, backend: Backend, tensor_list: Any, is_per_tensor: bool = False) -> None:
        """`is_per_tensor`: one norm and one coefficient per tensor, in arrays; else one float each."""
        self._backend, self._list, self._is_per_tensor = backend, tensor_list, is_per_tensor
        self._tensors = tensor_list.tensors
        self.norm_dtype = "float64" if tensor_list.has_float64 else "float32"
        self._threads = 1 if tensor_list.is_short else backend.threads() or processor.default_threads()

    @cached_property
    def _dtypes(self) -> list[str]:  # type: ignore[override]  # few calls need dtypes or views
        return [self._backend.dtype(tensor) for tensor in self._tensors]

    @cached_property
    def _views(self) -> list[Array]:  # type: ignore[override]
        return [self._backend.host_view(tensor) for tensor in self._tensors]

    @property
    def _makes_results(self) -> bool:
        return self._list.makes_tensors or self._backend.takes_capsules

    def _to_tensors(self, results: list[Any]) -> list[Tensor]:
        if self._list.makes_tensors:
            return results
        return self._backend.placed(self._backend.from_capsules(results), zip(self._tensors))

    @property
    def tensors(self) -> list[Tensor]:
        return self._tensors

    def per_tensor(self) -> TensorListPath:
        return TensorListPath(self._backend, self._list, is_per_tensor=True)

    def part(self, group: Sequence[int]) -> TensorListPath:
        return TensorListPath(self._backend, self._list.part(list(group)))

    def norm(self, p: float) -> Scalar:
        if self._is_per_tensor:
            return self._tensor_norms()
        if p == math.inf:
            return self.max_abs(self.norm_dtype)
        if p not in (1, 2):
            with processor.ieee_arithmetic():
                return super().norm(p)
        return rounded_norm(partial(self.power_sum, int(p)), int(p), self.norm_dtype)

    def power_sum(self, p: int, exactly: bool) -> Accumulator:
        method = kernels.sum_method(exactly, blocks=self.norm_dtype == "float32")
        return kernels.native_sum(self._list.power_sum(p, method, self._threads), method)

    def max_abs(self, dtype: str) -> float:
        return nearest(self._list.max_abs(self._threads), dtype)

    def as_norm(self, n: Scalar) -> Tensor:
        if not self._list.makes_tensors:
            return super().as_norm(n)
        return self._list.number(n, self.norm_dtype == "float64")

    def scale(self, coef: Scalar) -> list[Tensor]:
        if self._is_per_tensor:
            return self._scale_per_tensor(coef)
        if self.is_one(coef):
            return self.unchanged()
        if not self._makes_results:
            return super().scale(coef)
        return self._to_tensors(self._list.scale(coef, self._threads))

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        if self.is_one(coef):
            return []
        if not self._is_per_tensor:
            return self._writes(lambda: self._list.scale_(coef, self._threads))
        _, changed, coefs = self._changed(coef)
        return self._writes(lambda: changed.scale_each_(coefs, self._threads), changed.tensors)

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        if not self._makes_results:
            return super().clamp(low, high)
        return self._to_tensors(self._list.clamp(kernels.bounds(low), kernels.bounds(high), self._threads))

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        lows, highs = kernels.bounds(low), kernels.bounds(high)
        return self._writes(lambda: self._list.clamp_(lows, highs, self._threads))

    def unchanged(self) -> list[Tensor]:
        if (self._backend.writable or self._backend.donates) and self._makes_results:
            return self._to_tensors(self._list.scale(1.0, self._threads))
        return super().unchanged()

    def is_one(self, coef: Scalar) -> bool:
        return super().is_one(coef) if self._is_per_tensor else bool(coef == 1.0)

    def scope(self) -> AbstractContextManager[Any]:
        """Return no context if subnormal numbers are kept: NumPy never warns about floats."""
        if self._is_per_tensor or not processor.keeps_subnormals():
            return processor.ieee_arithmetic()
        return NO_SCOPE

    def _tensor_norms(self) -> Array:
        """Return the 2-norm of each tensor."""
        norms = np.empty(len(self._tensors))
        wide = [index for index, code in enumerate(self._list.codes) if code == kernels.CODES["float64"]]
        narrow = np.setdiff1d(np.arange(len(norms)), wide)
        sums = self._list.part(narrow.tolist()).square_sums(self._threads)
        norms[narrow], doubt = kernels.certified_roots(*sums)
        for index in (*wide, *narrow[doubt].tolist()):
            norms[index] = self.part([index]).norm(2)
        return norms

    def _changed(self, coef: Array) -> tuple[list[int], Any, list[float]]:
        """Return the indices of coefficients other than 1, with their tensors and the coefficients."""
        indices = np.flatnonzero(coef != 1.0).tolist()
        return indices, self._list.part(indices), coef[indices].tolist()

    def _scale_per_tensor(self, coef: Array) -> list[Tensor]:
        """Return new tensors, and unchanged ones for a coefficient of 1."""
        indices, changed, coefs = self._changed(coef)
        if self._makes_results:
            products = TensorListPath(self._backend, changed)._to_tensors(changed.scale_each(coefs, self._threads))
        else:
            products = [self.part([index]).scale(factor)[0] for index, factor in zip(indices, coefs, strict=True)]
        results = dict(zip(indices, products, strict=True))
        return [results.get(index, tensor) for index, tensor in enumerate(self._tensors)]


def collector(
    tensor: type,
    parameter: type | None = None,
    methods: Sequence[tuple[str, bool]] = (),
    recording: tuple[str, bool] = ("", True),
) -> Any | None:
    """Return a collector of plain gradients, by DLPack's C interface or the buffer protocol; None without kernels.

    `methods`: methods of tensors, with their result for a plain one. `recording`: the attribute of a tensor, with its
    value for a recorded derivative.
    """
    exchange = getattr(tensor, "__dlpack_c_exchange_api__", None)
    try:
        return KERNELS and KERNELS.Collector(tensor, parameter, exchange, methods, recording)
    except ValueError:  # an unknown version of DLPack's interface
        return None


def path_over(backend: Backend, tensor_list: Any | None) -> TensorListPath | None:
    """Return a path over a tensor list; None for no list or an empty one."""
    return TensorListPath(backend, tensor_list) if tensor_list is not None and tensor_list.tensors else None


def collect_parameters(backend: Parameters, collector: Any | None, parameters: Sequence[Any]) -> CollectedPath | None:
    """Return a path over the gradients of parameters; None unless all are plain, or with one in `main_grad` only."""
    if collector is None:
        return None
    path = path_over(cast(Backend, backend), collector.of_parameters(parameters))
    if path is None or len(path.tensors) == len(parameters):
        return path
    return None if any(backend.main_gradient_of(parameter) is not None for parameter in parameters) else path
