"""PyTorch on devices without float64 (Apple's MPS): the device path, with pairs of float32 in the place of float64.

A pair is the unevaluated sum of two float32: about 48 bits. Its arithmetic is made of error-free transformations, sums
and products that come with their exact rounding errors:

- Dekker, "A floating-point technique for extending the available precision", 1971: the exact product, the exact sum of
  ordered numbers, division, square root.
- Knuth, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B: the exact sum in any order.
- Ogita, Rump and Oishi, "Accurate sum and dot product", 2005: long sums, with the errors summed beside them.
- Joldes, Muller and Popescu, "Tight and rigorous error bounds for basic building blocks of double-word arithmetic",
  2017: the bounds, in units of u = 2**-24.

They need every addition, subtraction and multiplication of float32 rounded to nearest by itself. Eager operations are:
each is a kernel of its own, so nothing is contracted or reordered across them, and PyTorch compiles its Metal kernels
without fast math (unless PYTORCH_MPS_FAST_MATH is set). `torch.compile` for the CPU keeps that too; what it does for
MPS is not known. Quotients and roots may be off by an ULP or two, and subnormal numbers taken for zero: no matter.
None of this has run on such a device: UNIFIED_CLIP_PATH=pairs makes CPUs take it, for tests.

The derivative of a pair is that of `hi`, by float32 operations; `lo` has none.
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
from .primitives import PRIMITIVES, TorchPrimitives

NARROW = (*HALF, torch.float32)

LARGEST = torch.finfo(torch.float32).max

CHUNK = 2**23
"""How many numbers are added at once: some eight float32 vectors of that length, or of twice that, live for a while."""

EXPONENT = 0x7F800000
"""The bits of a float32 that hold its exponent."""


@dataclass(frozen=True)
class Pair:
    """hi + lo, where hi is the float32 nearest to that sum; lo is 0 where hi is not finite."""

    hi: Tensor
    lo: Tensor

    def __add__(self, other: Pair) -> Pair:
        """Off by 3 u**2 at most where the signs agree (Joldes et al., algorithm 5)."""
        total = two_sum(self.hi, other.hi)
        return fast_two_sum(total.hi, total.lo + (self.lo + other.lo))

    def __sub__(self, other: Pair) -> Pair:
        return self + Pair(-other.hi, -other.lo)

    def scaled(self, power: Pair) -> Pair:
        """Return the product with a power of two; exact but for over- and underflow."""
        return Pair(self.hi * power.hi, self.lo * power.hi)

    def __mul__(self, other: Pair) -> Pair:
        """Off by 6 u**2 at most (Joldes et al., algorithm 10)."""
        product = two_product(self.hi, other.hi)
        return fast_two_sum(product.hi, product.lo + (self.hi.detach() * other.lo + self.lo * other.hi.detach()))

    def __truediv__(self, other: Pair) -> Pair:
        """Off by some 15 u**2 (Joldes et al., algorithm 17). Both are brought near 1 first, so nothing overflows."""
        own, its = power_below(self), power_below(other)
        above, below = self.scaled(reciprocal(own)), other.scaled(reciprocal(its))
        near = above.hi / below.hi
        product = two_product(near, below.hi)
        rest = above.hi.detach() - product.hi.detach() - product.lo + (above.lo - near.detach() * below.lo)
        return fast_two_sum(near, rest / below.hi.detach()).scaled(own.scaled(reciprocal(its)))

    def __lt__(self, other: Pair) -> Tensor:
        return (self.hi < other.hi) | ((self.hi == other.hi) & (self.lo < other.lo))

    def __gt__(self, other: Pair) -> Tensor:
        return other < self

    def __le__(self, other: Pair) -> Tensor:
        return (self.hi < other.hi) | ((self.hi == other.hi) & (self.lo <= other.lo))

    def __ge__(self, other: Pair) -> Tensor:
        return other <= self

    def sqrt(self) -> Pair:
        """One step of Newton's from the root of hi (Dekker): off by some u**2."""
        near = self.hi.sqrt()
        square = two_product(near.detach(), near.detach())
        rest = self.hi.detach() - square.hi - square.lo + self.lo
        return fast_two_sum(near, rest / (near.detach() + near.detach()))


def two_sum(a: Tensor, b: Tensor) -> Pair:
    """a + b, exactly (Knuth)."""
    total = a + b
    a, b, rounded = a.detach(), b.detach(), total.detach()
    part = rounded - a
    return Pair(total, (a - (rounded - part)) + (b - part))


def fast_two_sum(big: Tensor, small: Tensor) -> Pair:
    """big + small, exactly, where |big| >= |small| (Dekker). What overflowed or is NaN stays that, without an error."""
    small = _finite(small)
    total = big + small
    return Pair(total, _finite(small - (total.detach() - big.detach())))


def two_product(a: Tensor, b: Tensor) -> Pair:
    """a * b, exactly (Dekker), if the error is no subnormal number.

    The factors are split by their bits, not by a multiplication: nothing overflows, and the partial products are exact.
    """
    product = a * b
    a_high, a_low = _halves(a.detach())
    b_high, b_low = _halves(b.detach())
    rest = a_high * b_high - product.detach()
    return Pair(product, rest + a_high * b_low + a_low * b_high + a_low * b_low)


def summed(terms: Pair) -> Pair:
    """Return the sum along the last axis, by halves, with the errors summed beside it (Ogita, Rump and Oishi).

    Off by (u log2(length))**2, nearly, for terms of one sign.
    """
    hi, lo = terms.hi, terms.lo
    while hi.shape[-1] > 1:
        if hi.shape[-1] % 2:
            hi, lo = (torch.cat((part, torch.zeros_like(part.narrow(-1, 0, 1))), -1) for part in (hi, lo))
        total = two_sum(*hi.chunk(2, -1))
        first, second = lo.chunk(2, -1)
        hi, lo = total.hi, total.lo + (first + second)
    return fast_two_sum(hi.sum(-1), lo.sum(-1))  # of one number, or none


def power_below(number: Pair) -> Pair:
    """Return the power of two in the binade of a number, from 2**-126 to 2**126; a constant to the derivative."""
    exponent = number.hi.detach().view(torch.int32) & EXPONENT
    return _pair(exponent.clamp(1 << 23, 253 << 23).view(torch.float32))


def reciprocal(power: Pair) -> Pair:
    """1 / power, exactly, of a result of `power_below`."""
    return _pair(((254 << 23) - power.hi.view(torch.int32)).view(torch.float32))


class DoubleFloat32Primitives(TorchPrimitives):
    """The primitives of `DoubleFloat32Path`; scalars are Pairs."""

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        """A number beyond float32's is the largest float32. A tensor of float64 or integers is read on the CPU."""
        device = like[0].device if like else torch.device("cpu")
        if isinstance(value, Pair):
            return Pair(value.hi.to(device), value.lo.to(device))
        if isinstance(value, torch.Tensor):
            wide = value.reshape(()) if value.dtype in NARROW else value.reshape(()).cpu().to(torch.float64)
            hi = wide.to(torch.float32)
            lo = _finite((wide - hi).detach().to(torch.float32))
            return Pair(hi.to(device), lo.to(device))
        number = float(value)
        if math.isfinite(number):
            number = max(-LARGEST, min(number, LARGEST))
        hi = nearest(number, "float32")
        lo = nearest(number - hi, "float32") if math.isfinite(number) else 0.0
        return Pair(*(torch.full((), part, dtype=torch.float32, device=device) for part in (hi, lo)))

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        """For p of 1 and 2; the divisor is a power of two near the greatest magnitude."""
        assert divisor is not None
        numbers = [tensor if p == 2 else _magnitudes(tensor) for tensor in tensors]
        device, factor = divisor.hi.device, reciprocal(divisor).hi
        sums = [summed(_powers(vector * factor.to(vector.device), p)) for vector in _vectors(numbers)]
        hi, lo = [part.hi.to(device) for part in sums], [part.lo.to(device) for part in sums]
        return summed(Pair(torch.stack(hi), torch.stack(lo))) if sums else self.constant(0.0, tensors)

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        greatest = self.constant(0.0, tensors).hi
        for vector in _vectors([_magnitudes(tensor) for tensor in tensors]):
            if vector.numel():
                greatest = torch.maximum(greatest, vector.abs().max().to(greatest.device))
        return _pair(greatest)

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        """Return sums of squares, divided by powers of two near the largest magnitude of each slice."""
        assert divisor is not None
        rows = _rows(tensor, axes)
        factor, shape = reciprocal(divisor).hi.reshape(rows.shape[:-1]), divisor.hi.shape
        total = summed(_powers(rows * factor.unsqueeze(-1), 2))
        return Pair(total.hi.reshape(shape), total.lo.reshape(shape))

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar:
        rows = _rows(_magnitudes(tensor), axes).abs()
        greatest = rows.amax(-1) if rows.shape[-1] else rows.sum(-1)
        return _pair(greatest.reshape([1 if axis in axes else length for axis, length in enumerate(tensor.shape)]))

    def root(self, value: Scalar, p: float) -> Scalar:
        return value if p == 1 else value.sqrt()

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return Pair(torch.where(condition, yes.hi, no.hi), torch.where(condition, yes.lo, no.lo))

    def cos(self, scalar: Scalar) -> Scalar:
        """Return the cosine, computed on the CPU in float64."""
        on_cpu = (scalar.hi.cpu().double() + scalar.lo.cpu().double()).cos()
        return self.constant(on_cpu, [scalar.hi])

    def times_divisor(self, scalar: Scalar, divisor: Scalar) -> Scalar:
        return scalar.scaled(divisor)

    def rounded(self, scalar: Scalar, dtype: str) -> Scalar:
        return _pair(scalar.hi)

    def as_norm(self, scalar: Scalar, dtype: str) -> Tensor:
        return scalar.hi

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        return super().scale(tensors, coef.hi)

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        return super().prepare_scale(tensors, coef.hi)

    def bound(self, value: Any, tensor: Tensor) -> Any:
        """Return a bound. A tensor of float64 or integers is rounded on the CPU."""
        if not isinstance(value, torch.Tensor) or value.dtype in NARROW:
            return super().bound(value, tensor)
        return super().bound(value.cpu(), torch.empty(0, dtype=tensor.dtype)).to(tensor.device)

    def is_finite(self, scalar: Scalar) -> bool | None:
        return super().is_finite(scalar.hi)

    def in_graph(self, values: Sequence[Any]) -> bool:
        return super().in_graph([value.hi if isinstance(value, Pair) else value for value in values])

    def read_later(self, scalars: Sequence[Scalar]) -> Deferred:
        parts = super().read_later([part for scalar in scalars for part in (scalar.hi, scalar.lo)])

        def values() -> list[Any]:
            found = [np.asarray(part, np.float64) for part in parts.values()]
            return [(hi + lo).tolist() for hi, lo in zip(found[::2], found[1::2], strict=True)]

        return Deferred(values, parts.ready)


PAIRS = DoubleFloat32Primitives()


class DoubleFloat32Path(DevicePath):
    """The device path in pairs. No number that is squared or divided can over- or underflow on the way.

    A norm of subnormal numbers, or a coefficient that is one, is rounded twice. Norms of other orders than 1, 2 and inf
    are computed on the CPU in float64, which waits for the device.
    """

    def __init__(self, tensors: Sequence[Tensor], differentiable: bool) -> None:
        super().__init__(PAIRS, tensors, differentiable)

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
            return Pair(norms.hi.squeeze(1)[groups], norms.lo.squeeze(1)[groups])
        power = power_below(backend.slice_max_abs(tensor, axes))
        return self._root(backend.slice_power_sum(tensor, axes, power), 2, power)


def _pair(number: Tensor) -> Pair:
    return Pair(number, torch.zeros_like(number))


def _finite(error: Tensor) -> Tensor:
    """Return an error, which is 0 where what it belongs to is not finite."""
    return error.nan_to_num(0.0, 0.0, 0.0)


def _halves(number: Tensor) -> tuple[Tensor, Tensor]:
    """Return the upper and the lower 12 bits of a float32's 24, as two float32."""
    high = (number.view(torch.int32) & -(1 << 12)).view(torch.float32)
    return high, number - high


def _powers(numbers: Tensor, p: float) -> Pair:
    return two_product(numbers, numbers) if p == 2 else _pair(numbers.abs())


def _magnitudes(tensor: Tensor) -> Tensor:
    """|g| of complex numbers, within 1 ULP, NaN where either part is; real tensors as they are."""
    if not tensor.is_complex():
        return tensor
    parts = torch.view_as_real(tensor.resolve_conj())
    power = power_below(_pair(parts.abs().amax(-1)))
    scaled = parts * reciprocal(power).hi.unsqueeze(-1)
    total = summed(_powers(scaled, 2))
    zero = total.hi == 0
    root = PAIRS.where(zero, _pair(torch.ones_like(total.hi)), total).sqrt()
    return torch.where(zero, 0.0, root.hi) * power.hi


def _rows(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """As float32, with `axes` as one, the last; a complex number is two of it."""
    kept = [length for axis, length in enumerate(tensor.shape) if axis not in axes]
    rows = tensor.movedim(tuple(axes), tuple(range(-len(axes), 0)))
    return _reals(rows.reshape(*kept, math.prod([tensor.shape[axis] for axis in axes])))


def _stacked(tensor: Tensor, groups: Tensor) -> Tensor:
    """Return the rows of each group along a second axis, filled up with zeros."""
    counts = groups.bincount()
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    order, position = groups.argsort(stable=True), torch.empty_like(groups)
    position[order] = torch.arange(len(groups), device=groups.device) - first
    stacked = tensor.new_zeros(len(counts), int(counts.max()), *tensor.shape[1:])
    return stacked.index_put((groups, position), tensor)


def _reals(rows: Tensor) -> Tensor:
    return (torch.view_as_real(rows.resolve_conj()).flatten(-2) if rows.is_complex() else rows).to(torch.float32)


def _vectors(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """All numbers in float32 vectors of less than twice CHUNK: few, since each costs some 200 kernels to add up."""
    groups: dict[tuple[torch.device, int], list[Tensor]] = {}
    start = 0
    for tensor in tensors:
        for piece in tensor.reshape(-1).split(CHUNK):
            groups.setdefault((piece.device, start // CHUNK), []).append(piece)
            start += piece.numel()
    return (torch.cat([_reals(piece) for piece in group]) for group in groups.values())
