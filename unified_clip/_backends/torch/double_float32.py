"""PyTorch's device path for devices without float64, such as Apple's MPS. It computes in double-float32.

A double-float32 number is the sum `hi + lo` of two float32 numbers, with about 48 bits. Sums and products are computed
together with their exact rounding errors. Sources:

- Dekker, "A floating-point technique for extending the available precision", 1971: the exact product, the exact sum of
ordered numbers, division, square root.
- Knuth, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B: the exact sum of two unordered numbers.
- Ogita, Rump and Oishi, "Accurate sum and dot product", 2005: long sums, with separate sums of rounding errors.
- Joldes, Muller and Popescu, "Tight and rigorous error bounds for basic building blocks of double-word arithmetic",
2017: the error bounds, in units of u = 2**-24.

The device must round every float32 sum, difference and product to nearest. Its quotients and roots can have an error
of two ULP, and it can flush subnormal numbers to zero. PyTorch rounds to nearest in eager mode, in `torch.compile` on
the CPU, and in Metal kernels unless PYTORCH_MPS_FAST_MATH is set. For `torch.compile` on MPS, the rounding is unknown.
This module has never run on a device without float64. Tests run it on CPUs with UNIFIED_CLIP_PATH=pairs.

PyTorch differentiates only `hi`, in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..._compute.device import DevicePath
from ..._core.exact import nearest
from ..._core.types import Deferred, Scalar, Tensor, Write
from .arithmetic import HALF
from .device_path import PRIMITIVES, TorchPrimitives

NARROW = (*HALF, torch.float32)

LARGEST = torch.finfo(torch.float32).max

CHUNK = 2**23
"""The approximate number of elements in one sum."""

EXPONENT = 0x7F800000


@dataclass(frozen=True)
class DoubleFloat32:
    """The number hi + lo. `hi` is the float32 number nearest to the sum. If `hi` is not finite, `lo` is 0."""

    hi: Tensor
    lo: Tensor

    def __add__(self, other: DoubleFloat32) -> DoubleFloat32:
        """Joldes et al., algorithm 5. For numbers of the same sign, the relative error is at most 3 u**2."""
        total = two_sum(self.hi, other.hi)
        return fast_two_sum(total.hi, total.lo + (self.lo + other.lo))

    def __sub__(self, other: DoubleFloat32) -> DoubleFloat32:
        return self + DoubleFloat32(-other.hi, -other.lo)

    def scaled(self, power: DoubleFloat32) -> DoubleFloat32:
        """Multiply by a power of two. The product is exact if it neither overflows nor underflows."""
        return DoubleFloat32(self.hi * power.hi, self.lo * power.hi)

    def __mul__(self, other: DoubleFloat32) -> DoubleFloat32:
        """Joldes et al., algorithm 10. The relative error is at most 6 u**2."""
        product = two_product(self.hi, other.hi)
        return fast_two_sum(product.hi, product.lo + (self.hi.detach() * other.lo + self.lo * other.hi.detach()))

    def __truediv__(self, other: DoubleFloat32) -> DoubleFloat32:
        """Joldes et al., algorithm 17. The relative error is about 15 u**2. Both numbers are first scaled to be near
        1."""
        self_power, other_power = power_below(self), power_below(other)
        above, below = self.scaled(reciprocal(self_power)), other.scaled(reciprocal(other_power))
        near = above.hi / below.hi
        product = two_product(near, below.hi)
        rest = above.hi.detach() - product.hi.detach() - product.lo + (above.lo - near.detach() * below.lo)
        return fast_two_sum(near, rest / below.hi.detach()).scaled(self_power.scaled(reciprocal(other_power)))

    def __lt__(self, other: DoubleFloat32) -> Tensor:
        return (self.hi < other.hi) | ((self.hi == other.hi) & (self.lo < other.lo))

    def __gt__(self, other: DoubleFloat32) -> Tensor:
        return other < self

    def __le__(self, other: DoubleFloat32) -> Tensor:
        return (self.hi < other.hi) | ((self.hi == other.hi) & (self.lo <= other.lo))

    def __ge__(self, other: DoubleFloat32) -> Tensor:
        return other <= self

    def sqrt(self) -> DoubleFloat32:
        """Improve the float32 root of `hi` by one step of Newton's method (Dekker). The relative error is a few
        u**2."""
        near = self.hi.sqrt()
        square = two_product(near.detach(), near.detach())
        rest = self.hi.detach() - square.hi - square.lo + self.lo
        return fast_two_sum(near, rest / (near.detach() + near.detach()))


def two_sum(a: Tensor, b: Tensor) -> DoubleFloat32:
    """Return a + b exactly (Knuth)."""
    total = a + b
    a, b, rounded = a.detach(), b.detach(), total.detach()
    part = rounded - a
    return DoubleFloat32(total, (a - (rounded - part)) + (b - part))


def fast_two_sum(big: Tensor, small: Tensor) -> DoubleFloat32:
    """Return big + small exactly, for |big| >= |small| (Dekker). If the sum is inf or NaN, the low part is 0."""
    small = _finite(small)
    total = big + small
    return DoubleFloat32(total, _finite(small - (total.detach() - big.detach())))


def two_product(a: Tensor, b: Tensor) -> DoubleFloat32:
    """Return a * b exactly (Dekker), if the rounding error is not subnormal.

    A bit mask splits each factor, because Dekker's split can overflow.
    """
    product = a * b
    a_high, a_low = _halves(a.detach())
    b_high, b_low = _halves(b.detach())
    rest = a_high * b_high - product.detach()
    return DoubleFloat32(product, rest + a_high * b_low + a_low * b_high + a_low * b_low)


def compensated_sum(numbers: DoubleFloat32) -> DoubleFloat32:
    """Sum along the last axis, with a separate sum of the errors (Ogita, Rump and Oishi).

    For numbers of the same sign, the relative error is about (u log2(length))**2.
    """
    hi, lo = numbers.hi, numbers.lo
    while hi.shape[-1] > 1:
        if hi.shape[-1] % 2:
            hi, lo = (torch.cat((part, torch.zeros_like(part.narrow(-1, 0, 1))), -1) for part in (hi, lo))
        total = two_sum(*hi.chunk(2, -1))
        first, second = lo.chunk(2, -1)
        hi, lo = total.hi, total.lo + (first + second)
    return fast_two_sum(hi.sum(-1), lo.sum(-1))  # with at most one number


def power_below(number: DoubleFloat32) -> DoubleFloat32:
    """Return the largest power of two that is at most `number`, clamped to [2**-126, 2**126]. The result has no
    derivative."""
    exponent = number.hi.detach().view(torch.int32) & EXPONENT
    return _from_float32(exponent.clamp(1 << 23, 253 << 23).view(torch.float32))


def reciprocal(power: DoubleFloat32) -> DoubleFloat32:
    """Return 1 / power exactly. `power` must be a result of `power_below`."""
    return _from_float32(((254 << 23) - power.hi.view(torch.int32)).view(torch.float32))


class DoubleFloat32Primitives(TorchPrimitives):
    def vector(self, values: Sequence[float], like: Sequence[Tensor]) -> Scalar:
        raise TypeError(f"adaptive thresholds need float64, which {like[0].device} lacks. Use a fixed threshold")

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        """Limit finite Python numbers to float32's range. The CPU splits float64 and integer tensors into two parts."""
        device = like[0].device if like else torch.device("cpu")
        if isinstance(value, DoubleFloat32):
            return DoubleFloat32(value.hi.to(device), value.lo.to(device))
        if isinstance(value, torch.Tensor):
            wide = value.reshape(()) if value.dtype in NARROW else value.reshape(()).cpu().to(torch.float64)
            hi = wide.to(torch.float32)
            lo = _finite((wide - hi).detach().to(torch.float32))
            return DoubleFloat32(hi.to(device), lo.to(device))
        number = float(value)
        if math.isfinite(number):
            number = max(-LARGEST, min(number, LARGEST))
        hi = nearest(number, "float32")
        lo = nearest(number - hi, "float32") if math.isfinite(number) else 0.0
        return DoubleFloat32(*(torch.full((), part, dtype=torch.float32, device=device) for part in (hi, lo)))

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        """Return the sum of |g / divisor|**p, where p is 1 or 2. The divisor is a power of two near the largest |g|."""
        assert divisor is not None
        numbers = [tensor if p == 2 else _magnitudes(tensor) for tensor in tensors]
        device, factor = divisor.hi.device, reciprocal(divisor).hi
        sums = [compensated_sum(_powers(vector * factor.to(vector.device), p)) for vector in _vectors(numbers)]
        hi, lo = [part.hi.to(device) for part in sums], [part.lo.to(device) for part in sums]
        return compensated_sum(DoubleFloat32(torch.stack(hi), torch.stack(lo))) if sums else self.constant(0.0, tensors)

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        top = self.constant(0.0, tensors).hi
        for vector in _vectors([_magnitudes(tensor) for tensor in tensors]):
            if vector.numel():
                top = torch.maximum(top, vector.abs().max().to(top.device))
        return _from_float32(top)

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        """The divisor of each slice is a power of two near the largest |g| of the slice."""
        assert divisor is not None
        rows = _rows(tensor, axes)
        factor, shape = reciprocal(divisor).hi.reshape(rows.shape[:-1]), divisor.hi.shape
        total = compensated_sum(_powers(rows * factor.unsqueeze(-1), 2))
        return DoubleFloat32(total.hi.reshape(shape), total.lo.reshape(shape))

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar:
        rows = _rows(_magnitudes(tensor), axes).abs()
        top = rows.amax(-1) if rows.shape[-1] else rows.sum(-1)
        return _from_float32(top.reshape([1 if axis in axes else length for axis, length in enumerate(tensor.shape)]))

    def root(self, value: Scalar, p: float) -> Scalar:
        return value if p == 1 else value.sqrt()

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return DoubleFloat32(torch.where(condition, yes.hi, no.hi), torch.where(condition, yes.lo, no.lo))

    def cos(self, scalar: Scalar) -> Scalar:
        on_cpu = (scalar.hi.cpu().double() + scalar.lo.cpu().double()).cos()
        return self.constant(on_cpu, [scalar.hi])

    def times_divisor(self, scalar: Scalar, divisor: Scalar) -> Scalar:
        return scalar.scaled(divisor)

    def rounded(self, scalar: Scalar, dtype: str) -> Scalar:
        return _from_float32(scalar.hi)

    def as_norm(self, scalar: Scalar, dtype: str) -> Tensor:
        return scalar.hi

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        return super().scale(tensors, coef.hi)

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        return super().prepare_scale(tensors, coef.hi)

    def bound(self, value: Any, tensor: Tensor) -> Any:
        """Round float64 and integer bounds on the CPU, because the device has no float64."""
        if not isinstance(value, torch.Tensor) or value.dtype in NARROW:
            return super().bound(value, tensor)
        return PRIMITIVES.bound(value.cpu(), torch.empty(0, dtype=tensor.dtype)).to(tensor.device)

    def is_finite(self, scalar: Scalar) -> bool | None:
        return super().is_finite(scalar.hi)

    def in_graph(self, values: Sequence[Any]) -> bool:
        return super().in_graph([value.hi if isinstance(value, DoubleFloat32) else value for value in values])

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        parts = super().read_later([part for scalar in scalars for part in (scalar.hi, scalar.lo)])

        def values() -> list[Any]:
            numbers = [np.asarray(part, np.float64) for part in parts.values()]
            return [(hi + lo).tolist() for hi, lo in zip(numbers[::2], numbers[1::2], strict=True)]

        return Deferred(values, parts.ready)


DOUBLE_FLOAT32 = DoubleFloat32Primitives()


class DoubleFloat32Path(DevicePath):
    """The device path in double-float32. Squares and quotients do not overflow or underflow.

    A subnormal norm or coefficient is rounded twice. If p is not 1, 2 or inf, the CPU computes the norm in float64, so
    `norm` waits for the device.
    """

    def __init__(self, tensors: Sequence[Tensor], differentiable: bool) -> None:
        super().__init__(DOUBLE_FLOAT32, tensors, differentiable)

    def norm(self, p: float) -> Scalar:
        backend, tensors = self._backend, self._tensors
        if p == math.inf:
            return super().norm(p)
        if p not in (1, 2):
            on_cpu = DevicePath(PRIMITIVES, [tensor.cpu() for tensor in tensors], self._differentiable)
            return self.xp.asarray(on_cpu.norm(p))
        power = power_below(backend.max_abs(tensors))
        return self._root(backend.power_sum(tensors, p, power), p, power)

    def slice_norms(self, axes: Sequence[int], groups: Tensor | None = None) -> Scalar:
        backend, tensor = self._backend, self._tensors[0]
        if groups is not None:
            path = DoubleFloat32Path([_stacked(tensor, groups)], self._differentiable)
            norms = path.slice_norms([1, *(axis + 1 for axis in axes)])
            return DoubleFloat32(norms.hi.squeeze(1)[groups], norms.lo.squeeze(1)[groups])
        power = power_below(backend.slice_max_abs(tensor, axes))
        return self._root(backend.slice_power_sum(tensor, axes, power), 2, power)


def _from_float32(number: Tensor) -> DoubleFloat32:
    return DoubleFloat32(number, torch.zeros_like(number))


def _finite(error: Tensor) -> Tensor:
    return error.nan_to_num(0.0, 0.0, 0.0)


def _halves(number: Tensor) -> tuple[Tensor, Tensor]:
    high = (number.view(torch.int32) & -(1 << 12)).view(torch.float32)
    return high, number - high


def _powers(numbers: Tensor, p: float) -> DoubleFloat32:
    return two_product(numbers, numbers) if p == 2 else _from_float32(numbers.abs())


def _magnitudes(tensor: Tensor) -> Tensor:
    """Return |g| of complex numbers with an error of at most 1 ULP. Return real tensors unchanged."""
    if not tensor.is_complex():
        return tensor
    parts = torch.view_as_real(tensor.resolve_conj())
    power = power_below(_from_float32(parts.abs().amax(-1)))
    scaled = parts * reciprocal(power).hi.unsqueeze(-1)
    total = compensated_sum(_powers(scaled, 2))
    zero = total.hi == 0
    root = DOUBLE_FLOAT32.where(zero, _from_float32(torch.ones_like(total.hi)), total).sqrt()
    return torch.where(zero, 0.0, root.hi) * power.hi


def _rows(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    kept = [length for axis, length in enumerate(tensor.shape) if axis not in axes]
    rows = tensor.movedim(tuple(axes), tuple(range(-len(axes), 0)))
    return _reals(rows.reshape(*kept, math.prod([tensor.shape[axis] for axis in axes])))


def _stacked(tensor: Tensor, groups: Tensor) -> Tensor:
    """Return the rows of each group along a new second axis, padded with zeros."""
    counts = groups.bincount()
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    order, position = groups.argsort(stable=True), torch.empty_like(groups)
    position[order] = torch.arange(len(groups), device=groups.device) - first
    stacked = tensor.new_zeros(len(counts), int(counts.max()), *tensor.shape[1:])
    return stacked.index_put((groups, position), tensor)


def _reals(rows: Tensor) -> Tensor:
    return (torch.view_as_real(rows.resolve_conj()).flatten(-2) if rows.is_complex() else rows).to(torch.float32)


def _vectors(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    groups: dict[tuple[torch.device, int], list[Tensor]] = {}
    start = 0
    for tensor in tensors:
        for piece in tensor.reshape(-1).split(CHUNK):
            groups.setdefault((piece.device, start // CHUNK), []).append(piece)
            start += piece.numel()
    return (torch.cat([_reals(piece) for piece in group]) for group in groups.values())
