"""Arrays that several CPU devices hold, of one process or of several: their parts, in the memory of each device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..._compute import host, kernels
from ..._core.distributed import DistributedSpec
from ..._core.types import Leaf, Scalar, Tensor
from ..._distributed.norm import LocalShards, NormGroup, SingleProcess, label
from ..._distributed.placements import ownership_unknown, states
from . import mesh_axes


def is_in_parts(tensor: Any) -> bool:
    """Return whether it is an array on several CPU devices, or on one of another process."""
    if not isinstance(tensor, jax.Array) or isinstance(tensor, jax.core.Tracer) or tensor.is_deleted():
        return False
    if not all(device.platform == "cpu" for device in tensor.devices()):
        return False
    return len(tensor.devices()) > 1 or not tensor.is_fully_addressable


class PartsPath(host.HostPath):
    """The host path over the parts of arrays that are here, each once. Results are arrays of such parts again."""

    def __init__(self, backend: Any, tensors: Sequence[Tensor]) -> None:
        self._arrays = list(tensors)
        for tensor in self._arrays:
            mesh_axes.refuse_terms(tensor)
        self._of = [_distinct(tensor) for tensor in self._arrays]
        parts = [part for each in self._of for part in each.values()]
        super().__init__(backend, parts, [backend.host_view(part) for part in parts])

    def slice_norms(self, axes: Sequence[int], groups: Tensor | None = None) -> Scalar:
        return self._gathered().slice_norms(axes, groups)

    def scale(self, coef: Scalar) -> list[Tensor]:
        return self._gathered().scale(coef) if np.ndim(coef) else super().scale(coef)

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        if self._backend.is_tensor(low) or self._backend.is_tensor(high):
            return self._gathered().clamp(low, high)
        return super().clamp(low, high)

    def as_norm(self, n: Scalar) -> Tensor:
        norm = self._backend.norm_from_host(float(n), self.norm_dtype)
        return self._backend.placed([norm], [self._arrays])[0]

    def nonfinite_counts(self) -> list[tuple[int, int]]:
        counts = iter(super().nonfinite_counts())
        found = [[next(counts) for _ in each] for each in self._of]
        return [(sum(nan for nan, _ in each), sum(inf for _, inf in each)) for each in found]

    def _new(self, compute: Callable[[list[kernels.Array]], Any]) -> list[Tensor]:
        """Return arrays of new parts, cut and copied as the given ones are."""
        parts = iter(super()._new(compute))
        return [
            _join(array, {key: next(parts) for key in of}) for array, of in zip(self._arrays, self._of, strict=True)
        ]

    def _gathered(self) -> host.HostPath:
        """Return the path over arrays that are gathered from devices of this process.

        Slices of arrays of several processes, and tensors as their bounds, are rejected before.
        """
        return host.HostPath(self._backend, self._arrays, [self._backend.host_view(array) for array in self._arrays])


def _key(index: Sequence[slice]) -> Any:
    return tuple((cut.start, cut.stop) for cut in index)


def _distinct(tensor: Any) -> dict[Any, Tensor]:
    """The parts that are here, by where they are in the array. An array of one device is its own, which leaves it free
    to go elsewhere where it is: what JAX takes out of it is not."""
    if not is_in_parts(tensor):
        return {(): tensor}
    return {_key(shard.index): shard.data for shard in reversed(tensor.addressable_shards)}


def _join(like: Any, parts: dict[Any, Tensor]) -> Tensor:
    if not parts:  # all of it is elsewhere
        return like
    if not is_in_parts(like):
        return parts[()]
    with jax.enable_x64(True):
        placed = [jax.device_put(parts[_key(shard.index)], shard.device) for shard in like.addressable_shards]
        return jax.make_array_from_single_device_arrays(like.shape, like.sharding, placed)


def copied(value: Tensor, sharding: Any) -> Tensor:
    """Return a value that every process has, as an array on all devices of a sharding, without telling the others."""
    if sharding.is_fully_addressable:
        return jax.device_put(value, sharding)
    here = np.asarray(value)
    return jax.make_array_from_callback(here.shape, sharding, lambda index: here[index])


# -- over several processes


def find(gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> JaxShards | None:
    """What processes hold together, where anything says so: an array with parts elsewhere, or the caller."""
    if not spec.is_given and not any(is_elsewhere(_data(leaf.tensor)) for leaf in gradients):
        return None
    return JaxShards(gradients, parameters, spec)


class Processes:
    """Processes of `jax.distributed`, this one among them."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self._ranks, self.key = ranks, self
        self.rank, self.size = ranks.index(jax.process_index()), len(ranks)

    def total(self, numbers: Sequence[int]) -> list[int]:
        return _exchanged(self._ranks, numbers, jnp.sum)

    def greatest(self, numbers: Sequence[int]) -> list[int]:
        return _exchanged(self._ranks, numbers, jnp.max)


@functools.cache
def _group_of(ranks: tuple[int, ...]) -> Processes:
    return Processes(ranks)


@functools.cache
def _mesh_of(ranks: tuple[int, ...]) -> Mesh:
    """One device of each process."""
    first = {device.process_index: device for device in reversed(jax.devices())}
    return Mesh(np.array([first[rank] for rank in ranks]), ("process",))


def _exchanged(ranks: tuple[int, ...], numbers: Sequence[int], reduce: Callable[..., Tensor]) -> list[int]:
    mesh = _mesh_of(ranks)
    with jax.enable_x64(True), jax.set_mesh(mesh):  # in the place of a caller's own
        own = np.asarray(numbers, np.int64)[None]
        rows = jax.make_array_from_callback(
            (mesh.size, own.size), NamedSharding(mesh, PartitionSpec("process")), lambda _: own
        )
        found: list[int] = np.asarray(_compiled(ranks, reduce)(rows).addressable_data(0)).tolist()
        return found


@functools.cache
def _compiled(ranks: tuple[int, ...], reduce: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    everywhere = NamedSharding(_mesh_of(ranks), PartitionSpec())
    compiled: Callable[[Tensor], Tensor] = jax.jit(functools.partial(reduce, axis=0), out_shardings=everywhere)
    return compiled


class JaxShards(LocalShards):
    """The shards of one call."""

    def __init__(self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> None:
        super().__init__(gradients, parameters, spec)
        self.values = [leaf.tensor for leaf in gradients]
        self._all = _group_of(tuple(range(jax.process_count())))
        self._copies: list[int] = []

    def elements(self, index: int) -> int:
        return int(self.values[index].size)

    def copies(self) -> list[tuple[Leaf, Tensor]]:
        return [(self._leaves[index], self._held(index)) for index in self._copies]

    def world(self) -> Processes:
        return self._all

    def group(self) -> SingleProcess | Processes:
        if self._spec.process_group is not None:
            return self._all
        for leaf, value in zip(self._leaves, self.values, strict=True):
            if is_elsewhere(value):
                raise ValueError(
                    f"process_group is None, and other processes have parts of the gradient at {leaf.place}; leave "
                    "process_group out"
                )
        return SingleProcess()

    def counted(self, indices: Sequence[int]) -> list[Tensor]:
        alone = isinstance(self.group(), SingleProcess)
        self._copies = []
        return [part for index in indices for part in (self._held(index) if alone else self._counted(index))]

    def rows(self, known_only: bool = False) -> list[NormGroup]:
        index_of = {leaf.position: index for index, leaf in enumerate(self._leaves)}
        is_alone, found = isinstance(self.group(), SingleProcess), []
        for leaf in self._parameters:
            at = index_of.get(leaf.position)
            ranks = () if at is None or is_alone else _ranks_of(self.values[at])
            groups = [_group_of(ranks)] if len(ranks) > 1 and self._all.rank in ranks else []
            found.append(NormGroup(at, groups, leaf, label(leaf)))
        return found

    def whole(self, index: int) -> Tensor:
        """Return the parts that this process counts, as `JaxBackend.partial_sums` takes them."""
        return self._once(index) if is_elsewhere(self.values[index]) else self._held(index)

    def check_by_value(self) -> None:
        """Every element is there with its value."""

    def layouts(self) -> Iterable[str]:
        return (str(getattr(value.sharding, "spec", "on one device")) for value in self.values)

    def restored(self, index: int, value: Tensor) -> Any:
        return value

    def _held(self, index: int) -> list[Tensor]:
        return list(_distinct(self.values[index]).values())

    def _once(self, index: int) -> list[Tensor]:
        return [shard.data for shard in self.values[index].addressable_shards if shard.replica_id == 0]

    def _counted(self, index: int) -> list[Tensor]:
        leaf, value = self._leaves[index], self.values[index]
        ranks = _ranks_of(value)
        parts: list[Tensor] = self.whole(index)
        if len(ranks) == self._all.size:
            return parts
        counts = states(self._spec, leaf, ranks, here=self._all.rank, first=0)
        if counts is None and value.committed:
            raise ownership_unknown(
                self._all.size, leaf.place, f"on devices of rank {', '.join(map(str, ranks))} alone"
            )
        if counts is None:
            self._copies.append(index)  # as JAX takes what is not committed; the ranks compare them
            counts = 0 in ranks
        return parts if counts else []


def _ranks_of(value: Any) -> tuple[int, ...]:
    """Return the processes on whose devices an array is."""
    return tuple(sorted({device.process_index for device in value.devices()}))


def _data(tensor: Any) -> Any:
    """Return the array that has its numbers, of one that may be sparse."""
    return tensor.data if isinstance(tensor, BCOO) else tensor


def is_elsewhere(value: Any) -> bool:
    """Return whether it is on devices of other processes as well, or of those alone."""
    return is_in_parts(value) and not value.is_fully_addressable
