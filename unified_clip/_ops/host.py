"""The host path: eager tensors of any framework, seen as raw memory through NumPy views.

One piece of code serves every framework, so the same numbers give the same bits on all of them, and
subnormal numbers are kept.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from .._core.device import norm_dtype
from .._core.exact import FORMATS, Accumulator, nearest, rounded_norm
from .._core.ops import GraphTeller, Later, Scalar, Tensor, WholePath
from .._core.writes import Write, nothing
from .._native import KERNELS
from . import checksums, kernels
from .kernels import Array


class HostOps(Protocol):
    """What the host path needs from a framework."""

    name: str
    writable: bool
    donates: bool
    takes_capsules: bool
    """Whether `from_capsules` makes tensors over memory without a copy."""

    def threads(self) -> int | None:
        """How many threads the framework uses on the CPU; None where it does not say."""

    def dtype(self, tensor: Tensor) -> str: ...

    def is_tensor(self, value: Any) -> bool: ...

    def host_view(self, tensor: Tensor) -> Array:
        """The tensor's memory; bfloat16 as uint16. Only called for tensors that the host path was taken for."""

    def from_host(self, array: Array, dtype: str) -> Tensor:
        """A tensor with the array's values; the array is new and nobody else's. bfloat16 comes as bits."""

    def from_capsules(self, capsules: Sequence[Any]) -> list[Tensor]:
        """Tensors over the memory in DLPack capsules. Only called where `takes_capsules`."""

    def norm_from_host(self, value: float, dtype: str) -> Tensor: ...

    def placed(self, results: list[Tensor], sources: Iterable[Sequence[Tensor]]) -> list[Tensor]:
        """Results on the devices where the framework would have computed them, each from its sources."""

    def wrote(self, tensors: Sequence[Tensor]) -> None:
        """Tell automatic differentiation that the memory of these tensors has changed."""


class HostPath:
    """`Path` over NumPy views of the tensors' memory. Scalars are NumPy float64."""

    on_host = True

    def __init__(self, ops: HostOps, tensors: Sequence[Tensor], views: Sequence[Array]) -> None:
        self._ops = ops
        self._tensors = list(tensors)
        self._dtypes = [ops.dtype(tensor) for tensor in self._tensors]
        self._views = list(views)
        self.norm_dtype = norm_dtype(self._dtypes)
        self._threads = ops.threads() or kernels.default_threads()

    @property
    def framework(self) -> str:
        return self._ops.name

    def norm(self, p: float) -> Scalar:
        if p in (1, 2):
            return np.float64(rounded_norm(partial(self.power_sum, int(p)), int(p), self.norm_dtype))
        return np.float64(kernels.general_norm(self._magnitudes(p), p, self.norm_dtype, self._threads))

    def power_sum(self, p: int, exactly: bool) -> Accumulator:
        return kernels.power_sum(self._magnitudes(p), p, self.norm_dtype, exactly=exactly, threads=self._threads)

    def greatest(self, dtype: str) -> float:
        return kernels.greatest(self._magnitudes(math.inf), dtype, self._threads)

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
        rows = self._ops.host_view(groups)
        return kernels.grouped_slice_norms(view, dtype, axes, rows, self.norm_dtype, self._threads)

    def constant(self, value: Any) -> Scalar:
        return np.float64(value)

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return np.where(condition, yes, no)

    def scale(self, coef: Scalar) -> list[Tensor]:
        if self.is_one(coef):
            return self.unchanged()
        return self._new(lambda results: kernels.scale(self._views, self._dtypes, coef, results, self._threads))

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        if self.is_one(coef):
            return []
        views, dtypes = self._to_be_written()
        return self._writes(lambda: kernels.scale(views, dtypes, coef, views, self._threads))

    def crossed(self, low: Any, high: Any) -> bool | None:
        dtype = self._dtypes[0]
        return not bool(np.all(self._bound(low, dtype) <= self._bound(high, dtype)))

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        return self._new(lambda results: self._clamping(self._views, self._dtypes, low, high, results)())

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        views, dtypes = self._to_be_written()
        return self._writes(self._clamping(views, dtypes, low, high, views))

    def _writes(self, write: Callable[[], object], tensors: Sequence[Tensor] | None = None) -> list[Write]:
        """A write into raw memory, and what automatic differentiation is told before."""
        written = self._tensors if tensors is None else tensors
        return [Write(lambda: self._ops.wrote(written), nothing), Write(write)]

    def _to_be_written(self) -> tuple[list[Array], list[str]]:
        """All but what is empty, which may be read-only."""
        found = [(view, dtype) for view, dtype in self._buffers() if view.size]
        return [view for view, _ in found], [dtype for _, dtype in found]

    def zeroed(self, results: list[Tensor], keep: Any) -> list[Tensor]:
        return results if keep else self._new(_fill_with_zeros)

    def prepare_write(self, results: list[Tensor]) -> list[Write]:
        pairs = [(view, self._ops.host_view(result)) for view, result in zip(self._views, results, strict=True)]
        return self._writes(lambda: _copy_all(pairs))

    def prepare_zero(self, keep: Any) -> list[Write]:
        views = self._to_be_written()[0]
        return [] if keep else self._writes(lambda: _fill_with_zeros(views))

    def cosine(self, scalar: Scalar) -> Scalar:
        return math.cos(scalar)

    def single(self, scalar: Scalar) -> Scalar:
        return np.float64(nearest(scalar, "float32"))

    def unchanged(self) -> list[Tensor]:
        if not (self._ops.writable or self._ops.donates):
            return list(self._tensors)
        return self._new(lambda results: list(map(np.copyto, results, self._views)))

    def as_norm(self, n: Scalar) -> Tensor:
        return self._ops.placed([self._ops.norm_from_host(float(n), self.norm_dtype)], [self._tensors])[0]

    def is_one(self, coef: Scalar) -> bool:
        return bool(np.all(coef == 1.0))

    def is_finite(self, n: Scalar) -> bool | None:
        return bool(np.isfinite(n))

    def nonfinite_counts(self) -> list[tuple[int, int]]:
        decoded = [kernels.decode(view, dtype) for view, dtype in self._buffers()]
        return [(int(np.isnan(values).sum()), int(np.isinf(values).sum())) for values in decoded]

    def nonfinite_elsewhere(self) -> list[tuple[str, int, int]]:
        return []

    def count_nonfinite(self) -> tuple[Scalar, Scalar]:
        nan, inf = zip((0, 0), *self.nonfinite_counts(), strict=True)
        return float(sum(nan)), float(sum(inf))

    def in_graph(self, scalars: Sequence[Scalar]) -> bool:
        return False

    def read_later(self, scalars: Sequence[Scalar]) -> Later:
        return Later(lambda: [scalar if type(scalar) is float else np.asarray(scalar).tolist() for scalar in scalars])

    def graph_teller(self) -> GraphTeller | None:
        return None

    def scope(self) -> AbstractContextManager[Any]:
        return kernels.ieee_arithmetic()

    def _clamping(
        self, views: Sequence[Array], dtypes: Sequence[str], low: Any, high: Any, results: Sequence[Array]
    ) -> Callable[[], None]:
        """Return what writes clamped values. The bounds, whose reading may fail, are read first."""
        if kernels.clamps_at_once([*views, *results], dtypes, low, high):
            return lambda: kernels.clamp_all(views, dtypes, low, high, results, self._threads)
        bounds = [(self._bound(low, dtype), self._bound(high, dtype)) for dtype in dtypes]

        def clamp() -> None:
            for view, dtype, (least, most), out in zip(views, dtypes, bounds, results, strict=True):
                kernels.clamp(view, dtype, least, most, out)

        return clamp

    def _bound(self, bound: Any, dtype: str) -> Array:
        """A number or a tensor rounded once to the dtype; bfloat16 as float32."""
        if self._ops.is_tensor(bound):
            return kernels.round_to(kernels.decode(self._ops.host_view(bound), self._ops.dtype(bound)), dtype)
        return np.asarray(nearest(bound, dtype)) if dtype in FORMATS else np.asarray(bound, dtype)

    def _buffers(self) -> Iterable[tuple[Array, str]]:
        return zip(self._views, self._dtypes, strict=True)

    def _new(self, compute: Callable[[list[Array]], Any]) -> list[Tensor]:
        new = np.empty_like if self._ops.writable else kernels.shareable_empty_like
        results = [new(view) for view in self._views]
        compute(results)
        return self._ops.placed(list(map(self._ops.from_host, results, self._dtypes)), zip(self._tensors))


def _copy_all(pairs: Sequence[tuple[Array, Array]]) -> None:
    for view, result in pairs:
        if view.size:
            np.copyto(view, result)


def _fill_with_zeros(arrays: Sequence[Array]) -> None:
    for array in arrays:
        array.fill(0)


class LanePath(HostPath):
    """The same over gradients that the compiled kernels have found in one go, without an array for each."""

    def __init__(self, ops: HostOps, lane: Any) -> None:
        self._ops, self._lane = ops, lane
        self._tensors = lane.tensors
        self.norm_dtype = "float64" if lane.has_float64 else "float32"
        self._threads = ops.threads() or kernels.default_threads()

    @cached_property
    def _dtypes(self) -> list[str]:  # type: ignore[override]  # most calls need neither
        return [self._ops.dtype(tensor) for tensor in self._tensors]

    @cached_property
    def _views(self) -> list[Array]:  # type: ignore[override]
        return [self._ops.host_view(tensor) for tensor in self._tensors]

    @property
    def _makes_results(self) -> bool:
        return self._lane.makes_tensors or self._ops.takes_capsules

    def _made(self, results: list[Any]) -> list[Tensor]:
        if self._lane.makes_tensors:
            return results
        return self._ops.placed(self._ops.from_capsules(results), zip(self._tensors))


class OneNormPath(LanePath):
    """One norm and one coefficient, both a float."""

    @property
    def tensors(self) -> list[Tensor]:
        return self._tensors

    def each(self) -> EachPath:
        return EachPath(self._ops, self._lane)

    def part(self, group: range) -> OneNormPath:
        return OneNormPath(self._ops, self._lane.part(list(group)))

    def norm(self, p: float) -> Scalar:
        if p == math.inf:
            return self.greatest(self.norm_dtype)
        if p not in (1, 2):
            return super().norm(p)
        return rounded_norm(partial(self.power_sum, int(p)), int(p), self.norm_dtype)

    def power_sum(self, p: int, exactly: bool) -> Accumulator:
        how = kernels.how_to_add(exactly, blocks=self.norm_dtype == "float32")
        return kernels.native_sum(self._lane.power_sum(p, how, self._threads), how)

    def greatest(self, dtype: str) -> float:
        return nearest(self._lane.greatest(self._threads), dtype)

    def as_norm(self, n: Scalar) -> Tensor:
        if not self._lane.makes_tensors:
            return super().as_norm(n)
        return self._lane.number(n, self.norm_dtype == "float64")

    def constant(self, value: Any) -> Scalar:
        return float(value)

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return yes if condition else no

    def scale(self, coef: Scalar) -> list[Tensor]:
        if self.is_one(coef):
            return self.unchanged()
        if not self._makes_results:
            return super().scale(coef)
        return self._made(self._lane.scale(coef, self._threads))

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        return [] if self.is_one(coef) else self._writes(lambda: self._lane.scale_(coef, self._threads))

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        if not self._makes_results:
            return super().clamp(low, high)
        return self._made(self._lane.clamp(kernels.bounds(low), kernels.bounds(high), self._threads))

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        lows, highs = kernels.bounds(low), kernels.bounds(high)
        return self._writes(lambda: self._lane.clamp_(lows, highs, self._threads))

    def unchanged(self) -> list[Tensor]:
        if (self._ops.writable or self._ops.donates) and self._makes_results:
            return self._made(self._lane.scale(1.0, self._threads))
        return super().unchanged()

    def is_one(self, coef: Scalar) -> bool:
        return bool(coef == 1.0)


class EachPath(LanePath):
    """A norm and a coefficient for each gradient: arrays of them."""

    def norm(self, p: float) -> Scalar:
        norms = np.empty(len(self._tensors))
        wide = [index for index, code in enumerate(self._lane.codes) if code == kernels.CODES["float64"]]
        narrow = np.setdiff1d(np.arange(len(norms)), wide)
        sums = self._lane.part(narrow.tolist()).each_square_sum(self._threads)
        norms[narrow], doubt = kernels.certified_roots(*sums)
        for index in (*wide, *narrow[doubt].tolist()):
            norms[index] = OneNormPath(self._ops, self._lane.part([index])).norm(p)
        return norms

    def scale(self, coef: Scalar) -> list[Tensor]:
        """New tensors, and the given ones where the coefficient is 1."""
        changed = np.flatnonzero(coef != 1.0).tolist()
        results = list(self._tensors)
        part = EachPath(self._ops, self._lane.part(changed))
        for index, tensor in zip(changed, part._times(coef[changed].tolist()), strict=True):
            results[index] = tensor
        return results

    def _times(self, coefs: list[float]) -> list[Tensor]:
        if self._makes_results:
            return self._made(self._lane.scale_each(coefs, self._threads))
        paths = (OneNormPath(self._ops, self._lane.part([index])) for index in range(len(coefs)))
        return [path.scale(coef)[0] for path, coef in zip(paths, coefs, strict=True)]

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        changed = np.flatnonzero(coef != 1.0).tolist()
        if not changed:
            return []
        part, coefs = self._lane.part(changed), coef[changed].tolist()
        return self._writes(lambda: part.scale_each_(coefs, self._threads), part.tensors)


def gatherer(
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
        return KERNELS and KERNELS.Gatherer(tensor, parameter, exchange, methods, recording)
    except ValueError:  # a later version of the interface, which is not known
        return None


def whole_path(ops: HostOps, lane: Any | None) -> OneNormPath | None:
    """A path over what the compiled kernels have found, if that is anything."""
    return OneNormPath(ops, lane) if lane is not None and lane.tensors else None


class OfParameters:
    """How a framework with gradients on parameters takes lists whole."""

    @abstractmethod
    def gatherer(self) -> Any | None:
        """What finds plain gradients; None where nothing may be read behind the framework's back."""

    @abstractmethod
    def records(self, differentiable: bool) -> bool:
        """Whether a derivative by a tensor that wants one is recorded here."""

    def whole_of_parameters(self: Any, parameters: Sequence[Any]) -> WholePath | None:
        gatherer = self.gatherer()
        whole = whole_path(self, gatherer.of_parameters(parameters)) if gatherer else None
        if whole is None or len(whole.tensors) == len(parameters):
            return whole
        return None if any(self.main_gradient_of(each) is not None for each in parameters) else whole

    def whole_of_tensors(
        self: Any, tensors: Sequence[Any], *, differentiable: bool, in_place: bool
    ) -> WholePath | None:
        gatherer = self.gatherer()
        recording = self.records(differentiable)
        return whole_path(self, gatherer.of_tensors(tensors, recording, in_place)) if gatherer else None

    def whole_of_pairs(self: Any, pairs: Sequence[Any]) -> WholePath | None:
        gatherer = self.gatherer()
        return whole_path(self, gatherer.of_pairs(pairs)) if gatherer else None


# -- the choice of path


def forced_path(*others: str) -> str:
    """The device path that UNIFIED_CLIP_PATH takes everywhere, for testing it on a CPU; empty if it is unset.

    That is 'framework', or one of the `others` that a framework has.
    """
    choice = os.environ.get("UNIFIED_CLIP_PATH", "")
    known = ("framework", *others)
    if choice not in ("", *known):
        settings = " or ".join(map(repr, known))
        raise ValueError(f"UNIFIED_CLIP_PATH is {choice!r}; set it to {settings}, or leave it unset")
    return choice
