"""The device path: the rule's arithmetic by a framework's own operations, in float64.

It is what graphs, GPUs and derivatives use. Nothing here moves a value to the host.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from .exact import FORMATS, nearest
from .ops import DeviceOps, GraphTeller, Later, Scalar, Tensor
from .writes import Write


def norm_dtype(dtypes: Sequence[str]) -> str:
    """A norm is float64 when any gradient is float64 or complex128, float32 otherwise."""
    return "float64" if "float64" in dtypes or "complex128" in dtypes else "float32"


def odd_bits(wide: Tensor, near: Tensor, bits: Tensor, where: Callable[[Any, Tensor, Tensor], Tensor]) -> Tensor:
    """The bits of `near`, float64 numbers rounded to float32, with the last bit set where anything was lost.

    Rounded again, to 16 bits, such a number counts as rounded once. Frameworks cast float64 to 16 bits by way of
    float32, which rounds twice. `wide` and `near` are float64, `bits` int32.
    """
    inexact = ((near < wide) | (near > wide)) & (abs(near) < math.inf)
    bits = where(inexact & (abs(near) > abs(wide)), bits - 1, bits)
    return where(inexact, bits - bits % 2 + 1, bits)


def inverse(p: float) -> float:
    """1 / p, finite: the logarithm of 1 times infinity is NaN."""
    return min(1 / p, sys.float_info.max)


class DevicePath:
    """`Path` over the primitives of one framework."""

    on_host = False

    def __init__(self, ops: DeviceOps, tensors: Sequence[Tensor], differentiable: bool) -> None:
        self._ops = ops
        self._differentiable = differentiable
        self._tensors = list(tensors)
        self.norm_dtype = norm_dtype([ops.dtype(tensor) for tensor in self._tensors])

    @property
    def framework(self) -> str:
        return self._ops.name

    def norm(self, p: float) -> Scalar:
        ops, tensors = self._ops, self._tensors
        if p == math.inf:
            return ops.rounded(ops.max_abs(tensors), self.norm_dtype)
        # Squares and magnitudes of 32-bit gradients fit float64; everything else is divided by the greatest first.
        divisor = self._divisor(ops.max_abs(tensors)) if p not in (1, 2) or self.norm_dtype == "float64" else None
        return self._root(ops.power_sum(tensors, p, divisor), p, divisor)

    def slice_norms(self, axes: Sequence[int], groups: Tensor | None = None) -> Scalar:
        ops, tensor, divisor = self._ops, self._tensors[0], None
        if self.norm_dtype == "float64":
            greatest = ops.slice_max_abs(tensor, axes)
            divisor = self._divisor(greatest if groups is None else ops.group_max(greatest, groups))
        total = ops.slice_power_sum(tensor, axes, divisor)
        return self._root(total if groups is None else ops.group_sum(total, groups), 2, divisor)

    def constant(self, value: Any) -> Scalar:
        return self._ops.constant(value, self._tensors)

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return self._ops.where(condition, yes, no)

    def scale(self, coef: Scalar) -> list[Tensor]:
        return self._ops.scale(self._tensors, coef)

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        return self._ops.prepare_scale(self._tensors, coef)

    def crossed(self, low: Any, high: Any) -> bool | None:
        return self._ops.crossed(*self._bounds(self._tensors[0], low, high))

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        return [self._ops.clamp(tensor, *self._bounds(tensor, low, high)) for tensor in self._tensors]

    def prepare_clamp(self, low: float, high: float) -> list[Write]:
        return self._ops.prepare_clamp(self._tensors, [self._bounds(tensor, low, high) for tensor in self._tensors])

    def zeroed(self, results: list[Tensor], keep: Any) -> list[Tensor]:
        return self._ops.zeroed(results, keep)

    def prepare_write(self, results: list[Tensor]) -> list[Write]:
        return self._ops.prepare_write(self._tensors, results)

    def prepare_zero(self, keep: Any) -> list[Write] | None:
        return None

    def cosine(self, scalar: Scalar) -> Scalar:
        return self._ops.cosine(scalar)

    def single(self, scalar: Scalar) -> Scalar:
        return self._ops.rounded(scalar, "float32")

    def unchanged(self) -> list[Tensor]:
        return [self._ops.copy(tensor) for tensor in self._tensors]

    def as_norm(self, n: Scalar) -> Tensor:
        return self._ops.as_norm(n, self.norm_dtype)

    def is_one(self, coef: Scalar) -> bool:
        return False

    def is_finite(self, n: Scalar) -> bool | None:
        return self._ops.is_finite(n)

    def nonfinite_counts(self) -> list[tuple[int, int]]:
        return [self._ops.nonfinite_counts(tensor) for tensor in self._tensors]

    def nonfinite_elsewhere(self) -> list[tuple[str, int, int]]:
        return []

    def count_nonfinite(self) -> tuple[Scalar, Scalar]:
        return self._ops.count_nonfinite(self._tensors)

    def in_graph(self, scalars: Sequence[Scalar]) -> bool:
        return self._ops.in_graph([*self._tensors, *scalars])

    def read_later(self, scalars: Sequence[Scalar]) -> Later:
        return self._ops.read_later(scalars)

    def graph_teller(self) -> GraphTeller | None:
        return self._ops.graph_teller()

    def scope(self) -> AbstractContextManager[Any]:
        return self._ops.scope(self._differentiable)

    def _bounds(self, tensor: Tensor, *bounds: Any) -> list[Any]:
        """Numbers are rounded to the tensor's dtype here, since frameworks round twice on the way to bfloat16."""
        dtype = self._ops.dtype(tensor)
        rounded = [nearest(b, dtype) if dtype in FORMATS and isinstance(b, int | float) else b for b in bounds]
        return [self._ops.bound(bound, tensor) for bound in rounded]

    def _divisor(self, greatest: Scalar) -> Scalar:
        """The greatest magnitude where it can be divided by; a constant to the derivative: n does not depend on it."""
        usable = self.where((greatest > self.constant(0.0)), greatest, self.constant(1.0))
        usable = self.where(usable < self.constant(math.inf), usable, self.constant(1.0))
        return self._ops.stop_gradient(usable)

    def _root(self, total: Scalar, p: float, divisor: Scalar | None) -> Scalar:
        """The root of a power sum, rounded; 0 with derivative 0 at 0."""
        zero = total <= self.constant(0.0)  # not ==, which compares objects in TensorFlow 1 graphs
        root = self._ops.root(self.where(zero, self.constant(1.0), total), p)
        n = self.where(zero, self.constant(0.0), root)
        return self._ops.rounded(n if divisor is None else n * divisor, self.norm_dtype)
