"""PyTorch. In-place names take parameters; a gradient that is changed keeps its identity unless it is sparse."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._core import entry
from .._core.containers import Leaf
from .._core.device import DevicePath, inverse
from .._core.gradients import wants_clipping
from .._core.ops import Later, MergedSparse, Ops, Path, Scalar, Tensor, WholePath
from .._core.shards import Across, Measuring, Shards
from .._core.writes import Write
from . import host, kernels, memory, torch_entry, torch_lists, torch_numbers, torch_shards, torch_sums
from .torch_numbers import HALF

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
    )
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
PLAIN = (torch.Tensor, torch.nn.Parameter)
REAL = (*HALF, torch.float32, torch.float64)
GATHERER: Any = host.gatherer(torch.Tensor, torch.nn.Parameter, [("is_neg", False)], ("requires_grad", True))


class TorchOps(host.OfParameters, Ops):
    """`Ops` and `DeviceOps` for PyTorch."""

    name = "torch"
    writable = True
    gradients_on_parameters = True

    # -- recognising

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) or kernels.is_array(value)

    def adopt(self, value: Any) -> Tensor:
        if isinstance(value, torch.Tensor):
            return value
        return self.from_host(*kernels.storage(kernels.own_copy(value)))

    def adopt_bound(self, value: Any) -> Tensor:
        """A DTensor, as PyTorch's own norm of several is one, as the tensor that all processes have."""
        return self.adopt(torch_shards.gathered(value))

    def dtype(self, tensor: Any) -> str:
        return NAMES.get(tensor.dtype) or str(getattr(tensor.dtype, "name", tensor.dtype)).removeprefix("torch.")

    def shape(self, tensor: Any) -> tuple[int | None, ...]:
        return tuple(tensor.shape)

    # -- gradients on parameters

    def is_parameter(self, value: Any) -> bool:
        return isinstance(value, torch.nn.Parameter)

    def identity(self, parameter: Any) -> Hashable:
        in_graph = torch.compiler.is_compiling() and isinstance(parameter, torch.Tensor)
        key: Hashable = parameter if in_graph else id(parameter)  # with an id the graph would be for that one only
        return key

    def gradient_of(self, parameter: Any) -> Any | None:
        return None if _is_inner(parameter) else getattr(parameter, "grad", None)

    def main_gradient_of(self, parameter: Any) -> Any | None:
        return getattr(parameter, "main_grad", None) if getattr(parameter, "requires_grad", False) else None

    main_gradient_remedy = (
        "Copy it first: parameter.grad = parameter.main_grad.to(parameter.dtype). With Megatron's optimizer, pass "
        "optimizer.get_parameters() after optimizer.prepare_grads()"
    )

    def set_gradient(self, parameter: Any, gradient: Any) -> None:
        parameter.grad = gradient

    def can_have_gradient(self, parameter: Any) -> bool:
        if not isinstance(parameter, torch.Tensor) or _is_inner(parameter):
            return False
        return parameter.requires_grad or isinstance(parameter, torch.nn.Parameter)

    def unsupported(self, gradient: Any) -> str | None:
        if torch.compiler.is_compiling() or not isinstance(gradient, torch.Tensor):
            return None
        if gradient.is_nested:
            return "a nested tensor. Pass its parts instead: gradient.unbind()"
        if isinstance(gradient, FakeTensor) and not _can_compute(gradient):
            return "a FakeTensor outside its FakeTensorMode. Call unified_clip inside it: `with gradient.fake_mode:`"
        return None

    def merge_sparse(self, gradient: Any, *, differentiable: bool) -> MergedSparse | None:
        if _is_strided(gradient):
            return None
        if gradient.layout != torch.sparse_coo:
            raise TypeError(f"tensors of layout {gradient.layout} cannot be clipped; convert it with to_dense()")
        if gradient.sparse_dim() == 0:
            raise TypeError("a sparse tensor without sparse dimensions cannot be clipped; convert it with to_dense()")
        recorded = differentiable and self.wants_derivative(gradient)
        if recorded or self.host_views([gradient._indices(), gradient._values()], differentiable=False) is None:
            merged = torch_numbers.widened(gradient).coalesce()  # rows are summed in float64 and rounded once
            indices, values = merged.indices(), merged.values().to(gradient.dtype)
            indices, values = indices.to(gradient.device), values.to(gradient.device)
        else:
            dtype = self.dtype(gradient)
            rows, array = kernels.merge_rows(
                self.host_view(gradient._indices()), self.host_view(gradient._values()), dtype
            )
            indices, values = torch.from_numpy(rows), self.from_host(array, dtype)

        def restore(new: Tensor) -> Tensor:
            return torch.sparse_coo_tensor(
                indices, new, gradient.shape, device=new.device, is_coalesced=True, check_invariants=False
            )

        return MergedSparse(values, restore, gradient.sparse_dim(), indices)

    def row_groups(self, indices: Tensor, axes: Sequence[int]) -> Tensor:
        return torch.unique(indices[list(axes)], dim=1, return_inverse=True)[1]

    # -- the path

    def shards(
        self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], across: Across, *, differentiable: bool
    ) -> Shards | None:
        found = torch_shards.find(gradients, parameters, across)
        if found is None or (differentiable and not across.is_stated and _records(True) and found.want_derivatives()):
            return None  # PyTorch's own operations on DTensors have derivatives
        entry.leave("gradients that several processes hold cannot be clipped in a graph")
        return found

    def tell_shards(self, parameters: Sequence[Any]) -> bool:
        return any(map(torch_shards.is_dtensor, parameters))

    def check_one_norm(self, gradients: Sequence[Leaf], across: Across) -> None:
        torch_shards.check_spanning(gradients, across)

    def measuring(self, tensors: Sequence[Tensor]) -> Measuring:
        whole = self.whole_of_tensors(tensors, differentiable=False, in_place=False)
        if whole is not None:
            return cast(Measuring, whole)
        views = self.host_views(tensors, differentiable=False)
        return torch_sums.TorchSums(tensors) if views is None else host.HostPath(self, tensors, views)

    def path(self, tensors: Sequence[Tensor], *, differentiable: bool, others: Sequence[Any] = ()) -> Path:
        views = self.host_views([*tensors, *others], differentiable=differentiable)
        if views is not None:
            return host.HostPath(self, tensors, views[: len(tensors)])
        if _need_pairs(tensors, others):
            from .torch_pairs import PairPath  # which builds on this module

            return PairPath(tensors, differentiable)
        return TorchPath(IN_LISTS if _go_in_lists(tensors, others, differentiable) else self, tensors, differentiable)

    def each(self, tensors: Sequence[Tensor], *, differentiable: bool) -> Path | None:
        anywhere = _is_traced() or host.forced_path("pairs")
        if differentiable or not _go_in_lists(tensors, (), differentiable) or _need_pairs(tensors):
            return None
        if not anywhere and any(tensor.device.type == "cpu" for tensor in tensors):
            return None  # the host path is for those
        return EachPath(tensors)

    def whole_of_parameters(self, parameters: Sequence[Any]) -> WholePath | None:
        if not torch.compiler.is_compiling():
            return None if torch_shards.are_flat(parameters) else super().whole_of_parameters(parameters)
        given = [parameter for parameter in parameters if parameter is not None]
        if not all(_is_counted(parameter) for parameter in given):
            return None
        gradients = [parameter.grad for parameter in given if parameter.grad is not None]
        if len(gradients) < len(given) and any(self.main_gradient_of(each) is not None for each in given):
            return None
        if len(set(gradients)) < len(gradients) or any(map(_is_expanded, gradients)):
            return None
        return _whole_in_graph(self, gradients, differentiable=False)

    def whole_of_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> WholePath | None:
        if not torch.compiler.is_compiling():
            return super().whole_of_tensors(tensors, differentiable=differentiable, in_place=in_place)
        return _whole_in_graph(self, tensors, differentiable=differentiable)

    def whole_of_pairs(self, pairs: Sequence[Any]) -> WholePath | None:
        if not torch.compiler.is_compiling():
            whole = super().whole_of_pairs(pairs)
            return None if whole is None or torch_shards.are_flat([pair[0] for pair in pairs]) else whole
        if not all(type(pair) is tuple and len(pair) == 2 and _is_counted(pair[0]) for pair in pairs):
            return None
        return _whole_in_graph(self, [pair[1] for pair in pairs], differentiable=False)

    def gatherer(self) -> Any | None:
        return GATHERER if _gathers() else None

    def records(self, differentiable: bool) -> bool:
        return _records(differentiable)

    def host_views(self, tensors: Sequence[Tensor], *, differentiable: bool) -> list[kernels.Array] | None:
        """Views of all the memory, or None where any condition of the host path does not hold."""
        if _is_watched() or host.forced_path("pairs"):
            return None
        recording = _records(differentiable)
        if any(not _is_plain(tensor) or (recording and tensor.requires_grad) for tensor in tensors):
            return None
        return [self.host_view(tensor) for tensor in tensors]

    def host_view(self, tensor: Tensor) -> kernels.Array:
        return memory.view_at(tensor.data_ptr(), tensor.shape, tensor.stride(), NAMES[tensor.dtype])

    def from_host(self, array: kernels.Array, dtype: str) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor

    def norm_from_host(self, value: float, dtype: str) -> Tensor:
        return torch.tensor(value, dtype=DTYPES[dtype], device="cpu")

    def threads(self) -> int | None:
        return int(torch.get_num_threads())

    def wrote(self, tensors: Sequence[Tensor]) -> None:
        if torch.compiler.is_compiling():
            return  # what is written in a graph is an operation of it
        try:
            torch.autograd.graph.increment_version(tensors)
        except RuntimeError:  # tensors made in inference mode have no version
            torch.autograd.graph.increment_version([tensor for tensor in tensors if not tensor.is_inference()])

    def read(self, scalar: Tensor) -> float | int | None:
        if _is_watched() or not _is_plain(scalar):
            return None
        with kernels.ieee_arithmetic():
            number: float | int = scalar.detach().item()
            return number

    def wants_derivative(self, scalar: Tensor) -> bool:
        return bool(scalar.requires_grad and torch.is_grad_enabled())

    def distinct(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        if torch.compiler.is_compiling():
            return _distinct_in_graph(tensors, describe)
        traced = _is_traced()
        parts = [(index, part) for index, tensor in enumerate(tensors) for part in _parts(tensor)]
        if GATHERER is not None and len(parts) == len(tensors) and not traced:
            lane = GATHERER.of_tensors([part for _, part in parts], False, True)
            if lane is not None and len(lane.tensors) == len(parts):
                return list(range(len(tensors)))
        for index, part in parts:
            if part._is_zerotensor():
                raise ValueError(f"{describe(index)} has no memory, so it cannot be clipped in place; pass its clone()")
        forced = host.forced_path("pairs") == "pairs"
        buffers: dict[int, int] = {}
        views = [
            None if traced or not _has_address(part)
            else _place(part, buffers) if forced or torch_numbers.lacks_float64(part)
            else self.host_view(part)
            for _, part in parts
        ]  # fmt: skip
        owners = memory.distinct([part for _, part in parts], views, lambda number: describe(parts[number][0]))
        found: dict[int, set[int]] = {}
        for (index, _), owner in zip(parts, owners, strict=True):
            found.setdefault(index, set()).add(parts[owner][0])
        for index, others in found.items():
            if len(others) > 1:
                raise ValueError(f"{describe(index)} shares some of its memory with other gradients; pass copies")
        return [found[index].pop() for index in range(len(tensors))]

    # -- what the device path needs

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        device = like[0].device if like else torch.device("cpu")
        if isinstance(value, torch.Tensor):
            return value.reshape(()).to(device=device, dtype=torch.float64)
        if torch.compiler.is_compiling():  # a graph would be for one number to fill with
            return torch.ones((), dtype=torch.float64, device=device) * value
        return torch.full((), float(value), dtype=torch.float64, device=device)

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        total = self.constant(0.0, tensors)
        for tensor in tensors:
            total = total + torch_numbers.powers(tensor, p, divisor).sum().to(total.device)
        return total

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        greatest = self.constant(0.0, tensors)
        for tensor in tensors:
            if tensor.numel():
                found = torch_shards.greatest(torch_numbers.magnitudes(torch_numbers.widened(tensor)))
                greatest = torch.maximum(greatest, found.to(greatest.device))
        return greatest

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        powers = torch_numbers.powers(tensor, 2, divisor)
        return powers.sum(dim=tuple(axes), keepdim=True) if axes else powers

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar:
        magnitudes = torch_numbers.magnitudes(torch_numbers.widened(tensor))
        if not axes:
            return magnitudes
        if tensor.numel() == 0:
            return magnitudes.sum(dim=tuple(axes), keepdim=True)
        return magnitudes.amax(dim=tuple(axes), keepdim=True)

    def group_sum(self, rows: Scalar, groups: Tensor) -> Scalar:
        return torch.zeros_like(rows).index_add(0, groups, rows)[groups]

    def group_max(self, rows: Scalar, groups: Tensor) -> Scalar:
        index = groups.reshape(-1, *[1] * (rows.ndim - 1)).expand_as(rows)
        return torch.zeros_like(rows).scatter_reduce(0, index, rows.detach(), "amax")[groups]

    def root(self, value: Scalar, p: float) -> Scalar:
        return value.sqrt() if p == 2 else value ** inverse(p)

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return torch.where(condition, yes, no)

    def stop_gradient(self, scalar: Scalar) -> Scalar:
        return scalar.detach()

    def rounded(self, scalar: Scalar, dtype: str) -> Scalar:
        return scalar.to(DTYPES[dtype]).to(torch.float64)

    def as_norm(self, scalar: Scalar, dtype: str) -> Tensor:
        return (scalar if type(scalar) in PLAIN else torch_shards.gathered(scalar)).to(DTYPES[dtype])

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        coef = torch_lists.stored(coef)
        return [torch.where(coef.to(t.device) != 1.0, torch_numbers.product(t, coef), t) for t in tensors]

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        """Products take memory, but for tensors that operations on lists scale in place."""
        eager = not torch.compiler.is_compiling() and type(coef) in PLAIN
        in_lists = [eager and _go_in_lists([tensor], (), False) for tensor in tensors]
        others = [tensor for tensor, is_listed in zip(tensors, in_lists, strict=True) if not is_listed]
        products = [torch_numbers.product(tensor, coef) for tensor in others]
        listed = list(itertools.compress(tensors, in_lists))
        return [*self.prepare_write(others, products), *torch_lists.prepare_multiply(listed, coef)]

    def crossed(self, low: Any, high: Any) -> bool | None:
        if _is_watched() or not all(_is_plain(bound) for bound in (low, high) if isinstance(bound, torch.Tensor)):
            return None
        return bool((~(low <= high)).any())

    def bound(self, value: Any, tensor: Tensor) -> Any:
        if isinstance(value, torch.Tensor):
            return torch_numbers.narrowed(value.to(tensor.device), tensor.dtype)
        if tensor.dtype in REAL and torch.compiler.is_compiling():
            return torch_numbers.narrowed(self.constant(value, [tensor]), tensor.dtype)
        return torch.full((), value, dtype=tensor.dtype, device=tensor.device)

    def clamp(self, tensor: Tensor, low: Any, high: Any) -> Tensor:
        return torch.where(tensor < low, low, torch.where(tensor > high, high, tensor))

    def prepare_clamp(self, tensors: Sequence[Tensor], bounds: Sequence[Sequence[Any]]) -> list[Write]:
        results = [self.clamp(tensor, *both) for tensor, both in zip(tensors, bounds, strict=True)]
        return self.prepare_write(tensors, results)

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        return [torch.where(keep.to(tensor.device), tensor, torch.zeros_like(tensor)) for tensor in tensors]

    def prepare_write(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Write]:
        """What is no plain tensor may refuse to be written: it comes first."""
        pairs = list(zip(tensors, values, strict=True))
        special = [pair for pair in pairs if type(pair[0]) not in PLAIN]
        plain = [pair for pair in pairs if type(pair[0]) in PLAIN]
        return [Write(functools.partial(_write, *pair)) for pair in (*special, *plain)]

    def cosine(self, scalar: Scalar) -> Scalar:
        return scalar.cos()

    def copy(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def is_finite(self, scalar: Scalar) -> bool | None:
        return None if _is_watched() or type(scalar) not in PLAIN else bool(scalar.isfinite())

    def nonfinite_counts(self, tensor: Tensor) -> tuple[int, int]:
        return int(tensor.isnan().sum()), int(tensor.isinf().sum())

    def count_nonfinite(self, tensors: Sequence[Tensor]) -> tuple[Scalar, Scalar]:
        zero = self.constant(0.0, tensors)

        def count(test: Callable[[Tensor], Tensor]) -> Scalar:
            return sum((self.constant(test(tensor).sum(), tensors) for tensor in tensors), start=zero)

        return count(torch.isnan), count(torch.isinf)

    def scope(self, differentiable: bool) -> AbstractContextManager[Any]:
        return nullcontext() if differentiable else torch.no_grad()

    # -- for a recording

    def fetched(self, tensor: Tensor) -> kernels.Array:
        return self.host_view(tensor.detach().cpu().resolve_conj().resolve_neg())

    def in_graph(self, values: Sequence[Any]) -> bool:
        return _is_watched() or any(type(value) not in PLAIN for value in values)

    def read_later(self, scalars: Sequence[Scalar]) -> Later:
        numbers = [scalar.detach() for scalar in scalars]
        if any(number.device.type != "cuda" for number in numbers):
            return Later(lambda: [number.tolist() for number in numbers])
        # Into pinned memory, behind what is queued now: a read would wait for what is queued by then.
        copies = [number.to("cpu", non_blocking=True) for number in numbers]
        there = torch.cuda.Event()
        there.record(torch.cuda.current_stream(numbers[0].device))
        return Later(lambda: there.synchronize() or [copy.tolist() for copy in copies], there.query)


class ListOps(TorchOps):
    """The same by operations on whole lists, for tensors that `_go_in_lists`."""

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        if p not in (1, 2):
            return super().power_sum(tensors, p, divisor)
        return torch_lists.power_sums(tensors, p, divisor).sum()

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        return torch_lists.greatest(tensors).max()

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        if coef.dim():
            return super().scale(tensors, coef)  # of slices
        return torch_lists.multiplied(tensors, coef)

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        return torch_lists.prepare_multiply(tensors, coef)

    def prepare_clamp(self, tensors: Sequence[Tensor], bounds: Sequence[Sequence[Any]]) -> list[Write]:
        writes: list[Write] = []
        for indices, group in torch_lists.groups(tensors):
            low, high = bounds[indices[0]]
            if isinstance(low, torch.Tensor) or isinstance(high, torch.Tensor) or low == 0 or high == 0:
                own = [super(ListOps, self).bound(bound, group[0]) for bound in (low, high)]
                results = [self.clamp(tensor, *own) for tensor in group]
                writes.append(Write(functools.partial(torch._foreach_copy_, group, results)))
            else:
                writes += torch_lists.prepare_clamp(group, low, high)
        return writes

    def bound(self, value: Any, tensor: Tensor) -> Any:
        if isinstance(value, torch.Tensor) or torch.compiler.is_compiling():
            return super().bound(value, tensor)
        return value


class EachOps(ListOps):
    """The same with a norm and a coefficient for each tensor of a list: vectors of them."""

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        return torch_lists.power_sums(tensors, p, divisor)

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        return torch_lists.greatest(tensors)

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        return torch_lists.multiplied(tensors, coef)


class TorchPath(DevicePath):
    """The device path, where a graph may hold numbers that it does not know."""

    def _bounds(self, tensor: Tensor, *bounds: Any) -> list[Any]:
        if not torch.compiler.is_compiling():
            return super()._bounds(tensor, *bounds)
        return [self._ops.bound(bound, tensor) for bound in bounds]  # rounded by operations

    def prepare_zero(self, keep: Any) -> list[Write] | None:
        if _is_transformed() or not all(type(tensor) in PLAIN for tensor in self._tensors):
            return None
        drop = ~keep
        return [Write(functools.partial(_zero_where, tensor, drop)) for tensor in self._tensors]


class EachPath(TorchPath):
    """A norm and a coefficient for each tensor of a list."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(EACH, tensors, differentiable=False)

    def norm(self, p: float) -> Scalar:
        # of one dtype at a time, to which they are rounded
        return torch_lists.measured(self._tensors, lambda _, group: TorchPath(EACH, group, False).norm(p))


class WholeInGraph(TorchPath):
    """Plain gradients in a graph, found in one go: looking at each in detail would take long to trace."""

    @property
    def tensors(self) -> list[Tensor]:
        return self._tensors

    def each(self) -> Path:
        return EachPath(self._tensors)

    def part(self, group: range) -> WholeInGraph:
        return WholeInGraph(self._ops, self._tensors[group.start : group.stop], self._differentiable)


def _whole_in_graph(ops: TorchOps, given: Sequence[Any], *, differentiable: bool) -> WholeInGraph | None:
    tensors = [tensor for tensor in given if tensor is not None]
    in_lists = _go_in_lists(tensors, (), differentiable)
    if not tensors or not (in_lists or (differentiable and all(map(_is_real, tensors)))) or _need_pairs(tensors):
        return None
    return WholeInGraph(IN_LISTS if in_lists else ops, tensors, differentiable)


def _is_counted(parameter: Any) -> bool:
    """A parameter that may have a gradient, which is not left out."""
    return type(parameter) is torch.nn.Parameter and parameter.is_leaf and wants_clipping(parameter)


def _go_in_lists(tensors: Sequence[Tensor], others: Sequence[Any], differentiable: bool) -> bool:
    """Whether operations on lists may be used: they have no derivative here, and no rule for transformations."""
    if torch.compiler.is_compiling():
        special = differentiable
    else:
        recorded = _records(differentiable) and any(tensor.requires_grad for tensor in (*tensors, *others))
        special = recorded or _is_transformed() or any(map(_is_inference, tensors))
    return bool(tensors) and not special and all(_is_real(tensor) and tensor.numel() for tensor in tensors)


def _is_strided(tensor: Any) -> bool:
    """The only layout of plain tensors in a graph, where a hook may not ask for it."""
    return (torch.compiler.is_compiling() and type(tensor) in PLAIN) or bool(tensor.layout == torch.strided)


def _is_real(tensor: Any) -> bool:
    return type(tensor) in (*PLAIN, FakeTensor) and _is_strided(tensor) and tensor.dtype in REAL and not _is_neg(tensor)


def _is_neg(tensor: Any) -> bool:
    """Whether the memory holds the negative values, which operations on lists do not write. Never so in a graph."""
    return not torch.compiler.is_compiling() and bool(tensor.is_neg())


def _distinct_in_graph(tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
    """In a graph addresses are not known: the same memory is that of the same object."""
    for index, tensor in enumerate(tensors):
        if _is_expanded(tensor):
            raise memory.expanded(describe(index))
    first: dict[Any, int] = {}
    return [first.setdefault(tensor, index) for index, tensor in enumerate(tensors)]


def _can_compute(fake: FakeTensor) -> bool:
    """Whether the mode of a FakeTensor accepts the tensors that the clip makes."""
    active = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return active is fake.fake_mode or bool(fake.fake_mode.allow_non_fake_inputs)


def _is_expanded(tensor: Tensor) -> bool:
    """In a graph: of another view, since the steps of a gradient that is one itself cannot be traced."""
    view = tensor.view_as(tensor)
    repeated = any(step == 0 and length > 1 for step, length in zip(view.stride(), view.shape, strict=True))
    return repeated and tensor.numel() > 0  # NumPy's empty arrays have such steps


def _records(differentiable: bool) -> bool:
    """Whether a derivative by a tensor that wants one is recorded here."""
    return differentiable and torch.is_grad_enabled()


def _gathers() -> bool:
    return GATHERER is not None and not host.forced_path("pairs") and not _is_watched()


def _is_inner(parameter: Any) -> bool:
    """A result inside the graph, whose `.grad` PyTorch does not keep (and warns about)."""
    return isinstance(parameter, torch.Tensor) and not parameter.is_leaf and not parameter.retains_grad


def _is_plain(tensor: Any) -> bool:
    """Whether the tensor's memory is its value: no subclass, no lazy conjugate or negative, on the CPU."""
    return (
        type(tensor) in PLAIN
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype in NAMES
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
        and (tensor.numel() == 0 or tensor.data_ptr() != 0)
    )


def _parts(tensor: Any) -> list[Any]:
    """The tensors that hold a gradient's values: those inside a wrapper, as DTensor is one; else itself."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]  # DTensor's device mesh is there too
    return [part for each in inner if isinstance(each, torch.Tensor) for part in _parts(each)]


def _has_address(tensor: Any) -> bool:
    """Whether memory that will be written can be told by its address. Sparse gradients are replaced, not written."""
    if tensor.device.type == "meta" or tensor.layout != torch.strided or tensor.dtype not in NAMES:
        return False
    if isinstance(tensor, FakeTensor):  # it has none, and warns when asked
        return False
    with torch._C.DisableTorchFunctionSubclass(), suppress(RuntimeError):  # other subclasses refuse theirs
        return bool(tensor.numel() == 0 or tensor.data_ptr() != 0)
    return False


def _place(tensor: Tensor, buffers: dict[int, int]) -> kernels.Array:
    """The tensor's memory on MPS, to be compared only.

    There an address is that of an object which stands for a buffer, so each buffer gets addresses of its own here.
    """
    number = buffers.setdefault(tensor.untyped_storage().data_ptr(), len(buffers) + 1)
    address = (number << 44) + tensor.storage_offset() * tensor.itemsize
    return memory.view_at(address, tensor.shape, tensor.stride(), NAMES[tensor.dtype])


def _need_pairs(tensors: Sequence[Tensor], others: Sequence[Tensor] = ()) -> bool:
    """Whether scalars are pairs of float32: where a gradient or a threshold has no float64, or where it is forced."""
    wide = any(tensor.dtype in (torch.float64, torch.complex128) for tensor in tensors)
    if wide and any(map(torch_numbers.lacks_float64, tensors)):
        raise TypeError(
            "float64 gradients cannot be clipped together with gradients on a device without float64; convert them to "
            "float32, or clip them by themselves"
        )
    return not wide and (
        any(map(torch_numbers.lacks_float64, (*tensors, *others))) or host.forced_path("pairs") == "pairs"
    )


def _is_watched() -> bool:
    """Whether something traces, transforms or differentiates forward what runs now: raw reads would escape it."""
    return _is_traced() or forward_ad._current_level >= 0


def _is_traced() -> bool:
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or _python_dispatch._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _is_transformed() -> bool:
    """Whether functions are transformed, or differentiated forward, or traced in a way that knows few operations."""
    return (
        torch.jit.is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def _is_inference(tensor: Tensor) -> bool:
    return not torch.compiler.is_compiling() and tensor.is_inference()


def _write(tensor: Tensor, value: Tensor) -> None:
    with torch.inference_mode() if _is_inference(tensor) else nullcontext():
        tensor.copy_(value)


def _zero_where(tensor: Tensor, condition: Tensor) -> None:
    with torch.inference_mode() if _is_inference(tensor) else nullcontext():
        tensor.masked_fill_(condition.to(tensor.device), 0)


torch_entry.prepare()
OPS = TorchOps()
IN_LISTS = ListOps()
EACH = EachOps()
