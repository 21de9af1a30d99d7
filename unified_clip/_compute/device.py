"""The device path, for compiled graphs, GPUs and derivatives. It computes in float64 with the framework's operations,
and calls the compiled kernels where a graph supports them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .._core.exact import FORMATS, nearest
from .._core.path import Change, DevicePrimitives, Path
from .._core.types import Deferred, GraphCallback, Scalar, Tensor, Write

HALF = ("float16", "bfloat16")


def norm_dtype(dtypes: Sequence[str]) -> str:
    return "float64" if "float64" in dtypes or "complex128" in dtypes else "float32"


def odd_bits(wide: Tensor, near: Tensor, bits: Tensor, where: Callable[[Any, Tensor, Tensor], Tensor]) -> Tensor:
    """Round `wide` to float32 with rounding to odd, and return the bits.

    The caller can round this result again, to 16 bits, without a double-rounding error.
    near: `wide` rounded to the nearest float32, stored as float64.
    bits: The bits of `near` as float32, stored as int32.
    """
    below, above = near < wide, near > wide
    inexact = (below | above) & (near < math.inf) & (near > -math.inf)
    bits = where(inexact & ((above & (near > 0.0)) | (below & (near < 0.0))), bits - 1, bits)
    return where(inexact, bits - bits % 2 + 1, bits)


def round_once(primitives: DevicePrimitives, bound: Tensor, dtype: str) -> Tensor:
    """Round a bound once. A framework casts float64 to float32 and then to 16 bits, which rounds twice."""
    twice = primitives.cast(bound, dtype)
    if dtype not in HALF or primitives.dtype(bound) in (*HALF, "float32"):
        return twice
    wide = primitives.stop_gradient(primitives.cast(bound, "float64"))
    near = primitives.cast(wide, "float32")
    bits = odd_bits(wide, primitives.cast(near, "float64"), primitives.bitcast(near, "int32"), primitives.where)
    once = primitives.cast(primitives.bitcast(bits, "float32"), dtype)
    is_same = (once <= twice) & (once >= twice)  # not ==, which compares objects in TensorFlow 1 graphs
    return primitives.where(is_same, twice, once)  # only `twice` has a derivative


def relative_powers(
    numbers: Tensor,
    p: float,
    divisor: Scalar,
    *,
    where: Callable[[Any, Any, Any], Tensor],
    log: Callable[[Tensor], Tensor],
    exp: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return (number / divisor)**p. At number = 0, the derivative is 0."""
    zero = numbers <= 0  # not ==, which compares objects in TensorFlow 1 graphs
    below = log(where(zero, divisor, numbers)) - log(divisor)
    below = where((below > 0) & (numbers < math.inf), 0.0, below)  # only rounding yields a result above 0
    return where(zero, 0.0, exp(p * below))


def inverse(p: float) -> float:
    """Return 1 / p. If 1 / p is inf, return the largest float64, because inf * log(1) is NaN."""
    return min(1 / p, sys.float_info.max)


class DeviceScalars:
    def __init__(self, backend: DevicePrimitives, like: Sequence[Tensor]) -> None:
        self._backend, self._like = backend, like
        # the members that need no device
        self.where, self.stop_gradient, self.pinned = backend.where, backend.stop_gradient, backend.pinned
        self.cos, self.floor, self.sort = backend.cos, backend.floor, backend.sort
        self.total, self.least, self.pack = backend.total, backend.least, backend.pack

    def asarray(self, value: Any) -> Scalar:
        return self._backend.constant(value, self._like)

    def is_true(self, condition: Any) -> bool:
        return False

    def to_float32(self, scalar: Scalar) -> Scalar:
        return self._backend.rounded(scalar, "float32")

    def sqrt(self, scalar: Scalar) -> Scalar:
        return self._backend.root(scalar, 2)

    def vector(self, values: Sequence[float]) -> Scalar:
        return self._backend.vector(values, self._like)

    def indices(self, length: int) -> Scalar:
        return self._backend.indices(length, self._like)

    def unpack(self, packed: Tensor, lengths: Sequence[int | None]) -> list[Scalar]:
        return self._backend.unpack(packed, lengths, self._like)


class GraphKernels(Protocol):
    """The compiled kernels, as operations of a framework's graphs."""

    def supports(self, tensors: Sequence[Tensor]) -> bool: ...

    def norm(self, tensors: Sequence[Tensor], p: float, *, per_tensor: bool) -> Scalar:
        """p is 1 or 2. If `per_tensor` is True, return a vector with one norm for each tensor."""

    def scale(self, tensors: Sequence[Tensor], coef: Scalar, *, per_tensor: bool) -> list[Tensor]:
        """If `per_tensor` is True, `coef` is a vector with one coefficient for each tensor."""


class DevicePath:
    on_host = False

    def __init__(
        self,
        backend: DevicePrimitives,
        tensors: Sequence[Tensor],
        differentiable: bool,
        kernels: GraphKernels | None = None,
        *,
        is_per_tensor: bool = False,
        has_float64: bool | None = None,
    ) -> None:
        """
        is_per_tensor: Norms and coefficients are vectors with one number for each tensor.
        has_float64: Whether a tensor is float64 or complex128. None if the caller does not know.
        """
        self._backend, self._kernels = backend, kernels
        self._differentiable, self._is_per_tensor = differentiable, is_per_tensor
        self._tensors = list(tensors)
        self.xp = DeviceScalars(backend, self._tensors)
        if has_float64 is None:
            has_float64 = norm_dtype([backend.dtype(tensor) for tensor in self._tensors]) == "float64"
        self.norm_dtype = "float64" if has_float64 else "float32"

    @property
    def framework(self) -> str:
        return self._backend.name

    def norm(self, p: float) -> Scalar:
        kernels, of_reals = self._kernels_for_tensors(), p == 2 or (p == 1 and not self._has_complex())
        if kernels is not None and of_reals:
            return kernels.norm(self._tensors, p, per_tensor=self._is_per_tensor)
        return self.norm_by_operations(p)

    def norm_by_operations(self, p: float) -> Scalar:
        if self._is_per_tensor:
            paths = [type(self)(self._backend, [tensor], self._differentiable) for tensor in self._tensors]
            return self._backend.stack([path.norm_by_operations(p) for path in paths])
        return self._total_norm(p)

    def _total_norm(self, p: float) -> Scalar:
        """Compute the norm by the primitives. It is a vector if the sums of the primitives are vectors."""
        backend, tensors = self._backend, self._tensors
        if p == math.inf:
            return backend.rounded(backend.max_abs(tensors), self.norm_dtype)
        # Squares and magnitudes of 32-bit gradients fit float64. Other gradients are divided by their largest |g|.
        divisor = self._divisor(backend.max_abs(tensors)) if p not in (1, 2) or self.norm_dtype == "float64" else None
        return self._root(backend.power_sum(tensors, p, divisor), p, divisor)

    def slice_norms(self, axes: Sequence[int]) -> Scalar:
        backend, tensor = self._backend, self._tensors[0]
        divisor = self._divisor(backend.slice_max_abs(tensor, axes)) if self.norm_dtype == "float64" else None
        return self._root(backend.slice_power_sum(tensor, axes, divisor), 2, divisor)

    def scale(self, coef: Scalar) -> list[Tensor]:
        kernels = self._kernels_for_tensors()
        if kernels is not None and self._backend.ndim(coef) == self._is_per_tensor:  # else one per slice
            return kernels.scale(self._tensors, coef, per_tensor=self._is_per_tensor)
        assert not self._is_per_tensor, "bug in unified_clip: the kernels do not support one coefficient per tensor"
        return self._backend.scale(self._tensors, coef)

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        return self._backend.prepare_scale(self._tensors, coef)

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        return self._backend.bounds_inverted(*self._bounds(self._tensors[0], low, high))

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        both = zip(self._tensors, self._all_bounds(low, high), strict=True)
        return [self._backend.clamp(tensor, *bounds) for tensor, bounds in both]

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        return self._backend.prepare_clamp(self._tensors, self._all_bounds(low, high))

    def zeroed(self, results: list[Tensor], keep: Any) -> list[Tensor]:
        return self._backend.zeroed(results, keep)

    def prepare_zeroed(self, change: Change, keep: Any) -> list[Write]:
        return self._backend.prepare_write(self._tensors, self.zeroed(change.results(), keep))

    def unchanged(self) -> list[Tensor]:
        return [self._backend.copy(tensor) for tensor in self._tensors]

    def as_norm(self, n: Scalar) -> Tensor:
        return self._backend.as_norm(n, self.norm_dtype)

    def is_one(self, coef: Scalar) -> bool:
        return False

    def is_finite(self, n: Scalar) -> bool | None:
        return self._backend.is_finite(n)

    def nonfinite_counts(self) -> list[tuple[Scalar, Scalar]]:
        counts = map(self._backend.count_nonfinite, self._tensors)
        return [(self.xp.asarray(nan), self.xp.asarray(inf)) for nan, inf in counts]

    def in_graph(self, scalars: Sequence[Scalar]) -> bool:
        return self._backend.in_graph([*self._tensors, *scalars])

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        return self._backend.read_later(scalars)

    def graph_callback(self) -> GraphCallback | None:
        return self._backend.graph_callback()

    def per_tensor(self) -> Path | None:
        if self._kernels_for_tensors() is None:
            return None
        return DevicePath(self._backend, self._tensors, self._differentiable, self._kernels, is_per_tensor=True)

    def _kernels_for_tensors(self) -> GraphKernels | None:
        kernels = self._kernels
        return kernels if kernels is not None and kernels.supports(self._tensors) else None

    def _has_complex(self) -> bool:
        return any(self._backend.dtype(tensor).startswith("complex") for tensor in self._tensors)

    def scope(self) -> AbstractContextManager[Any]:
        return self._backend.scope(self._differentiable)

    def _all_bounds(self, low: Any, high: Any) -> list[list[Any]]:
        return [self._bounds(tensor, low, high) for tensor in self._tensors]

    def _bounds(self, tensor: Tensor, *bounds: Any) -> list[Any]:
        """Round numbers directly to the dtype. Frameworks would round first to float32 and then to 16 bits."""
        dtype = self._backend.dtype(tensor)
        rounded = [nearest(b, dtype) if dtype in FORMATS and isinstance(b, (int, float)) else b for b in bounds]
        return [self._backend.bound(bound, tensor) for bound in rounded]

    def _divisor(self, max_abs: Scalar) -> Scalar:
        xp = self.xp
        usable = xp.where((max_abs > xp.asarray(0.0)), max_abs, xp.asarray(1.0))
        usable = xp.where(usable < xp.asarray(math.inf), usable, xp.asarray(1.0))
        return self._backend.stop_gradient(usable)

    def _root(self, total: Scalar, p: float, divisor: Scalar | None) -> Scalar:
        """For a sum of 0, the derivative of the norm is 0."""
        xp = self.xp
        zero = total <= xp.asarray(0.0)  # not ==, which compares objects in TensorFlow 1 graphs
        root = self._backend.root(xp.where(zero, xp.asarray(1.0), total), p)
        n = xp.where(zero, xp.asarray(0.0), root)
        n = n if divisor is None else n * divisor
        return self._backend.rounded(n, self.norm_dtype)
