"""JAX. Arrays cannot be written, so in-place names update the list or dict; every pytree is a container."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self, cast

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.experimental.sparse import BCOO
from jax.sharding import NamedSharding, PartitionSpec

from .._core.containers import Leaf
from .._core.device import DevicePath, inverse, odd_bits
from .._core.ops import GraphTeller, MergedSparse, Ops, Path, Receive, Scalar, Tensor, WholePath
from .._core.shards import Across, Measuring, Shards
from .._core.writes import Write
from . import host, jax_axes, jax_shards, jax_sums, kernels
from .jax_sums import computed_once

HALF = (jnp.float16, jnp.bfloat16)

SMALL = 4096
"""Elements up to which tensors are copied into one another's company to be added up: see `_fewer`."""


class JaxOps(Ops):
    """`Ops` and `DeviceOps` for JAX."""

    name = "jax"
    writable = False
    donates = True
    takes_capsules = True
    _axes: tuple[str, ...] | None = None
    """Those of `shard_map` that a caller states; None where types tell."""

    def stated(self, across: Across) -> Self:
        group = across.process_group
        if group == "auto":
            return self
        told = copy.copy(self)
        axes = () if group is None else (group,) if isinstance(group, str) else group
        if not isinstance(axes, tuple | list) or not all(isinstance(axis, str) for axis in axes):
            raise TypeError(
                f"process_group is {group!r}; it has to be the name of an axis of shard_map, a tuple of such names, "
                "None, or 'auto'"
            )
        told._axes = tuple(axes)
        return told

    # -- recognising

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, jax.Array | BCOO) or kernels.is_array(value)

    def adopt(self, value: Any) -> Tensor:
        # JAX may read the memory that it is given after it has returned, so it is given a copy.
        if isinstance(value, jax.Array | BCOO):
            return value
        with np.errstate(over="ignore"):  # without x64, a large float64 becomes inf
            return jnp.asarray(kernels.own_copy(value))

    def adopt_bound(self, value: Any) -> Tensor:
        """A NumPy array stays one: JAX without x64 would narrow it."""
        return kernels.own_copy(value) if kernels.is_array(value) else value

    def dtype(self, tensor: Any) -> str:
        return str(getattr(tensor.dtype, "name", tensor.dtype))

    def shape(self, tensor: Any) -> tuple[int | None, ...]:
        return tuple(tensor.shape)

    def children(self, node: Any) -> dict[str, Any] | None:
        if isinstance(node, str) or jax.tree_util.all_leaves([node]):
            return None
        if type(node) in (dict, list, tuple) or hasattr(node, "_fields"):
            return None  # plain containers, which may hold (name, gradient) pairs
        pairs, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda part: part is not node)
        return {jax.tree_util.keystr(path, simple=True): child for path, child in pairs}

    def with_children(self, node: Any, children: list[Any]) -> Any:
        structure = jax.tree_util.tree_structure(node, is_leaf=lambda part: part is not node)
        return jax.tree_util.tree_unflatten(structure, children)

    def unsupported(self, gradient: Any) -> str | None:
        if gradient.dtype != jax.dtypes.float0:
            return None
        return (
            "float0: JAX returns it as the gradient of an integer parameter, and it has no values. Replace it with "
            "None, or pass the gradients of floating-point parameters only"
        )

    def merge_sparse(self, gradient: Any, *, differentiable: bool) -> MergedSparse | None:
        if not isinstance(gradient, BCOO):
            return None
        if gradient.n_batch or not gradient.n_sparse:
            raise TypeError("BCOO with batch dimensions, or without sparse ones, cannot be clipped; use todense()")
        if self.host_views([gradient.indices, gradient.data]) is None:
            indices, data = _merged_rows(gradient)
        else:
            rows = np.asarray(gradient.indices)
            inside = (rows < np.array(gradient.shape[: gradient.n_sparse])).all(axis=1)  # BCOO pads with the rest
            dtype = self.dtype(gradient)
            unique, array = kernels.merge_rows(rows[inside].T, self.host_view(gradient.data)[inside], dtype)
            merged = [jnp.asarray(unique.T), self.from_host(array, dtype)]
            indices, data = self.placed(merged, zip([gradient.indices, gradient.data]))

        def restore(new: Tensor) -> BCOO:
            return BCOO((new, indices), shape=gradient.shape, indices_sorted=True, unique_indices=True)

        return MergedSparse(data, restore, gradient.n_sparse, indices)

    def row_groups(self, indices: Tensor, axes: Sequence[int]) -> Tensor:
        columns = indices[:, list(axes)]
        if self.host_views([indices]) is None:
            return jnp.unique(columns, axis=0, size=len(indices), return_inverse=True)[1].reshape(-1)
        return np.unique(np.asarray(columns), axis=0, return_inverse=True)[1].reshape(-1)  # nothing to compile

    # -- the path

    def path(self, tensors: Sequence[Tensor], *, differentiable: bool, others: Sequence[Any] = ()) -> Path:
        views = self.host_views([*tensors, *others])
        if views is None:
            if self._are_in_parts(tensors, others):
                return cast(Path, jax_shards.PartsPath(self, tensors))
            return JaxPath(self, tensors, differentiable)
        return host.HostPath(self, tensors, views[: len(tensors)])

    def _are_in_parts(self, tensors: Sequence[Tensor], others: Sequence[Any]) -> bool:
        if host.forced_path() or not all(map(_is_concrete, others)):
            return False
        return all(jax_shards.is_in_parts(tensor) or _is_concrete(tensor) for tensor in tensors)

    def shards(
        self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], across: Across, *, differentiable: bool
    ) -> Shards | None:
        if self.in_graph([leaf.tensor for leaf in gradients]):
            if across.ownership is not None or across.check_numel is not None:
                raise TypeError(
                    "ownership and check_numel are for eager calls on the arrays of several processes; in a graph, "
                    "types tell along which axes gradients are cut; leave them out"
                )
            return None
        if self._axes:
            raise ValueError(
                f"process_group names {', '.join(map(repr, self._axes))}, as for axes of shard_map, and this is not "
                "inside it: arrays tell by themselves on which devices they are; leave process_group out"
            )
        if jax.process_count() == 1:
            return super().shards(gradients, parameters, across, differentiable=differentiable)
        return jax_shards.find(gradients, parameters, across)

    def measuring(self, tensors: Sequence[Any]) -> Measuring:
        """`tensors`: arrays of one device, or lists of them."""
        parts = [part for each in tensors for part in (each if isinstance(each, list) else [each])]
        return super().measuring(parts)

    def each(self, tensors: Sequence[Tensor], *, differentiable: bool) -> Path | None:
        each = EachPath(self, tensors, differentiable)
        return each if len(tensors) > 1 and self.in_graph(tensors) and each.is_certain(2) else None

    def spread(self, tensor: Tensor) -> tuple[str, ...]:
        """The axes of `shard_map` along which devices have parts of an array."""
        return jax_axes.spread(tensor, self._axes)

    def anywhere(self, tensors: Sequence[Tensor], found: Sequence[Tensor]) -> Tensor:
        """Whether anything was found, of what was looked for in each tensor, on any device."""
        if self._are_in_parts(tensors, ()):  # where the answers may be on devices that have nothing in common
            return jnp.asarray(any(map(np.asarray, found)))
        return jax_axes.anywhere([(each, self.spread(tensor)) for tensor, each in zip(tensors, found, strict=True)])

    def whole_of_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> WholePath | None:
        kind = next((type(tensor) for tensor in tensors if tensor is not None), object)
        gatherer = None if host.forced_path() else _gatherer(kind)  # type: ignore[arg-type]  # it is hashable
        if gatherer and jax.process_count() > 1 and any(map(jax_shards.is_elsewhere, tensors)):
            return None  # a copy on one device here has a buffer too, and others may have it on several
        return host.whole_path(self, gatherer.of_tensors(tensors, False, False)) if gatherer else None

    def host_views(self, tensors: Sequence[Tensor]) -> list[kernels.Array] | None:
        """Views of all the memory, or None where any array is traced, elsewhere or in parts."""
        if host.forced_path() or not all(_is_concrete(tensor) for tensor in tensors):
            return None
        return [self.host_view(tensor) for tensor in tensors]

    def host_view(self, tensor: Tensor) -> kernels.Array:
        return kernels.storage(np.asarray(tensor))[0]

    def from_host(self, array: kernels.Array, dtype: str) -> Tensor:
        return _put([array.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else array])[0]

    def from_capsules(self, capsules: Sequence[Any]) -> list[Tensor]:
        return _put([np.from_dlpack(_Exporter(capsule)) for capsule in capsules])

    def norm_from_host(self, value: float, dtype: str) -> Tensor:
        return self.from_host(np.array(value, dtype), dtype)

    def placed(self, results: list[Tensor], sources: Iterable[Sequence[Tensor]]) -> list[Tensor]:
        return [_beside(result, tensors) for result, tensors in zip(results, sources, strict=True)]

    def wrote(self, tensors: Sequence[Tensor]) -> None:
        """Arrays are never written."""

    def read(self, scalar: Tensor) -> float | int | None:
        return np.asarray(scalar).item() if _is_concrete(scalar) else None

    def distinct(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        # Nothing is written in place, and two gradients may well be one array: those of a + b are.
        return list(range(len(tensors)))

    # -- what the device path needs, in a scope where JAX has float64

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        return jnp.reshape(jnp.asarray(value, dtype=jnp.float64), ())

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        parts = [(jnp.sum(_powers(tensor, p, divisor)), self.spread(tensor)) for tensor in _fewer(tensors)]
        return computed_once(jax_axes.total(parts))

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        greatest = [self.slice_max_abs(tensor, range(tensor.ndim)).reshape(()) for tensor in _fewer(tensors)]
        here = _max(jnp.stack([jnp.zeros((), jnp.float64), *greatest]), (0,))
        axes = {axis for tensor in tensors for axis in self.spread(tensor)}
        return computed_once(_max(jax_axes.of_every_device(here, sorted(axes)), (0,)).reshape(()))

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        return computed_once(jnp.sum(_powers(tensor, 2, divisor), axis=tuple(axes), keepdims=True))

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar:
        return _max(_magnitudes(tensor), tuple(axes))

    def group_sum(self, rows: Scalar, groups: Tensor) -> Scalar:
        _check_concrete(rows)
        return computed_once(jax.ops.segment_sum(rows, groups, num_segments=len(rows))[groups])

    def group_max(self, rows: Scalar, groups: Tensor) -> Scalar:
        _check_concrete(rows)
        return jax.ops.segment_max(jax.lax.stop_gradient(rows), groups, num_segments=len(rows))[groups]

    def root(self, value: Scalar, p: float) -> Scalar:
        if p == 1:
            return value
        return jnp.sqrt(value) if p == 2 else jnp.exp(jnp.log(value) * inverse(p))  # not by a power: see `_powers`

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return jnp.where(condition, yes, no)

    def stop_gradient(self, scalar: Scalar) -> Scalar:
        return jax.lax.stop_gradient(scalar)

    def rounded(self, scalar: Scalar, dtype: str) -> Scalar:
        return scalar.astype(dtype).astype(jnp.float64)

    def as_norm(self, scalar: Scalar, dtype: str) -> Tensor:
        return scalar.astype(dtype)

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        coef = computed_once(coef)
        changed = coef != 1.0
        return [_select(changed, _product(tensor, coef), tensor) for tensor in tensors]

    def prepare_scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Write]:
        raise AssertionError("JAX arrays cannot be written")

    def crossed(self, low: Any, high: Any) -> bool | None:
        crossed = self.read(jnp.any(~(low <= high)))
        return None if crossed is None else bool(crossed)

    def bound(self, value: Any, tensor: Tensor) -> Any:
        return _narrow(jnp.asarray(value), tensor.dtype)

    def clamp(self, tensor: Tensor, low: Any, high: Any) -> Tensor:
        return jnp.where(tensor < low, low, jnp.where(tensor > high, high, tensor))

    def prepare_clamp(self, tensors: Sequence[Tensor], bounds: Sequence[Sequence[Any]]) -> list[Write]:
        raise AssertionError("JAX arrays cannot be written")

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        return [_select(keep, tensor, jnp.zeros_like(tensor)) for tensor in tensors]

    def prepare_write(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Write]:
        raise AssertionError("JAX arrays cannot be written")

    def cosine(self, scalar: Scalar) -> Scalar:
        return jnp.cos(scalar)

    def copy(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, jax.core.Tracer) else jnp.copy(tensor)

    def is_finite(self, scalar: Scalar) -> bool | None:
        return None if isinstance(scalar, jax.core.Tracer) else bool(jnp.isfinite(scalar))

    def nonfinite_counts(self, tensor: Tensor) -> tuple[int, int]:
        return int(jnp.isnan(tensor).sum()), int(jnp.isinf(tensor).sum())

    def count_nonfinite(self, tensors: Sequence[Tensor]) -> tuple[Scalar, Scalar]:
        def count(test: Callable[[Tensor], Tensor]) -> Scalar:
            return sum(
                (jnp.sum(test(tensor), dtype=jnp.float64) for tensor in tensors), start=jnp.zeros((), jnp.float64)
            )

        return count(jnp.isnan), count(jnp.isinf)

    def scope(self, differentiable: bool) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = jax.enable_x64(True)
        return scope

    # -- for a recording

    def in_graph(self, values: Sequence[Any]) -> bool:
        return any(isinstance(value, jax.core.Tracer) for value in values)

    def graph_teller(self) -> GraphTeller | None:
        return _tell_from_graph


class JaxPath(DevicePath):
    """The device path with norms that are rounded from the exact sum: of orders 1 and 2, but for float64."""

    _ops: JaxOps

    def __init__(self, ops: JaxOps, tensors: Sequence[Tensor], differentiable: bool) -> None:
        for tensor in tensors:
            jax_axes.refuse_terms(tensor)
        super().__init__(ops, tensors, differentiable)

    def norm(self, p: float) -> Scalar:
        return self._rounded([self._tensors], int(p))[0] if self.is_certain(p) else super().norm(p)

    def is_certain(self, p: float) -> bool:
        """Not where sums of float64 lose too much, terms are not exact, or lengths are symbols, in `jax.export`. And
        only with several devices: there the order of additions depends on their number, and XLA needs time to compile
        what makes up for it."""
        of_reals = p == 2 or (p == 1 and not any(map(jnp.iscomplexobj, self._tensors)))
        return (
            jax.device_count() > 1
            and of_reals
            and self.norm_dtype == "float32"
            and all(isinstance(tensor.size, int) for tensor in self._tensors)
        )

    def _rounded(self, groups: Sequence[Sequence[Tensor]], p: int) -> Scalar:
        parts = [[part for tensor in _fewer(group) for part in _real_parts(tensor)] for group in groups]
        return self._ops.rounded(jax_sums.norms(parts, p, self._ops.spread), "float32")


class EachPath(JaxPath):
    """A norm and a coefficient for each gradient: arrays of them."""

    def norm(self, p: float) -> Scalar:
        return self._rounded([[tensor] for tensor in self._tensors], int(p))

    def scale(self, coef: Scalar) -> list[Tensor]:
        return [self._ops.scale([tensor], coef[index])[0] for index, tensor in enumerate(self._tensors)]


def _real_parts(tensor: Tensor) -> list[Tensor]:
    return [tensor.real, tensor.imag] if jnp.iscomplexobj(tensor) else [tensor]


def _put(arrays: list[kernels.Array]) -> list[Tensor]:
    """JAX's arrays, over the memory of NumPy's where that is aligned: on the default device, and free to leave it."""
    with jax.enable_x64(True):  # a float64 array may exist although the process has no x64
        put: list[Tensor] = jax.device_put(arrays, may_alias=True)
        return put


def _beside(result: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Where these tensors are, if they are committed to their devices; else the result stays free to leave its own."""
    homes = {tensor.sharding for tensor in tensors if tensor.committed and tensor.sharding.addressable_devices}
    devices = {device for home in homes for device in home.device_set}
    meshes = {getattr(home, "mesh", None) for home in homes}
    with jax.enable_x64(True):
        if len(tensors) == len(homes) == 1 and result.shape == tensors[0].shape:
            return jax_shards.copied(result, homes.pop())
        if len(devices) == 1:
            return jax.device_put(result, devices.pop())
        if len(meshes) == 1 and None not in meshes:
            return jax_shards.copied(result, NamedSharding(meshes.pop(), PartitionSpec()))
        return result


class _Exporter:
    """What has a capsule to give, as NumPy asks for it. JAX's own `from_dlpack` ties an array to one device."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU


@functools.cache
def _gatherer(kind: type) -> Any | None:
    """For the type of concrete arrays, whose buffers refuse what is deleted, elsewhere or in parts."""
    return host.gatherer(kind) if issubclass(kind, jax.Array) else None


def _is_concrete(tensor: Any) -> bool:
    """Whether the array is all here, in this process and in the memory of one CPU device."""
    if isinstance(tensor, np.ndarray):
        return True
    if not isinstance(tensor, jax.Array) or isinstance(tensor, jax.core.Tracer) or tensor.is_deleted():
        return False
    devices = tensor.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu" and bool(tensor.is_fully_addressable)


def _fewer(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same numbers in fewer tensors: small ones of a type in one. Each sum costs XLA time to compile and to run."""
    groups: dict[Any, list[Tensor]] = {}
    for index, tensor in enumerate(tensors):
        small = isinstance(tensor.size, int) and tensor.size <= SMALL  # it may be symbolic, in `jax.export`
        groups.setdefault(jax.typeof(tensor) if small else index, []).append(tensor)
    return [jnp.stack(group) if len(group) > 1 else _without_last_ones(group[0]) for group in groups.values()]


def _without_last_ones(tensor: Tensor) -> Tensor:
    """The tensor without axes of length 1, if its last is one: XLA takes six times as long to add it up on a CPU, and
    simplifies a shape back where nothing is in its way."""
    if tensor.shape[-1:] != (1,):
        return tensor
    return jax.lax.optimization_barrier(jnp.squeeze(tensor))


def _select(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """`jnp.where`, which takes longer to trace. The condition is 0-d, or has axes of length 1."""
    return jnp.where(condition, yes, no) if condition.ndim else jax.lax.select_n(condition, no, yes)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.astype(jnp.complex128 if jnp.iscomplexobj(tensor) else jnp.float64)


def _merged_rows(gradient: BCOO) -> tuple[Tensor, Tensor]:
    """Indices and summed rows, as many as were given, padded as BCOO does. Summed in float64 and rounded once."""
    outside = jnp.array(gradient.shape[: gradient.n_sparse], gradient.indices.dtype)
    inside = (gradient.indices < outside).all(axis=1)
    indices, inverse = jnp.unique(
        jnp.where(inside[:, None], gradient.indices, outside),
        axis=0,
        size=gradient.nse,
        fill_value=outside,
        return_inverse=True,
    )
    with jax.enable_x64(True):
        shape = (-1, *[1] * (gradient.data.ndim - 1))
        rows = jnp.where(inside.reshape(shape), _wide(gradient.data), 0.0)
        sums = jax.ops.segment_sum(rows, inverse.reshape(-1), num_segments=gradient.nse)
        return indices, sums.astype(gradient.dtype)


def _magnitudes(tensor: Tensor) -> Tensor:
    """|g| in float64, with derivative 0 where g is 0, complex numbers included."""
    if not jnp.iscomplexobj(tensor):
        numbers = _wide(tensor)
        return jnp.where(numbers == 0, 0.0, jnp.abs(numbers))  # JAX's own has derivative 1 at 0
    parts = [jnp.abs(_wide(part)) for part in (tensor.real, tensor.imag)]
    greatest = jnp.maximum(*map(jax.lax.stop_gradient, parts))
    divisor = jnp.where((greatest > 0) & (greatest < math.inf), greatest, 1.0)
    squares = sum(_divided(part, divisor) ** 2 for part in parts)  # the derivative of JAX's own |z| is as of its power
    zero = squares == 0
    magnitudes = jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, squares)) * divisor)
    return jnp.where(jnp.isnan(tensor), math.nan, magnitudes)  # |inf + nan j| is inf


def _divided(numbers: Tensor, divisor: Scalar) -> Tensor:
    """XLA divides by multiplying with the reciprocal, which for a large divisor it flushes to 0."""
    half = 1.0 / jnp.sqrt(divisor)
    return numbers * half * half


def _powers(tensor: Tensor, p: float, divisor: Scalar | None) -> Tensor:
    """|g / divisor|**p. The derivative of JAX's own power is taken outside the scope that has float64."""
    if p == 2 and jnp.iscomplexobj(tensor):
        return _powers(tensor.real, 2, divisor) + _powers(tensor.imag, 2, divisor)
    numbers = _wide(tensor) if p == 2 else _magnitudes(tensor)
    if divisor is not None and p in (1, 2):
        numbers = _divided(numbers, divisor)
    if p == 2:
        return numbers * numbers
    if p == 1:
        return numbers
    assert divisor is not None  # as every order but 1 and 2 has one
    zero = numbers == 0
    below = jnp.log(jnp.where(zero, divisor, numbers)) - jnp.log(divisor)
    below = jnp.where((below > 0) & (numbers < math.inf), 0.0, below)  # at most 0, but for rounding
    return jnp.where(zero, 0.0, jnp.exp(p * below))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _max(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The greatest value along axes, which stay with length 1: 0 for none, NaN where there is any (XLA may drop it)."""
    greatest = jnp.max(values, axis=axes, keepdims=True, initial=0.0)
    return jnp.where(jnp.any(jnp.isnan(values), axis=axes, keepdims=True), math.nan, greatest)


@_max.defjvp  # type: ignore[untyped-decorator]
def _max_jvp(axes: tuple[int, ...], primals: tuple[Tensor], tangents: tuple[Tensor]) -> tuple[Tensor, Tensor]:
    """Shared by all that are the greatest. JAX's own needs float64 where a jitted function is differentiated, and it
    forgets this rule where it differentiates a loop again: what that is for is written out."""
    (values,), (tangent,) = primals, tangents
    with jax.enable_x64(True):
        fixed = jax.lax.stop_gradient(values)
        greatest = _max(fixed, axes)
        found = (fixed == greatest) & (fixed > 0)
        count = jnp.maximum(found.sum(axis=axes, keepdims=True, dtype=jnp.float64), 1.0)

        def shared(numbers: Tensor) -> Tensor:
            return jnp.where(found, numbers, 0.0).sum(axis=axes, keepdims=True) / count

        nothing = jnp.where(jnp.isfinite(fixed), values - fixed, 0.0)  # but its derivative
        return greatest + shared(nothing), shared(tangent)


def _narrow(value: Tensor, dtype: Any) -> Tensor:
    """A bound rounded to a dtype. XLA casts to 16 bits by way of float32, which rounds others twice."""
    if dtype not in HALF or value.dtype in (*HALF, jnp.float32):
        return value.astype(dtype)
    wide = jax.lax.stop_gradient(value.astype(jnp.float64))
    near = wide.astype(jnp.float32)
    bits = odd_bits(wide, near.astype(jnp.float64), jax.lax.bitcast_convert_type(near, jnp.int32), jnp.where)
    once, twice = jax.lax.bitcast_convert_type(bits, jnp.float32).astype(dtype), value.astype(dtype)
    return jnp.where(once == twice, twice, once)  # `twice`, nearly always, has the derivative


def _product(tensor: Tensor, coef: Scalar) -> Tensor:
    """tensor * coef, in float32 with coef rounded to it, but for float64 and complex128."""
    if tensor.dtype == jnp.float64:
        return tensor * coef
    if jnp.iscomplexobj(tensor):
        return jax.lax.complex(_product(tensor.real, coef), _product(tensor.imag, coef))
    return (tensor.astype(jnp.float32) * coef.astype(jnp.float32)).astype(tensor.dtype)


def _tell_from_graph(scalars: Sequence[Scalar], receive: Receive) -> Callable[[], object]:
    def receive_bits(*bits: Any) -> None:
        receive([np.asarray(each).view(np.float64)[..., 0].tolist() for each in bits])

    with jax.enable_x64(True):
        # As bits: without x64 a callback is given float32.
        wide = [jnp.asarray(scalar, jnp.float64) for scalar in scalars]
        jax.debug.callback(receive_bits, *(jax.lax.bitcast_convert_type(each, jnp.uint32) for each in wide))
    wait: Callable[[], object] = jax.effects_barrier
    return wait


def _check_concrete(rows: Any) -> None:
    """Reject sums of groups in traced code: their transposes make float64 arrays where x64 is off."""
    if isinstance(rows, jax.core.Tracer):
        raise TypeError(
            "axes has some, and not all, of the several sparse axes of a BCOO array, which is not supported under jit, "
            "grad and vmap. Pass sparse.todense()"
        )


OPS = JaxOps()
