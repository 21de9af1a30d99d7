"""Dense tensors of Paddle, and the stored rows of its sparse tensors.

Each dense tensor is converted only once, to a dtype that Paddle's operations support.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import paddle

from ..._compute import sparse_rows
from ..._compute.device import odd_bits
from ..._core.types import Scalar, Tensor
from . import releases

HALF = (paddle.float16, paddle.bfloat16)


SMALL_INTEGERS = (paddle.int8, paddle.int16, paddle.uint8)


PIECE, SHORT = 2**20, 2**16
"""Powers are computed for about PIECE numbers at once. Tensors with at most SHORT numbers are joined first."""


class Dense:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.dtype = tensor, tensor.dtype
        self.is_complex = tensor.is_complex()

    @functools.cached_property
    def wide(self) -> Tensor:
        """The tensor in a wider dtype. A complex number becomes two real numbers along a new last axis."""
        tensor = releases.with_elements(self.tensor)
        return paddle.as_real(tensor) if self.is_complex else tensor.astype(wide_dtype(self.dtype))

    def narrow(self, wide: Tensor) -> Tensor:
        if 0 in self.tensor.shape and 0 not in wide.shape:  # `wide` stands in for a tensor without elements
            return paddle.assign(self.tensor)
        if self.is_complex:
            return paddle.as_complex(wide)
        return narrowed(wide, self.dtype)

    @property
    def numbers(self) -> Numbers:
        return Numbers(self.wide, self.is_complex)

    def bound(self, value: Any) -> Tensor:
        dtype = self.wide.dtype
        if isinstance(value, int | float):
            return filled(value, dtype, self.tensor)
        if self.dtype in HALF:
            value = rounded_to_odd(value)
        return narrowed(value, self.dtype).astype(dtype)


class Numbers:
    """The numbers of a tensor, or of a piece of a tensor, in the dtype of `Dense.wide`."""

    def __init__(self, wide: Tensor, is_complex: bool) -> None:
        self.wide, self.is_complex = wide, is_complex

    def times(self, coef: Scalar) -> Tensor:
        eager = paddle.in_dynamic_mode()  # graphs may replace the attribute -0.0 by 0.0
        if eager and coef.ndim == 0 and is_on_cpu(self.wide) and not is_recorded(self.wide, coef):
            # `scale` is four times as fast. On a device, it would wait for `coef`. It has no derivative by `coef`.
            return paddle.scale(self.wide, coef, bias=-0.0)  # adding 0.0 would change the sign of -0.0
        return self.wide * self._fit(coef)  # Paddle may then write the product to the memory of `wide`

    def powers(self, p: float, divisor: Scalar | None) -> Tensor:
        numbers = self.wide.astype("float64")
        if divisor is not None and p in (1, 2):
            numbers = numbers / self._fit(divisor)
        if p == 2:
            return (numbers * numbers).sum(axis=-1) if self.is_complex else numbers * numbers
        magnitudes = (paddle.as_complex(numbers) if self.is_complex else numbers).abs()
        if self.is_complex:  # abs(inf + nan j) is inf
            nan = filled(math.nan, paddle.float64, magnitudes)
            magnitudes = select(paddle.isnan(numbers).any(axis=-1), nan, magnitudes)
        if p == 1:
            return magnitudes
        assert divisor is not None  # for p other than 1 and 2, callers pass a divisor
        zeros = (magnitudes <= filled(0.0, paddle.float64, magnitudes)).astype("float64")
        below = (magnitudes + zeros * divisor).log() - divisor.log()
        rounding = (below > filled(0.0, paddle.float64, below)) & paddle.isfinite(
            magnitudes
        )  # only rounding yields a number above 0
        below = select(rounding, releases.zeros_like(below), below)
        return (below * filled(p, paddle.float64, below)).exp() - zeros

    def power_sum(self, p: float, divisor: Scalar | None) -> Scalar:
        if p != 2 or divisor is not None or is_recorded(self.wide):
            return self.powers(p, divisor).sum()
        numbers = self.wide.astype("float64").reshape([-1])
        return paddle.matmul(numbers, numbers)  # needs no memory for squares, but has no second derivative

    def max_abs(self) -> Scalar:
        magnitudes = self.powers(1, None)
        if min(magnitudes.shape, default=1) < 1:  # amax of an empty tensor returns uninitialized memory
            magnitudes = paddle.concat([magnitudes.reshape([-1]), paddle.zeros([1], "float64")])
        return releases.amax(magnitudes)

    def _fit(self, scalar: Tensor) -> Tensor:
        return scalar.unsqueeze(-1) if self.is_complex and scalar.ndim else scalar


def pieces(tensors: Sequence[Dense]) -> Iterator[Numbers]:
    """Split long tensors to need less memory for float64 copies. Join short tensors to need fewer operations."""
    short: dict[tuple[Any, bool], list[Tensor]] = {}
    for tensor in tensors:
        wide, is_complex = tensor.wide, tensor.is_complex
        length = math.prod(wide.shape)
        if min(wide.shape, default=1) < 0:  # a length is unknown in a static program
            yield tensor.numbers
        elif length > PIECE and not is_recorded(wide):  # the derivative of a slice has the size of the tensor
            yield from (Numbers(part, is_complex) for part in slices(wide, length))
        elif length > SHORT or is_recorded_eagerly(wide):
            yield tensor.numbers
        else:
            short.setdefault((wide.dtype, is_complex), []).append(wide)
    for (_, is_complex), group in short.items():
        yield from (Numbers(part, is_complex) for part in join_short(group, [-1, 2] if is_complex else [-1]))


def join_short(tensors: Sequence[Tensor], shape: list[int]) -> Iterator[Tensor]:
    ends = itertools.accumulate(math.prod(tensor.shape) for tensor in tensors)
    for _, group in itertools.groupby(zip(ends, tensors, strict=True), lambda item: item[0] // PIECE):
        batch = [tensor if tensor.ndim == len(shape) else tensor.reshape(shape) for _, tensor in group]
        yield batch[0] if len(batch) == 1 else paddle.concat(batch)


def slices(wide: Tensor, length: int) -> Iterator[Tensor]:
    longest = max(wide.shape)
    axis, step = wide.shape.index(longest), max(1, PIECE * longest // length)
    for start in range(0, longest, step):
        yield paddle.slice(wide, [axis], [start], [min(start + step, longest)])


def scaled(tensors: Sequence[Dense], coef: Scalar) -> Iterator[Tensor]:
    coefs = {dtype: coef.astype(dtype) for dtype in dict.fromkeys(tensor.wide.dtype for tensor in tensors)}
    return (tensor.narrow(tensor.numbers.times(coefs[tensor.wide.dtype])) for tensor in tensors)


def is_recorded(*tensors: Tensor) -> bool:
    return paddle.is_grad_enabled() and not all(tensor.stop_gradient for tensor in tensors)


def is_recorded_eagerly(*tensors: Tensor) -> bool:
    """Return whether Paddle is in dynamic mode and records derivatives.

    If so, callers use no operations on lists: Paddle cannot compute second derivatives for only some of the tensors.
    """
    return paddle.in_dynamic_mode() and is_recorded(*tensors)


def is_on_cpu(tensor: Tensor) -> bool:
    if isinstance(tensor, paddle.Tensor):
        return bool(tensor.place.is_cpu_place())
    return bool(paddle.get_device() == "cpu")


def filled(value: float, dtype: Any, like: Tensor | None) -> Tensor:
    """Return a 0-d tensor, on the device of `like` if `like` is eager. `value` can be -0.0, inf or NaN."""
    if value == 0 and math.copysign(1.0, value) < 0:  # static programs drop the sign of a constant 0
        return filled(-1.0, dtype, like) * filled(0.0, dtype, like)
    if not math.isfinite(value) and not paddle.in_dynamic_mode():  # Paddle 3.3 cannot load a program with this
        quotient = filled(0.0 if math.isnan(value) else math.copysign(1.0, value), dtype, like) / filled(
            0.0, dtype, like
        )
        return quotient.abs() if math.isnan(value) else quotient  # 0 / 0 is a NaN with a sign
    return releases.full(value, dtype, like.place if isinstance(like, paddle.Tensor) else None)


def like_tensor(condition: Tensor, tensor: Tensor) -> Tensor:
    unknown = min(tensor.shape, default=1) < 0
    return condition.expand(paddle.shape(tensor) if unknown else tensor.shape) if tensor.shape else condition


def select(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Call `paddle.where`. In static programs, the results have 0.0 in place of -0.0."""
    shape = condition.shape
    if min(shape, default=1) < 0:
        shape = paddle.shape(condition)  # expand_as fails for empty tensors
    same_shape = [v if v.shape == condition.shape else v.expand(shape) for v in (yes, no)]
    return paddle.where(condition, *same_shape)


def wide_dtype(dtype: Any) -> Any:
    return paddle.float32 if dtype in HALF else paddle.int64 if dtype in SMALL_INTEGERS else dtype


def narrowed(wide: Tensor, dtype: Any) -> Tensor:
    """Convert numbers to a narrower dtype.

    On the CPU, the conversion of Paddle 3.3 returns wrong values for tiny numbers. For example, 2**-80 can become 1e-4.
    """
    if dtype == paddle.float16:
        zero = wide * filled(0.0, wide.dtype, wide) - (
            wide.detach() - wide
        )  # with the sign and the derivative 1 of `wide`
        wide = select(wide.abs() < filled(2.0**-25, wide.dtype, wide), zero, wide)
    return releases.rounded(wide, dtype)


def rounded_to_odd(value: Tensor) -> Tensor:
    """Round to float32 with rounding to odd, so that a second rounding to 16 bits is correct."""
    if value.dtype in (*HALF, paddle.float32):
        return value.astype("float32")
    wide = value.astype("float64")
    near = wide.astype("float32")
    odd = odd_bits(wide.detach(), near.detach().astype("float64"), near.detach().view("int32"), select).view("float32")
    step = select(odd == near, releases.zeros_like(near), odd - near)  # 0 for infinities
    return near + step.detach()


# -- sparse gradients


def stored_values(gradient: Any) -> Any:
    if not isinstance(gradient, paddle.Tensor) or gradient.is_dense() or gradient.is_dist():
        return gradient
    return releases.values_of_rows(gradient) if gradient.is_selected_rows() else gradient.values()


def dense_shape(tensor: Any) -> tuple[int | None, ...]:
    """The attribute `shape` of a SelectedRows tensor counts only the stored rows."""
    if isinstance(tensor, paddle.Tensor) and tensor.is_selected_rows():
        return (tensor.get_selected_rows().height(), *tensor.shape[1:])
    return tuple(None if length < 0 else length for length in tensor.shape)


def selected_rows(rows: Tensor, height: int, values: Tensor) -> Tensor:
    kinds = paddle.base.core.VarDesc.VarType
    tensor = paddle.Tensor(kinds.FP32, [height, *values.shape[1:]], "", kinds.SELECTED_ROWS, False)
    selected = tensor.get_selected_rows()
    selected.set_rows(rows.numpy().ravel().tolist())
    selected.set_height(height)
    selected.get_tensor()._share_data_with(values.value().get_tensor())
    return tensor


def merge_rows(backend: Any, indices: Tensor, values: Tensor, differentiable: bool) -> tuple[Tensor, Tensor]:
    if backend.takes_host([indices, values], differentiable=differentiable):
        dtype = backend.dtype(values)
        rows, array = sparse_rows.merge_rows(backend.host_view(indices), backend.host_view(values), dtype)
        return backend.from_host(rows, "int64"), backend.from_host(array, dtype)
    if not indices.shape[1]:
        return indices, values
    with backend.scope(differentiable):
        dense = Dense(values)
        rows, position = paddle.unique(indices, return_inverse=True, axis=1)
        wide = dense.wide.astype("float64")
        zeros = paddle.zeros([rows.shape[1], *wide.shape[1:]], "float64")
        sums = paddle.scatter_nd_add(zeros, position.unsqueeze(-1), wide)
        return rows, dense.narrow(sums.astype(dense.wide.dtype))
