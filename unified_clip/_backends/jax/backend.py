"""The backend of JAX. Arrays are immutable, so in-place functions update the list or dict that contains them."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.experimental.sparse import BCOO, JAXSparse

from ..._compute import host, kernels, sparse_rows
from ..._compute.device import inverse, round_once
from ..._core.backend import Backend, Distributed, Inputs, Pytree, Route, Sparse, always
from ..._core.distributed import DistributedSpec
from ..._core.path import CollectedPath, DevicePrimitives, Path
from ..._core.types import CoalescedSparse, GraphCallback, Leaf, Receive, Scalar, Tensor, with_article
from . import exchange, kernel_custom_call, mesh_axes
from .device_path import JaxPath, magnitudes, maximum, merged_rows, powers, product, select, stack_small
from .exchange import Exporter, beside, is_concrete, put
from .mesh_axes import computed_once, declared_axes
from .releases import check_graph, enable_x64

if TYPE_CHECKING:
    from typing_extensions import Self


def path_name(path: Any) -> str:
    name: str = jax.tree_util.keystr(path, simple=True, separator=".")
    return name


def _device_path(backend: JaxBackend, inputs: Inputs) -> Path:
    check_graph(inputs.all())
    return JaxPath(backend, inputs.tensors, inputs.differentiable)


class JaxBackend(Backend, Pytree, Sparse, Distributed, DevicePrimitives):
    name = "jax"
    writable = False
    donates = True
    takes_capsules = True

    routes = (host.ROUTE, Route("device", always, _device_path))

    def kernels_in_graphs(self) -> bool:
        return host.kernels_in_graphs() and kernel_custom_call.register()

    _axes: tuple[str, ...] | None = None
    """The result of `declared_axes`, or None for `process_group="auto"`."""

    def with_spec(self, spec: DistributedSpec) -> Self:
        if isinstance(spec.process_group, str) and spec.process_group == "auto":
            return self
        backend = copy.copy(self)
        backend._axes = declared_axes(spec.process_group)
        return backend

    # -- tensors

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, jax.Array | BCOO) or kernels.is_array(value)

    def as_tensor(self, value: Any) -> Tensor:
        # JAX may read the memory after the call has returned, so it gets a copy.
        if isinstance(value, jax.Array | BCOO):
            return value
        with np.errstate(over="ignore"):  # without x64, a large float64 becomes inf
            return jnp.asarray(kernels.own_copy(value))

    def detached(self, parameter: Any) -> Tensor:
        return jax.lax.stop_gradient(self.as_tensor(parameter))

    def as_bound(self, value: Any) -> Tensor:
        """Keep a NumPy array, because JAX without x64 would convert float64 to float32."""
        return kernels.own_copy(value) if kernels.is_array(value) else value

    def children(self, node: Any) -> dict[str, Any] | None:
        if isinstance(node, str | JAXSparse) or jax.tree_util.all_leaves([node]):
            return None
        if type(node) in (dict, list, tuple) or hasattr(node, "_fields"):
            return None  # lists, tuples and dicts may have (name, gradient) tuples
        children, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda child: child is not node)
        return {path_name(path): child for path, child in children}

    def with_children(self, node: Any, children: list[Any]) -> Any:
        structure = jax.tree_util.tree_structure(node, is_leaf=lambda child: child is not node)
        return jax.tree_util.tree_unflatten(structure, children)

    def unsupported(self, gradient: Any) -> str | None:
        if isinstance(gradient, JAXSparse) and not isinstance(gradient, BCOO):
            return f"{with_article(type(gradient).__name__)} array. Pass gradient.todense(), or a BCOO array"
        if getattr(gradient, "dtype", None) != jax.dtypes.float0:
            return None
        return (
            "float0, the dtype of JAX's gradients of integer parameters. Replace these gradients with None, or leave "
            "them out"
        )

    def coalesce(self, gradient: Any, *, differentiable: bool) -> CoalescedSparse | None:
        if not isinstance(gradient, BCOO):
            return None
        if gradient.n_batch or not gradient.n_sparse:
            raise TypeError(
                "a BCOO array with batch dimensions, or without sparse dimensions, is not supported. Pass "
                "gradient.todense()"
            )
        if not self.takes_host([gradient.indices, gradient.data]):
            indices, data = merged_rows(gradient)
        else:
            rows = np.asarray(gradient.indices)
            inside = (rows < np.array(gradient.shape[: gradient.n_sparse])).all(axis=1)  # all other rows are padding
            dtype = self.dtype(gradient)
            unique, array = sparse_rows.merge_rows(rows[inside].T, self.host_view(gradient.data)[inside], dtype)
            merged = [jnp.asarray(unique.T), self.from_host(array, dtype)]
            indices, data = self.placed(merged, zip([gradient.indices, gradient.data]))

        def restore(new: Tensor) -> BCOO:
            return BCOO((new, indices), shape=gradient.shape, indices_sorted=True, unique_indices=True)

        return CoalescedSparse(data, restore, gradient.n_sparse, indices)

    def to_dense(self, gradient: Any) -> Tensor:
        if not self.takes_host([gradient.indices, gradient.data]):
            return gradient.todense()
        dense = np.zeros(gradient.shape, gradient.dtype)  # XLA would flush subnormal numbers
        dense[tuple(np.asarray(gradient.indices).T)] = np.asarray(gradient.data)
        return self.from_host(kernels.storage(dense)[0], self.dtype(gradient))

    def stored(self, dense: Tensor, indices: Tensor) -> Tensor:
        return dense.at[tuple(indices.T)].get(mode="fill", fill_value=0)  # 0 for padding

    # -- paths

    def shards(
        self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec, *, differentiable: bool
    ) -> None:
        """Return None: the types of arrays show how they are sharded, and XLA adds over devices and processes."""
        if spec.ownership is not None or spec.checks_numel or spec.check_replicas:
            raise TypeError(
                "ownership, check_numel and check_replicas are not supported on JAX. Leave these arguments out: the "
                "array types show how gradients are sharded"
            )
        mesh_axes.check_declared(self._axes or ())

    def has_ranks(self) -> bool:
        return False

    def sharded_axes(self, tensor: Tensor) -> tuple[str, ...]:
        return mesh_axes.sharded_axes(tensor, self._axes)

    def any_device(self, tensors: Sequence[Tensor], flags: Sequence[Tensor]) -> Tensor:
        if self.takes_host(tensors):  # perhaps no device has all flags
            return jnp.asarray(any(map(np.asarray, flags)))
        return mesh_axes.any_device([(flag, self.sharded_axes(g)) for g, flag in zip(tensors, flags, strict=True)])

    def collect_tensors(self, tensors: Sequence[Any], *, differentiable: bool, in_place: bool) -> CollectedPath | None:
        kind = next((type(tensor) for tensor in tensors if tensor is not None), object)
        collector = None if host.forced_path() else _collector(kind)  # type: ignore[arg-type]  # it is hashable
        if collector and jax.process_count() > 1 and not self.takes_host(tensors):
            return None  # the collector could take a shard for the array
        return host.path_over(self, collector.of_tensors(tensors, False, False)) if collector else None

    def takes_host(self, tensors: Sequence[Tensor], *, differentiable: bool = False) -> bool:
        return not host.forced_path() and all(map(is_concrete, tensors))

    def host_view(self, tensor: Tensor) -> kernels.Array:
        return kernels.storage(np.asarray(tensor))[0]

    def from_host(self, array: kernels.Array, dtype: str) -> Tensor:
        return self.list_from_host([array], [dtype])[0]

    def list_from_host(self, arrays: list[kernels.Array], dtypes: Sequence[str]) -> list[Tensor]:
        both = zip(arrays, dtypes, strict=True)
        return put([array.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else array for array, dtype in both])

    def from_capsules(self, capsules: Sequence[Any]) -> list[Tensor]:
        return put([np.from_dlpack(Exporter(capsule)) for capsule in capsules])

    def products(self, tensors: Sequence[Tensor], coefs: Sequence[float]) -> list[Tensor] | None:
        return exchange.products(tensors, coefs)

    def norm_from_host(self, value: float, dtype: str) -> Tensor:
        return self.from_host(np.array(value, dtype), dtype)

    def placed(self, results: list[Tensor], sources: Iterable[Sequence[Tensor]]) -> list[Tensor]:
        groups = list(sources)
        if not any(tensor.committed for tensors in groups for tensor in tensors):
            return results
        return [beside(result, tensors) for result, tensors in zip(results, groups, strict=True)]

    def bump_versions(self, tensors: Sequence[Tensor]) -> None:
        """JAX arrays are immutable and have no version counters."""

    def from_state(self, values: kernels.Array, like: Tensor | None = None) -> Tensor:
        return self.as_tensor(values.view(np.int32).reshape(-1, 2))

    def has_values(self, vector: Tensor) -> bool:
        return bool(is_concrete(vector))

    def read(self, scalar: Tensor) -> float | int | None:
        return np.asarray(scalar).item() if is_concrete(scalar) else None

    def alias_owners(self, tensors: Sequence[Any], describe: Callable[[int], str]) -> list[int]:
        # No array is overwritten. Two gradients may be one array, such as the gradients of a + b.
        return list(range(len(tensors)))

    # -- primitives of the device path, in a scope where JAX has float64

    stop_gradient = staticmethod(jax.lax.stop_gradient)
    bitcast = staticmethod(jax.lax.bitcast_convert_type)
    stack = staticmethod(jnp.stack)
    sort = staticmethod(jnp.sort)
    total = staticmethod(jnp.sum)
    cos = staticmethod(jnp.cos)
    floor = staticmethod(jnp.floor)

    def constant(self, value: Any, like: Sequence[Tensor]) -> Scalar:
        return jnp.reshape(jnp.asarray(value, dtype=jnp.float64), ())

    def power_sum(self, tensors: Sequence[Tensor], p: float, divisor: Scalar | None) -> Scalar:
        sums = [(jnp.sum(powers(tensor, p, divisor)), self.sharded_axes(tensor)) for tensor in stack_small(tensors)]
        return computed_once(mesh_axes.sum_over_devices(sums))

    def max_abs(self, tensors: Sequence[Tensor]) -> Scalar:
        maxima = [self.slice_max_abs(tensor, range(tensor.ndim)).reshape(()) for tensor in stack_small(tensors)]
        local = maximum(jnp.stack([jnp.zeros((), jnp.float64), *maxima]), (0,))
        axes = {axis for tensor in tensors for axis in self.sharded_axes(tensor)}
        return computed_once(maximum(mesh_axes.gather_scalar(local, sorted(axes)), (0,)).reshape(()))

    def slice_power_sum(self, tensor: Tensor, axes: Sequence[int], divisor: Scalar | None) -> Scalar:
        return computed_once(jnp.sum(powers(tensor, 2, divisor), axis=tuple(axes), keepdims=True))

    def slice_max_abs(self, tensor: Tensor, axes: Sequence[int]) -> Scalar:
        return maximum(magnitudes(tensor), tuple(axes))

    def root(self, value: Scalar, p: float) -> Scalar:
        if p == 1:
            return value
        return jnp.sqrt(value) if p == 2 else jnp.exp(jnp.log(value) * inverse(p))  # not by a power: see `powers`

    def where(self, condition: Any, yes: Scalar, no: Scalar) -> Scalar:
        return jnp.where(condition, yes, no)

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        return tensor.astype(dtype)

    def scale(self, tensors: Sequence[Tensor], coef: Scalar) -> list[Tensor]:
        coef = computed_once(coef)
        changed = coef != 1.0
        return [select(changed, product(tensor, coef), tensor) for tensor in tensors]

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        bounds_inverted = self.read(jnp.any(~(low <= high)))
        return None if bounds_inverted is None else bool(bounds_inverted)

    def bound(self, value: Any, tensor: Tensor) -> Any:
        return round_once(self, jnp.asarray(value), self.dtype(tensor))

    def zeroed(self, tensors: Sequence[Tensor], keep: Any) -> list[Tensor]:
        return [select(keep, tensor, jnp.zeros_like(tensor)) for tensor in tensors]

    def vector(self, values: Sequence[float], like: Sequence[Tensor]) -> Scalar:
        return jnp.asarray(values, jnp.float64)

    def indices(self, length: int, like: Sequence[Tensor]) -> Scalar:
        return jnp.arange(length, dtype=jnp.float64)

    def pinned(self, scalar: Scalar) -> Scalar:
        return jnp.minimum(scalar, sys.float_info.max)

    def pack(self, scalars: Sequence[Scalar]) -> Tensor:
        """Pack int32 words, because an optimizer's state cannot have float64 arrays without x64."""
        return self.bitcast(jnp.concatenate([jnp.reshape(scalar, -1) for scalar in scalars]), "int32")

    def unpack(self, packed: Tensor, lengths: Sequence[int | None], like: Sequence[Tensor]) -> list[Scalar]:
        ends = list(itertools.accumulate(length or 1 for length in lengths))
        parts = jnp.split(self.bitcast(packed, "float64"), ends[:-1])
        return [part if length else part.reshape(()) for part, length in zip(parts, lengths, strict=True)]

    def copy(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, jax.core.Tracer) else jnp.copy(tensor)

    def is_finite(self, scalar: Scalar) -> bool | None:
        return None if isinstance(scalar, jax.core.Tracer) else bool(jnp.isfinite(scalar))

    def count_nonfinite(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        return jnp.sum(jnp.isnan(tensor), dtype=jnp.float64), jnp.sum(jnp.isinf(tensor), dtype=jnp.float64)

    def scope(self, differentiable: bool) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = enable_x64(True)
        return scope

    def kernel_norm(self, tensors: Sequence[Tensor], norm: kernel_custom_call.Norm) -> Scalar:
        return KERNEL_NORM(tensors, norm)

    # -- for a recording

    def in_graph(self, values: Sequence[Any]) -> bool:
        return any(isinstance(value, jax.core.Tracer) for value in values)

    def graph_callback(self) -> GraphCallback | None:
        return _call_from_graph


@functools.cache
def _collector(kind: type) -> Any | None:
    return host.collector(kind) if issubclass(kind, jax.Array) else None


def _call_from_graph(scalars: Sequence[Scalar], receive: Receive) -> Callable[[], object]:
    def receive_bits(*bits: Any) -> None:
        receive([np.asarray(words).view(np.float64)[..., 0].tolist() for words in bits])

    with enable_x64(True):
        # Pass bits, because without x64 a callback receives float32.
        wide = [jnp.asarray(scalar, jnp.float64) for scalar in scalars]
        jax.debug.callback(receive_bits, *(jax.lax.bitcast_convert_type(number, jnp.uint32) for number in wide))
    wait: Callable[[], object] = jax.effects_barrier
    return wait


BACKEND = JaxBackend()
KERNEL_NORM = kernel_custom_call.define(
    lambda tensors, norm: JaxPath(BACKEND, tensors, True, is_per_tensor=norm.per_tensor).norm_by_operations(norm.p)
)
