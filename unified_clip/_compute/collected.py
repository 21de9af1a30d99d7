"""The host path over gradients that the compiled kernels have found in one go, without an array for each."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any

import numpy as np

from .._core.exact import Accumulator, nearest, rounded_norm
from .._core.path import WholePath
from .._core.types import Scalar, Tensor, Write
from .._native import KERNELS
from . import kernels, processor
from .host import HostBackend, HostPath
from .kernels import Array

NOTHING_TO_CHANGE = nullcontext()


class TensorListPath(HostPath):
    """The same over gradients that the compiled kernels have found in one go, without an array for each."""

    def __init__(self, backend: HostBackend, tensor_list: Any) -> None:
        self._backend, self._list = backend, tensor_list
        self._tensors = tensor_list.tensors
        self.norm_dtype = "float64" if tensor_list.has_float64 else "float32"
        self._threads = backend.threads() or processor.default_threads()

    @cached_property
    def _dtypes(self) -> list[str]:  # type: ignore[override]  # most calls need neither
        return [self._backend.dtype(tensor) for tensor in self._tensors]

    @cached_property
    def _views(self) -> list[Array]:  # type: ignore[override]
        return [self._backend.host_view(tensor) for tensor in self._tensors]

    @property
    def _makes_results(self) -> bool:
        return self._list.makes_tensors or self._backend.takes_capsules

    def _made(self, results: list[Any]) -> list[Tensor]:
        if self._list.makes_tensors:
            return results
        return self._backend.placed(self._backend.from_capsules(results), zip(self._tensors))


class GlobalNormPath(TensorListPath):
    """One norm and one coefficient, both a float."""

    @property
    def tensors(self) -> list[Tensor]:
        return self._tensors

    def each(self) -> PerTensorPath:
        return PerTensorPath(self._backend, self._list)

    def part(self, group: range) -> GlobalNormPath:
        return GlobalNormPath(self._backend, self._list.part(list(group)))

    def norm(self, p: float) -> Scalar:
        if p == math.inf:
            return self.greatest(self.norm_dtype)
        if p not in (1, 2):
            with processor.ieee_arithmetic():
                return super().norm(p)
        return rounded_norm(partial(self.power_sum, int(p)), int(p), self.norm_dtype)

    def power_sum(self, p: int, exactly: bool) -> Accumulator:
        how = kernels.how_to_add(exactly, blocks=self.norm_dtype == "float32")
        return kernels.native_sum(self._list.power_sum(p, how, self._threads), how)

    def greatest(self, dtype: str) -> float:
        return nearest(self._list.max_abs(self._threads), dtype)

    def as_norm(self, n: Scalar) -> Tensor:
        if not self._list.makes_tensors:
            return super().as_norm(n)
        return self._list.number(n, self.norm_dtype == "float64")

    def scale(self, coef: Scalar) -> list[Tensor]:
        if self.is_one(coef):
            return self.unchanged()
        if not self._makes_results:
            return super().scale(coef)
        return self._made(self._list.scale(coef, self._threads))

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        return [] if self.is_one(coef) else self._writes(lambda: self._list.scale_(coef, self._threads))

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        if not self._makes_results:
            return super().clamp(low, high)
        return self._made(self._list.clamp(kernels.bounds(low), kernels.bounds(high), self._threads))

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        lows, highs = kernels.bounds(low), kernels.bounds(high)
        return self._writes(lambda: self._list.clamp_(lows, highs, self._threads))

    def unchanged(self) -> list[Tensor]:
        if (self._backend.writable or self._backend.donates) and self._makes_results:
            return self._made(self._list.scale(1.0, self._threads))
        return super().unchanged()

    def is_one(self, coef: Scalar) -> bool:
        return bool(coef == 1.0)

    def scope(self) -> AbstractContextManager[Any]:
        """Nothing here makes NumPy warn, so that only the treatment of subnormal numbers may have to change."""
        return NOTHING_TO_CHANGE if processor.keeps_subnormals() else processor.ieee_arithmetic()


class PerTensorPath(TensorListPath):
    """A norm and a coefficient for each gradient: arrays of them."""

    def norm(self, p: float) -> Scalar:
        norms = np.empty(len(self._tensors))
        wide = [index for index, code in enumerate(self._list.codes) if code == kernels.CODES["float64"]]
        narrow = np.setdiff1d(np.arange(len(norms)), wide)
        sums = self._list.part(narrow.tolist()).square_sums(self._threads)
        norms[narrow], doubt = kernels.certified_roots(*sums)
        for index in (*wide, *narrow[doubt].tolist()):
            norms[index] = GlobalNormPath(self._backend, self._list.part([index])).norm(p)
        return norms

    def scale(self, coef: Scalar) -> list[Tensor]:
        """New tensors, and the given ones where the coefficient is 1."""
        changed = np.flatnonzero(coef != 1.0).tolist()
        results = list(self._tensors)
        part = PerTensorPath(self._backend, self._list.part(changed))
        for index, tensor in zip(changed, part._times(coef[changed].tolist()), strict=True):
            results[index] = tensor
        return results

    def _times(self, coefs: list[float]) -> list[Tensor]:
        if self._makes_results:
            return self._made(self._list.scale_each(coefs, self._threads))
        paths = (GlobalNormPath(self._backend, self._list.part([index])) for index in range(len(coefs)))
        return [path.scale(coef)[0] for path, coef in zip(paths, coefs, strict=True)]

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        changed = np.flatnonzero(coef != 1.0).tolist()
        if not changed:
            return []
        part, coefs = self._list.part(changed), coef[changed].tolist()
        return self._writes(lambda: part.scale_each_(coefs, self._threads), part.tensors)


def collector(
    tensor: type,
    parameter: type | None = None,
    methods: Sequence[tuple[str, bool]] = (),
    recording: tuple[str, bool] = ("", True),
) -> Any | None:
    """What finds plain gradients, if the compiled kernels are here: by DLPack's C interface, or by the buffer protocol.

    `methods`: of tensors, and what they return for plain ones. `recording`: the attribute of a tensor, and its value,
    by which a derivative is wanted.
    """
    exchange = getattr(tensor, "__dlpack_c_exchange_api__", None)
    try:
        return KERNELS and KERNELS.Collector(tensor, parameter, exchange, methods, recording)
    except ValueError:  # a later version of the interface, which is not known
        return None


def whole_path(backend: HostBackend, tensor_list: Any | None) -> GlobalNormPath | None:
    """Return a path over what the compiled kernels have found, if that is anything."""
    return GlobalNormPath(backend, tensor_list) if tensor_list is not None and tensor_list.tensors else None


class OfParameters:
    """How a framework with gradients on parameters takes lists whole."""

    @abstractmethod
    def collector(self) -> Any | None:
        """What finds plain gradients; None where nothing may be read behind the framework's back."""

    @abstractmethod
    def records(self, differentiable: bool) -> bool:
        """Return whether a derivative by a tensor that wants one is recorded here."""

    def whole_of_parameters(self: Any, parameters: Sequence[Any]) -> WholePath | None:
        collector = self.collector()
        whole = whole_path(self, collector.of_parameters(parameters)) if collector else None
        if whole is None or len(whole.tensors) == len(parameters):
            return whole
        return None if any(self.main_gradient_of(each) is not None for each in parameters) else whole

    def whole_of_tensors(
        self: Any, tensors: Sequence[Any], *, differentiable: bool, in_place: bool
    ) -> WholePath | None:
        collector = self.collector()
        recording = self.records(differentiable)
        return whole_path(self, collector.of_tensors(tensors, recording, in_place)) if collector else None

    def whole_of_pairs(self: Any, pairs: Sequence[Any]) -> WholePath | None:
        collector = self.collector()
        return whole_path(self, collector.of_param_grads(pairs)) if collector else None
