"""Paddle. In-place names take parameters; a gradient that is changed keeps its memory unless it is sparse.

Paddle shapes the code here in three ways. A Python number in an operation passes through float32 in static programs,
and `-x` or `x * 1.0` loses the sign of zero: constants are 0-d tensors. Its CPU lacks most float16 operations, the
addition of two derivatives among them: each tensor is converted once (`_Dense`). An operation on an eager tensor
while a static program is being built ends the process: that is refused first.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import paddle

from .._core import classes
from .._core.containers import Leaf
from .._core.device import DevicePath, inverse, odd_bits
from .._core.ops import MergedSparse, Ops, Path, Scalar, Tensor, WholePath
from .._core.shards import Across, Measuring, Shards
from .._core.writes import Write
from . import host, kernels, memory, paddle_shards

DTYPES = {
    name: getattr(paddle, name)
    for name in (
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
        "int8", "int16", "int32", "int64", "uint8", "bool",
    )
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
HALF = (paddle.float16, paddle.bfloat16)
SMALL_INTEGERS = (paddle.int8, paddle.int16, paddle.uint8)
PARAMETER = paddle.base.framework.EagerParamBase
PLAIN = (paddle.Tensor, PARAMETER)
CPU = paddle.CPUPlace()
PIECE, SHORT = 2**20, 2**16
"""How many numbers are raised to a power at once, and up to how many a tensor is joined with others for that."""
GATHERER: Any = host.gatherer(
    paddle.Tensor, PARAMETER, [("is_dense", True), ("is_dist", False)], ("stop_gradient", False)
)


OLD_IR = (paddle.base.framework.Variable, paddle.base.framework.Program)


def is_of_old_ir(value: Any) -> bool:
    """Whether a variable or a program is of Paddle's IR before 3.0, in which nothing is clipped."""
    return issubclass(type(value), OLD_IR)  # isinstance with Variable accepts every eager tensor in dynamic mode


def of_old_ir(what: str) -> TypeError:
    return TypeError(
        f"{what} of Paddle's old IR, which unified_clip does not support. Unset FLAGS_enable_pir_api (or set it to 1), "
        "do not enter paddle.pir_utils.OldIrGuard, and build the program again"
    )


class PaddleOps(host.OfParameters, Ops):
    """`Ops` and `DeviceOps` for Paddle: eager tensors, and the Values of static programs."""

    name = "paddle"
    writable = True
    gradients_on_parameters = True

    # -- recognising

    def is_tensor(self, value: Any) -> bool:
        if isinstance(value, paddle.Tensor | paddle.pir.Value) or kernels.is_array(value):
            return True
        if is_of_old_ir(value):
            raise of_old_ir(f"{value.name} is a variable")
        return False

    def adopt(self, value: Any) -> Tensor:
        if not isinstance(value, np.ndarray | np.generic):
            return value
        array, dtype = kernels.storage(kernels.own_copy(value))
        if dtype not in DTYPES and dtype != "uint16":
            raise TypeError(
                f"Paddle has no tensors of NumPy's {dtype}; convert the array to one of {', '.join(DTYPES)}"
            )
        return self.from_host(array, dtype) if paddle.in_dynamic_mode() else paddle.to_tensor(array)

    def dtype(self, tensor: Any) -> str:
        if tensor.dtype == np.uint16 and kernels.is_array(tensor):
            return "bfloat16"  # as everywhere in Paddle
        return NAMES.get(tensor.dtype) or getattr(tensor.dtype, "name", str(tensor.dtype)).removeprefix("paddle.")

    def shape(self, tensor: Any) -> tuple[int | None, ...]:
        return tuple(None if length < 0 else length for length in tensor.shape)

    def parameter_name(self, parameter: Any) -> str | None:
        if isinstance(parameter, paddle.pir.Value) and parameter.has_name:  # or asking for it raises ValueError
            return str(parameter.name)
        return str(parameter.name) if isinstance(parameter, PARAMETER) else None

    # -- gradients on parameters

    def is_parameter(self, value: Any) -> bool:
        return isinstance(value, PARAMETER)

    def gradient_of(self, parameter: Any) -> Any | None:
        if not paddle.in_dynamic_mode():
            raise TypeError(
                "a static program, or a to_static graph with full_graph=True, keeps no gradients on its parameters, so "
                "none can be clipped in place; give the optimizer grad_clip=, clip outside the graph, or use "
                "clip_by_global_norm on the gradients, which returns the result"
            )
        gradient = getattr(parameter, "grad", None)
        return None if paddle_shards.is_cleared(gradient) else gradient

    def main_gradient_of(self, parameter: Any) -> Any | None:
        return None if getattr(parameter, "stop_gradient", True) else getattr(parameter, "main_grad", None)

    main_gradient_remedy = "Paddle's optimizers apply main_grad: pass the clip to the optimizer, grad_clip=..."

    def set_gradient(self, parameter: Any, gradient: Any) -> None:
        if gradient is None:
            parameter.grad = None
        else:
            parameter.grad_ = gradient  # `grad =` would copy

    def held(self, gradient: Any) -> Any:
        """A copy: `grad = None` clears the memory, whoever else has it."""
        return gradient.clone() if gradient is not None and gradient.is_dense() else gradient

    def can_have_gradient(self, parameter: Any) -> bool:
        """Only for a parameter: a gradient looks like any other tensor that wants one, stop_gradient is False there."""
        return isinstance(parameter, PARAMETER)

    def check_hook(self, gradient: Any) -> None:
        if isinstance(gradient, paddle.pir.Value):
            raise TypeError(
                "ErrorClipByValue is for register_hook of an eager tensor, and this is a value of a static program; "
                "use clip_by_value on the gradient there"
            )

    def merge_sparse(self, gradient: Any, *, differentiable: bool) -> MergedSparse | None:
        if not isinstance(gradient, paddle.Tensor) or gradient.is_dense() or gradient.is_dist():
            return None
        _check_mode([gradient])
        if gradient.is_selected_rows():
            height = gradient.get_selected_rows().height()
            indices = paddle.to_tensor(np.array([gradient.rows()], np.int64), place=gradient.place)
            indices, values = self._merge_rows(indices, gradient._get_tensor_from_selected_rows(), differentiable)
            return MergedSparse(values, lambda new: _selected_rows(indices, height, new), 1, indices)
        if not gradient.is_sparse_coo():
            raise TypeError("sparse CSR tensors cannot be clipped; convert it with to_sparse_coo or to_dense")
        indices, values = self._merge_rows(gradient.indices(), gradient.values(), differentiable)

        def restore(new: Tensor) -> Tensor:
            # paddle.sparse.sparse_coo_tensor rejects a tensor without elements.
            return paddle._C_ops.sparse_sparse_coo_tensor(new, indices, gradient.shape)

        return MergedSparse(values, restore, indices.shape[0], indices)

    def row_groups(self, indices: Tensor, axes: Sequence[int]) -> Tensor:
        columns = paddle.stack([indices[axis] for axis in axes])
        return paddle.unique(columns, return_inverse=True, axis=1)[1]

    def _merge_rows(self, indices: Tensor, values: Tensor, differentiable: bool) -> tuple[Tensor, Tensor]:
        """New values, in which those with equal columns of `indices` are summed, and the columns that are left."""
        views = self.host_views([indices, values], differentiable=differentiable)
        if views is not None:
            dtype = self.dtype(values)
            rows, array = kernels.merge_rows(views[0], views[1], dtype)
            return self.from_host(rows, "int64"), self.from_host(array, dtype)
        with self.scope(differentiable):
            dense = _Dense(values)
            rows, position = paddle.unique(indices, return_inverse=True, axis=1)
            wide = dense.wide.astype("float64")
            zeros = paddle.zeros([rows.shape[1], *wide.shape[1:]], "float64")
            sums = paddle.scatter_nd_add(zeros, position.unsqueeze(-1), wide)
            return rows, dense.narrow(sums.astype(dense.wide.dtype))

    # -- gradients that several processes hold

    def shards(
        self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], across: Across, *, differentiable: bool
    ) -> Shards | None:
        if not paddle.in_dynamic_mode():
            _check_static(gradients, across)
            return None
        found = paddle_shards.find(gradients, parameters, across, differentiable=differentiable)
        if found is not None and not across.is_stated and _records(differentiable) and found.want_derivatives():
            found.check_derivatives()
            return None  # Paddle's operations on distributed tensors have one
        return found

    def measuring(self, tensors: Sequence[Tensor]) -> Measuring:
        here = [tensor if _is_plain(tensor) else tensor.detach().cpu() for tensor in tensors]
        return host.HostPath(self, here, [self.host_view(tensor) for tensor in here])

    # -- the path

    def path(self, tensors: Sequence[Tensor], *, differentiable: bool, others: Sequence[Any] = ()) -> Path:
        views = self.host_views([*tensors, *others], differentiable=differentiable)
        if views is None:
            _check_mode([*tensors, *others])
            return DevicePath(self, [_Dense(tensor) for tensor in tensors], differentiable)
        return host.HostPath(self, tensors, views[: len(tensors)])

    def gatherer(self) -> Any | None:
        return GATHERER if _gathers() else None

    def whole_of_parameters(self, parameters: Sequence[Any]) -> WholePath | None:
        """What finds gradients does not look at parameters without one."""
        return None if paddle_shards.any_dist(parameters) else super().whole_of_parameters(parameters)

    def tell_shards(self, parameters: Sequence[Any]) -> bool:
        return paddle_shards.any_dist(parameters)

    def whole_of_pairs(self, pairs: Sequence[Any]) -> WholePath | None:
        """Nor at those of pairs."""
        parameters = (pair[0] for pair in pairs if isinstance(pair, tuple) and pair)
        return None if paddle_shards.any_dist(parameters) else super().whole_of_pairs(pairs)

    def records(self, differentiable: bool) -> bool:
        return _records(differentiable)

    def host_views(self, tensors: Sequence[Tensor], *, differentiable: bool) -> list[kernels.Array] | None:
        """Views of all the memory, or None where any condition of the host path does not hold.

        A view dies with its gradient (`p.grad = None`), even where the tensor it was made of is held: keep none.
        """
        if host.forced_path() or not paddle.in_dynamic_mode():
            return None
        recording = _records(differentiable)
        if any(not _is_plain(tensor) or (recording and not tensor.stop_gradient) for tensor in tensors):
            return None
        return [self.host_view(tensor) for tensor in tensors]

    def host_view(self, tensor: Tensor) -> kernels.Array:
        # No memory, no address: an empty tensor has None or 0 for it.
        return memory.view_at(tensor.data_ptr() or 0, tensor.shape, tensor.strides, NAMES[tensor.dtype])

    def from_host(self, array: kernels.Array, dtype: str) -> Tensor:
        # to_tensor takes ten times as long as a copy; this shares the array's memory, of which uint16 is bfloat16.
        return paddle.Tensor(value=array, place=CPU, persistable=False, zero_copy=True, name="", stop_gradient=True)

    def norm_from_host(self, value: float, dtype: str) -> Tensor:
        return self.from_host(np.array(value, dtype), dtype)

    def wrote(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor._bump_inplace_version()

    def read(self, scalar: Tensor) -> float | int | None:
        return scalar.item() if _is_plain(scalar) else None

    def wants_derivative(self, scalar: Tensor) -> bool:
        return bool(not scalar.stop_gradient and paddle.is_grad_enabled())

    def distinct(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        stored = [_stored(tensor) for tensor in tensors]
        views = [self.host_view(tensor) if _has_address(tensor) else None for tensor in stored]
        return memory.distinct(tensors, views, describe)

    # -- what the device path needs; its tensors are `_Dense`

    def constant(self, value: Any, like: Sequence[_Dense]) -> Scalar:
        if isinstance(value, paddle.Tensor | paddle.pir.Value):
            return value.reshape([]).astype("float64")
        return _full(float(value), paddle.float64, like[0].tensor if like else None)

    def power_sum(self, tensors: Sequence[_Dense], p: float, divisor: Scalar | None) -> Scalar:
        sums = [numbers.power_sum(p, divisor) for numbers in _pieces(tensors)]
        if len(sums) > 1 and not _is_recorded_eagerly(*sums):
            return paddle.stack(sums).sum()
        return functools.reduce(operator.add, sums) if sums else self.constant(0.0, tensors)

    def max_abs(self, tensors: Sequence[_Dense]) -> Scalar:
        greatest = [numbers.greatest() for numbers in _pieces(tensors)]
        return paddle.stack(greatest).amax() if greatest else self.constant(0.0, tensors)

    def slice_power_sum(self, tensor: _Dense, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        powers = tensor.numbers.powers(2, divisor)
        return powers.sum(axis=list(axes), keepdim=True) if axes else powers

    def slice_max_abs(self, tensor: _Dense, axes: Sequence[int]) -> Scalar:
        magnitudes = tensor.numbers.powers(1, None)
        if not axes:
            return magnitudes
        if 0 in magnitudes.shape:
            return magnitudes.sum(axis=list(axes), keepdim=True)
        return magnitudes.amax(axis=list(axes), keepdim=True)

    def group_sum(self, rows: Scalar, groups: Tensor) -> Scalar:
        sums = paddle.scatter_nd_add(paddle.zeros_like(rows), groups.unsqueeze(-1), rows)
        return paddle.gather(sums, groups)

    def group_max(self, rows: Scalar, groups: Tensor) -> Scalar:
        index = groups.reshape([-1, *[1] * (rows.ndim - 1)]).expand_as(rows)
        greatest = paddle.put_along_axis(paddle.zeros_like(rows), index, rows.detach(), 0, reduce="amax")
        return paddle.gather(greatest, groups)

    def root(self, value: Scalar, p: float) -> Scalar:
        if p == 1:
            return value
        return value.sqrt() if p == 2 else (value.log() * self.constant(inverse(p), [])).exp()

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return _where(condition, yes, no)

    def stop_gradient(self, scalar: Scalar) -> Scalar:
        return scalar.detach()

    def rounded(self, scalar: Scalar, dtype: str) -> Scalar:
        return scalar.astype(dtype).astype("float64")

    def as_norm(self, scalar: Scalar, dtype: str) -> Tensor:
        return scalar.astype(dtype)

    def scale(self, tensors: Sequence[_Dense], coef: Scalar) -> list[Tensor]:
        return list(_scaled(tensors, coef))

    def prepare_scale(self, tensors: Sequence[_Dense], coef: Scalar) -> list[Write]:
        return self.prepare_write(tensors, self.scale(tensors, coef))

    def crossed(self, low: Any, high: Any) -> bool | None:
        ordered = (low <= high).all()
        return not bool(ordered) if isinstance(ordered, paddle.Tensor) else None

    def bound(self, value: Any, tensor: _Dense) -> Tensor:
        return tensor.bound(value)

    def clamp(self, tensor: _Dense, low: Any, high: Any) -> Tensor:
        wide = tensor.wide
        return tensor.narrow(_where(wide < low, low, _where(wide > high, high, wide)))

    def prepare_clamp(self, tensors: Sequence[_Dense], bounds: Sequence[Sequence[Any]]) -> list[Write]:
        results = [self.clamp(tensor, *both) for tensor, both in zip(tensors, bounds, strict=True)]
        return self.prepare_write(tensors, results)

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        dense = map(_Dense, tensors)
        return [each.narrow(_where(_like(keep, each.wide), each.wide, paddle.zeros_like(each.wide))) for each in dense]

    def prepare_write(self, tensors: Sequence[_Dense], values: Sequence[Tensor]) -> list[Write]:
        return [
            Write(functools.partial(paddle.assign, value, output=tensor.tensor))
            for tensor, value in zip(tensors, values, strict=True)
        ]

    def cosine(self, scalar: Scalar) -> Scalar:
        return scalar.cos()

    def copy(self, tensor: _Dense) -> Tensor:
        return tensor.tensor.clone()

    def is_finite(self, scalar: Scalar) -> bool | None:
        return bool(paddle.isfinite(scalar)) if isinstance(scalar, paddle.Tensor) else None

    def nonfinite_counts(self, tensor: _Dense) -> tuple[int, int]:
        counts = []
        for found in (paddle.isnan(tensor.wide), paddle.isinf(tensor.wide)):
            elements = found.any(axis=-1) if tensor.is_complex else found
            counts.append(int(elements.astype("int64").sum()))
        return counts[0], counts[1]

    def count_nonfinite(self, tensors: Sequence[_Dense]) -> tuple[Scalar, Scalar]:
        def count(test: Callable[[Tensor], Tensor]) -> Scalar:
            total = self.constant(0.0, tensors)
            for tensor in tensors:
                found = test(tensor.wide).any(axis=-1) if tensor.is_complex else test(tensor.wide)
                total = total + found.astype("float64").sum()
            return total

        return count(paddle.isnan), count(paddle.isinf)

    @contextmanager
    def scope(self, differentiable: bool) -> Iterator[None]:
        with paddle.amp.auto_cast(enable=False), nullcontext() if differentiable else paddle.no_grad():
            yield

    # -- for a recording

    def fetched(self, tensor: Tensor) -> kernels.Array:
        return self.host_view(tensor.cpu())

    def in_graph(self, values: Sequence[Any]) -> bool:
        found = (value.tensor if isinstance(value, _Dense) else value for value in values)
        return not all(isinstance(value, paddle.Tensor) for value in found)


def _records(differentiable: bool) -> bool:
    """Whether a derivative by a tensor that wants one is recorded here."""
    return differentiable and paddle.is_grad_enabled()


def _gathers() -> bool:
    if GATHERER is None or host.forced_path() or not paddle.in_dynamic_mode():
        return False
    return paddle_shards.hybrid() is None  # or what other processes hold matters


class _Dense:
    """A tensor on the device path and its numbers in a dtype that Paddle can compute with."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.dtype = tensor, tensor.dtype
        self.is_complex = tensor.is_complex()

    @functools.cached_property
    def wide(self) -> Tensor:
        """16-bit numbers as float32, small integers as int64, complex numbers as two real ones along a last axis."""
        if self.is_complex:
            return paddle.as_real(self.tensor)
        return self.tensor.astype(_wide_dtype(self.dtype))

    def narrow(self, wide: Tensor) -> Tensor:
        """The inverse, rounded once."""
        if self.is_complex:
            return paddle.as_complex(wide)
        return _narrow(wide, self.dtype)

    @property
    def numbers(self) -> _Numbers:
        return _Numbers(self.wide, self.is_complex)

    def bound(self, value: Any) -> Tensor:
        """A bound rounded to the tensor's dtype, held as `wide` is."""
        dtype = self.wide.dtype
        if isinstance(value, int | float):
            return _full(value, dtype, self.tensor)
        if self.dtype in HALF:
            value = _rounded_to_odd(value)
        return _narrow(value, self.dtype).astype(dtype)


class _Numbers:
    """Numbers to compute with: a `wide`, a part of one, or several one after another."""

    def __init__(self, wide: Tensor, is_complex: bool) -> None:
        self.wide, self.is_complex = wide, is_complex

    def times(self, coef: Scalar) -> Tensor:
        eager = paddle.in_dynamic_mode()  # in graphs -0.0 is the same attribute as 0.0, if that was used first
        if eager and coef.ndim == 0 and _is_on_cpu(self.wide) and not _is_recorded(self.wide, coef):
            # Four times as fast. On another device it would wait for coef, by which it has no derivative.
            return paddle.scale(self.wide, coef, bias=-0.0)  # adding 0.0 would change the sign of -0.0
        return self._fit(coef) * self.wide

    def powers(self, p: float, divisor: Scalar | None) -> Tensor:
        """|g / divisor|**p in float64, with derivative 0 at 0."""
        numbers = self.wide.astype("float64")
        if divisor is not None and p in (1, 2):
            numbers = numbers / self._fit(divisor)
        if p == 2:
            return (numbers * numbers).sum(axis=-1) if self.is_complex else numbers * numbers
        magnitudes = (paddle.as_complex(numbers) if self.is_complex else numbers).abs()
        if self.is_complex:  # abs(inf + nan j) is inf
            nan = _full(math.nan, paddle.float64, magnitudes)
            magnitudes = _where(paddle.isnan(numbers).any(axis=-1), nan, magnitudes)
        if p == 1:
            return magnitudes
        assert divisor is not None  # as every order but 1 and 2 has one
        zeros = (magnitudes <= _full(0.0, paddle.float64, magnitudes)).astype("float64")
        below = (magnitudes + zeros * divisor).log() - divisor.log()
        rounding = (below > _full(0.0, paddle.float64, below)) & paddle.isfinite(magnitudes)  # it is at most 0
        below = _where(rounding, paddle.zeros_like(below), below)
        return (below * _full(p, paddle.float64, below)).exp() - zeros

    def power_sum(self, p: float, divisor: Scalar | None) -> Scalar:
        if p != 2 or divisor is not None or _is_recorded(self.wide):
            return self.powers(p, divisor).sum()
        numbers = self.wide.astype("float64").reshape([-1])
        return paddle.matmul(numbers, numbers)  # no memory for the squares, and no second derivative

    def greatest(self) -> Scalar:
        magnitudes = self.powers(1, None)
        if min(magnitudes.shape, default=1) < 1:  # perhaps no elements, of which amax is whatever lies in memory
            magnitudes = paddle.concat([magnitudes.reshape([-1]), paddle.zeros([1], "float64")])
        return magnitudes.amax()

    def _fit(self, scalar: Tensor) -> Tensor:
        """A 0-d tensor, or one of a number for each slice, so that it broadcasts to `wide`."""
        return scalar.unsqueeze(-1) if self.is_complex and scalar.ndim else scalar


def _pieces(tensors: Sequence[_Dense]) -> Iterator[_Numbers]:
    """All numbers, in pieces: few, since every operation costs, and short, since fresh memory for their float64 copies
    costs more than the arithmetic."""
    short: dict[tuple[Any, bool], list[Tensor]] = {}
    for tensor in tensors:
        wide, is_complex = tensor.wide, tensor.is_complex
        length = math.prod(wide.shape)
        if min(wide.shape, default=1) < 0:  # not known yet
            yield tensor.numbers
        elif length > PIECE and not _is_recorded(wide):  # the derivative of every slice is as large as the tensor
            yield from (_Numbers(part, is_complex) for part in _cut(wide, length))
        elif length > SHORT or _is_recorded_eagerly(wide):
            yield tensor.numbers
        else:
            short.setdefault((wide.dtype, is_complex), []).append(wide)
    for (_, is_complex), each in short.items():
        yield from (_Numbers(joined, is_complex) for joined in _joined(each, [-1, 2] if is_complex else [-1]))


def _joined(tensors: Sequence[Tensor], shape: list[int]) -> Iterator[Tensor]:
    """Tensors one after another, about `PIECE` numbers at once."""
    ends = itertools.accumulate(math.prod(tensor.shape) for tensor in tensors)
    for _, pairs in itertools.groupby(zip(ends, tensors, strict=True), lambda pair: pair[0] // PIECE):
        batch = [tensor if tensor.ndim == len(shape) else tensor.reshape(shape) for _, tensor in pairs]
        yield batch[0] if len(batch) == 1 else paddle.concat(batch)


def _cut(wide: Tensor, length: int) -> Iterator[Tensor]:
    """A tensor in parts of about `PIECE` numbers along its longest axis."""
    longest = max(wide.shape)
    axis, step = wide.shape.index(longest), max(1, PIECE * longest // length)
    for start in range(0, longest, step):
        yield paddle.slice(wide, [axis], [start], [min(start + step, longest)])


def _scaled(tensors: Sequence[_Dense], coef: Scalar) -> Iterator[Tensor]:
    """Products with coef in float32, but for float64 and complex128. Times 1 changes no bit."""
    coefs = {dtype: coef.astype(dtype) for dtype in dict.fromkeys(tensor.wide.dtype for tensor in tensors)}
    return (tensor.narrow(tensor.numbers.times(coefs[tensor.wide.dtype])) for tensor in tensors)


def _is_recorded(*tensors: Tensor) -> bool:
    """Whether a derivative by any of them is being recorded, or may be asked for in a graph."""
    return paddle.is_grad_enabled() and not all(tensor.stop_gradient for tensor in tensors)


def _is_recorded_eagerly(*tensors: Tensor) -> bool:
    """Then a second derivative may be asked for, which Paddle's operations on lists have for all tensors or none."""
    return paddle.in_dynamic_mode() and _is_recorded(*tensors)


def in_static_mode() -> bool:
    """Whether a static program is being built by hand; paddle.jit.to_static builds its own."""
    return not paddle.in_dynamic_mode() and not in_to_static_mode()


def in_to_static_mode() -> bool:
    return bool(paddle.base.dygraph.base.in_to_static_mode())


def _check_static(gradients: Iterable[Leaf], across: Across) -> None:
    """Refuse what several processes hold in static programs, which add up nothing over them."""
    values = [leaf for leaf in gradients if isinstance(leaf.tensor, paddle.pir.Value)]
    of_parameters = any(getattr(leaf.parameter, "is_parameter", False) for leaf in values)
    told = any(leaf.tensor.is_dist() for leaf in values) or (of_parameters and paddle_shards.hybrid() is not None)
    if across.is_stated or told:
        raise TypeError(
            "gradients that several processes hold are clipped in dynamic mode only, and this is a static program, or "
            "a graph of to_static; leave the optimizer and its clip outside of it"
        )


def _check_mode(tensors: Iterable[Any]) -> None:
    """Refuse eager tensors while a static program is being built, where the first operation would end the process,
    and the values of any other program, which would give one that cannot run."""
    if in_to_static_mode():
        return
    building = None if paddle.in_dynamic_mode() else paddle.static.default_main_program()
    for tensor in tensors:
        if building is not None and isinstance(tensor, paddle.Tensor):
            raise TypeError("an eager tensor cannot be clipped in static mode; call paddle.disable_static() first")
        if isinstance(tensor, paddle.pir.Value) and tensor.block.program is not building:
            raise ValueError(
                "a value of a static program can be clipped only while that program is being built; clip it in static "
                "mode, under paddle.static.program_guard(its program)"
            )


def _is_on_cpu(tensor: Tensor) -> bool:
    if isinstance(tensor, paddle.Tensor):
        return bool(tensor.place.is_cpu_place())
    return bool(paddle.get_device() == "cpu")


def _is_plain(tensor: Any) -> bool:
    """Whether the tensor's value lies in CPU memory that may be read."""
    return _has_address(tensor) and bool(tensor.place.is_cpu_place())


def _has_address(tensor: Any) -> bool:
    """Whether the tensor's memory, on any device, is its value: no subclass, dense, not distributed, not freed."""
    if type(tensor) not in PLAIN or not tensor.is_dense() or tensor.dtype not in NAMES:
        return False
    return 0 in tensor.shape or bool(tensor._is_initialized() and tensor.data_ptr())


def _stored(gradient: Any) -> Any:
    """The tensor that holds a gradient's numbers, which for a sparse one is its values."""
    if not isinstance(gradient, paddle.Tensor) or gradient.is_dense() or gradient.is_dist():
        return gradient
    return gradient._get_tensor_from_selected_rows() if gradient.is_selected_rows() else gradient.values()


def _selected_rows(rows: Tensor, height: int, values: Tensor) -> Tensor:
    """A sparse gradient as an embedding makes it, over the memory of `values`."""
    kinds = paddle.base.core.VarDesc.VarType
    tensor = paddle.Tensor(kinds.FP32, [height, *values.shape[1:]], "", kinds.SELECTED_ROWS, False)
    selected = tensor.get_selected_rows()
    selected.set_rows(rows.flatten().tolist())
    selected.set_height(height)
    selected.get_tensor()._share_data_with(values.value().get_tensor())
    return tensor


def _full(value: float, dtype: Any, like: Tensor | None) -> Tensor:
    """An exact 0-d constant, on the device of an eager tensor."""
    if value == 0 and math.copysign(1.0, value) < 0:  # static programs keep no sign of a constant 0
        return _full(-1.0, dtype, like) * _full(0.0, dtype, like)
    return paddle.full([], value, dtype, device=like.place if isinstance(like, paddle.Tensor) else None)


def _like(condition: Tensor, tensor: Tensor) -> Tensor:
    """A condition in the shape of a tensor, which may be known later only."""
    unknown = min(tensor.shape, default=1) < 0
    return condition.expand(paddle.shape(tensor) if unknown else tensor.shape) if tensor.shape else condition


def _where(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """paddle.where, which in static programs broadcasts by adding zeros, so that -0.0 becomes 0.0."""
    shape = condition.shape
    if min(shape, default=1) < 0:
        shape = paddle.shape(condition)  # expand_as fails where it turns out that there are no elements
    same_shape = [v if v.shape == condition.shape else v.expand(shape) for v in (yes, no)]
    return paddle.where(condition, *same_shape)


def _wide_dtype(dtype: Any) -> Any:
    return paddle.float32 if dtype in HALF else paddle.int64 if dtype in SMALL_INTEGERS else dtype


def _narrow(wide: Tensor, dtype: Any) -> Tensor:
    """A cast, repaired: on the CPU, Paddle 3.3 turns float32 numbers near 2**-80 into float16 ones of up to 1e-4."""
    if dtype == paddle.float16:
        nothing = wide * _full(0.0, wide.dtype, wide) - (wide.detach() - wide)  # of wide's sign, with derivative 1
        wide = _where(wide.abs() < _full(2.0**-25, wide.dtype, wide), nothing, wide)
    return wide.astype(dtype)


def _rounded_to_odd(value: Tensor) -> Tensor:
    """As float32, from which a cast to 16 bits rounds as from `value` itself."""
    if value.dtype in (*HALF, paddle.float32):
        return value.astype("float32")
    wide = value.astype("float64")
    near = wide.astype("float32")
    odd = odd_bits(wide.detach(), near.detach().astype("float64"), near.detach().view("int32"), _where).view("float32")
    step = _where(odd == near, paddle.zeros_like(near), odd - near)  # infinities have none
    return near + step.detach()


def _run_as_written() -> None:
    """Have paddle.jit.to_static call the public functions as they are, since it cannot translate their source.

    By default it then leaves its graph for them, and they take the host path; with full_graph=True they are traced.
    """
    public = [getattr(classes.Names, name) for name in dir(classes.Names) if not name.startswith("_")]
    public += [classes.GradientClip.__call__, classes.GradientClip.clip_, classes.ErrorClipByValue.__call__]
    for function in filter(inspect.isfunction, public):
        paddle.jit.not_to_static(paddle.jit.marker.force_dynamic(function))
    package = str(FilePath(__file__).parent.parent) + os.sep
    with suppress(AttributeError):  # not public: it keeps the translator away from what they call
        paddle.framework.core.eval_frame_skip_file_prefix((package,))


OPS = PaddleOps()
_run_as_written()
