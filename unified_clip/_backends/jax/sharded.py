"""The host path for JAX arrays that are sharded over several CPU devices, in one process or in several."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..._compute import host, kernels
from ..._core.distributed import DISTINCT, DistributedSpec
from ..._core.types import Leaf, Scalar, Tensor
from ..._distributed.agreement import Replica, label
from ..._distributed.groups import NormGroup, ProcessGroup, Ranks, SingleProcess
from ..._distributed.norm import LocalShards
from ..._distributed.owners import Copies, declared_owner, ownership_unknown
from . import mesh_axes
from .releases import enable_x64


def is_multi_device(tensor: Any) -> bool:
    """Return whether an array is on several CPU devices, or on the CPU device of another process."""
    if not isinstance(tensor, jax.Array) or isinstance(tensor, jax.core.Tracer) or tensor.is_deleted():
        return False
    if not all(device.platform == "cpu" for device in tensor.devices()):
        return False
    return len(tensor.devices()) > 1 or not tensor.is_fully_addressable


class MultiDevicePath(host.HostPath):
    """The norm includes only one copy of each shard."""

    def __init__(self, backend: Any, tensors: Sequence[Tensor]) -> None:
        self._arrays = list(tensors)
        for tensor in self._arrays:
            mesh_axes.reject_unreduced(tensor)
        self._shards_of = [_local_shards(tensor) for tensor in self._arrays]
        shards = [shard for shards in self._shards_of for shard in shards.values()]
        super().__init__(backend, shards)

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
        by_array = [[next(counts) for _ in shards] for shards in self._shards_of]
        return [(sum(nan for nan, _ in counts), sum(inf for _, inf in counts)) for counts in by_array]

    def _new_arrays(self, compute: Callable[[list[kernels.Array]], object]) -> list[Tensor]:
        results = iter(super()._new_arrays(compute))
        both = zip(self._arrays, self._shards_of, strict=True)
        return [_join(array, {key: next(results) for key in shards}) for array, shards in both]

    def _gathered(self) -> host.HostPath:
        return host.HostPath(self._backend, self._arrays)


def _key(index: Sequence[slice]) -> Any:
    return tuple((along.start, along.stop) for along in index)


def _local_shards(tensor: Any) -> dict[Any, Tensor]:
    if not is_multi_device(tensor):
        return {(): tensor}
    return {_key(shard.index): shard.data for shard in reversed(tensor.addressable_shards)}


def _join(like: Any, shards: dict[Any, Tensor]) -> Tensor:
    if not shards:  # all shards are on other processes
        return like
    if not is_multi_device(like):
        return shards[()]
    with enable_x64(True):
        placed = [jax.device_put(shards[_key(shard.index)], shard.device) for shard in like.addressable_shards]
        return jax.make_array_from_single_device_arrays(like.shape, like.sharding, placed)


def put_replicated(value: Tensor, sharding: Any) -> Tensor:
    """Copy a value to the devices of `sharding`. All processes have the value, so they do not communicate."""
    if sharding.is_fully_addressable:
        return jax.device_put(value, sharding)
    local = np.asarray(value)
    return jax.make_array_from_callback(local.shape, sharding, lambda index: local[index])


# -- over several processes


def find(gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> JaxShards | None:
    if not spec.is_given and not any(is_multi_process(_data(leaf.tensor)) for leaf in gradients):
        return None
    return JaxShards(gradients, parameters, spec)


class JaxShards(LocalShards):
    def __init__(self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> None:
        super().__init__(gradients, parameters, spec)
        self.values = [leaf.tensor for leaf in gradients]

    def elements(self, index: int) -> int:
        return int(self.values[index].size)

    def copies(self) -> list[tuple[Leaf, Tensor]]:
        return [(self._leaves[index], self._local(index)) for index in self._assumed_copies]

    def replicas(self, indices: Sequence[int]) -> list[Replica]:
        is_alone = isinstance(self.group(), SingleProcess)
        shared = [] if is_alone else [index for index in indices if index not in self._assumed_copies]
        return [replica for index in shared for replica in self._replicas(index) if replica.copies.number > 1]

    def _replicas(self, index: int) -> Iterator[Replica]:
        leaf, value = self._leaves[index], self.values[index]
        if not self._is_within_group(value):
            raise ValueError(
                f"check_replicas compares all copies of the gradient at {leaf.place}, but some copies are on ranks "
                "outside process_group. Leave process_group or check_replicas out"
            )
        if len(_ranks_of(value)) < self._group.size and self._spec.ownership_of(leaf) != DISTINCT:
            raise ValueError(
                f"check_replicas needs gradients on all ranks of the process group, but the gradient at {leaf.place} "
                "is on only some of these ranks. Leave check_replicas out"
            )
        devices: dict[Any, list[int]] = {}
        for device, at in value.sharding.devices_indices_map(value.shape).items():
            devices.setdefault(_key(at), []).append(device.id)
        for shard in value.addressable_shards:
            ids = devices[_key(shard.index)]
            copies = Copies(tuple(ids), len(ids), shard.replica_id == 0)
            yield Replica(leaf, [shard.data], copies, str(shard.device))

    def world(self) -> JaxGroup:
        return group_of(tuple(range(jax.process_count())))

    @functools.cached_property
    def _group(self) -> JaxGroup:
        return declared_group(self._spec.process_group)

    def group(self) -> ProcessGroup:
        if self._spec.process_group is not None:
            return self._group
        for leaf, value in zip(self._leaves, self.values, strict=True):
            if is_multi_process(value):
                raise ValueError(
                    f"process_group is None, but other processes have shards of the gradient at {leaf.place}. Leave "
                    "process_group out"
                )
        return SingleProcess()

    def counted(self, indices: Sequence[int]) -> list[Tensor]:
        self.group()  # raises if another process has shards, although process_group is None
        self.check_patterns()
        self._assumed_copies = []
        return [shard for index in indices for shard in self.owned(index)]

    def norm_groups(self, known_only: bool = False) -> list[NormGroup]:
        index_of = {leaf.position: index for index, leaf in enumerate(self._leaves)}
        is_alone, norm_groups = isinstance(self.group(), SingleProcess), []
        for leaf in self._parameters:
            index = index_of.get(leaf.position)
            ranks = () if index is None or is_alone else self._ranks_within(self.values[index])
            groups = [group_of(ranks)] if len(ranks) > 1 and jax.process_index() in ranks else []
            norm_groups.append(NormGroup(index, groups, leaf, label(leaf)))
        return norm_groups

    def counted_alone(self, index: int) -> Tensor:
        return self._first_copies(index) if is_multi_process(self.values[index]) else self._local(index)

    def check_by_value(self) -> None:
        """Accept every array, because JAX has no `Partial` placement."""

    def layouts(self) -> Iterable[str]:
        return (str(getattr(value.sharding, "spec", "on one device")) for value in self.values)

    def restored(self, index: int, value: Tensor) -> Any:
        return value

    def _local(self, index: int) -> list[Tensor]:
        return list(_local_shards(self.values[index]).values())

    def _first_copies(self, index: int) -> list[Tensor]:
        value = self.values[index]
        if self._is_within_group(value):
            return [shard.data for shard in value.addressable_shards if shard.replica_id == 0]
        first: dict[Any, Any] = {}
        for device, at in value.sharding.devices_indices_map(value.shape).items():  # in the order of `replica_id`
            is_in_group = device.process_index in self._group.ranks
            if first.get(_key(at)) is None:
                first[_key(at)] = device if is_in_group else None
        ranks = _ranks_of(value)
        if None in first.values() or not set(self._group.ranks) <= set(ranks):
            raise ValueError(
                f"the gradient at {self._leaves[index].place} is on devices of the ranks {list(ranks)}, but "
                f"process_group has the ranks {self._group.ranks}. Pass a group of all ranks that have the model"
            )
        return [shard.data for shard in value.addressable_shards if first[_key(shard.index)] == shard.device]

    def _is_within_group(self, value: Any) -> bool:
        return self._spec.process_group == "auto" or set(_ranks_of(value)) <= set(self._group.ranks)

    def _ranks_within(self, value: Any) -> tuple[int, ...]:
        return _ranks_of(value) if self._is_within_group(value) else tuple(self._group.ranks)

    def owned(self, index: int) -> list[Tensor]:
        if self._spec.process_group is None:
            return self._local(index)
        leaf, value, group = self._leaves[index], self.values[index], self._group
        ranks = _ranks_of(value)
        shards: list[Tensor] = self.counted_alone(index)
        if len(ranks) >= group.size:
            self._counts_by_placement |= bool(shards)
            return shards
        is_owner = declared_owner(self._spec, leaf, ranks, rank=jax.process_index(), first=group.ranks[0])
        if is_owner is None and value.committed:
            kind = f"only on devices of rank {', '.join(map(str, ranks))}"
            raise ownership_unknown(group.size, leaf.place, kind)
        if is_owner is None:
            self._assumed_copies.append(index)  # JAX takes an uncommitted array for a copy. The ranks compare copies
            is_owner = group.ranks[0] in ranks
        return shards if is_owner else []


def _ranks_of(value: Any) -> tuple[int, ...]:
    return tuple(sorted({device.process_index for device in _data(value).devices()}))


def _data(tensor: Any) -> Any:
    return tensor.data if isinstance(tensor, BCOO) else tensor


def is_multi_process(value: Any) -> bool:
    return is_multi_device(value) and not value.is_fully_addressable


# -- process groups of `jax.distributed`, and their all-reduce


class JaxGroup(ProcessGroup):
    def __init__(self, ranks: tuple[int, ...]) -> None:
        super().__init__(self, Ranks(ranks), here=jax.process_index())

    def all_reduce(self, numbers: Sequence[int], op: str) -> list[int]:
        return all_reduce(tuple(self.ranks), numbers, jnp.sum if op == "SUM" else jnp.max)


Job = tuple[Any, int]
"""The device client of JAX, and the rank of this process. A new `jax.distributed.initialize` changes both."""


def _job() -> Job:
    return jax.devices()[0].client, jax.process_index()


def group_of(ranks: tuple[int, ...]) -> JaxGroup:
    return _group_of(ranks, _job())


@functools.cache
def _group_of(ranks: tuple[int, ...], job: Job) -> JaxGroup:
    return JaxGroup(ranks)


@functools.cache
def _mesh_of(ranks: tuple[int, ...], job: Job) -> Mesh:
    """`job` is only a key for the cache."""
    first = {device.process_index: device for device in reversed(jax.devices())}
    return Mesh(np.array([first[rank] for rank in ranks]), ("process",))


def all_reduce(ranks: tuple[int, ...], numbers: Sequence[int], reduce: Callable[..., Tensor]) -> list[int]:
    job = _job()
    mesh = _mesh_of(ranks, job)
    with enable_x64(True), jax.set_mesh(mesh):  # replaces a mesh that the caller has set
        own = np.asarray(numbers, np.int64)[None]
        rows = jax.make_array_from_callback(
            (mesh.size, own.size), NamedSharding(mesh, PartitionSpec("process")), lambda _: own
        )
        reduced: list[int] = np.asarray(_compiled(ranks, reduce, job)(rows).addressable_data(0)).tolist()
        return reduced


@functools.cache
def _compiled(ranks: tuple[int, ...], reduce: Callable[..., Tensor], job: Job) -> Callable[[Tensor], Tensor]:
    replicated = NamedSharding(_mesh_of(ranks, job), PartitionSpec())
    compiled: Callable[[Tensor], Tensor] = jax.jit(functools.partial(reduce, axis=0), out_shardings=replicated)
    return compiled


# -- what callers pass as process_group


def declared_axes(process_group: Any) -> tuple[str, ...] | None:
    """Return the names of mesh axes, or None for a mesh or process indices."""
    if process_group is None:
        return ()
    if isinstance(process_group, str):
        return (process_group,)
    if isinstance(process_group, Mesh):
        return None
    if isinstance(process_group, list | tuple | range):
        if all(isinstance(member, str) for member in process_group):
            return tuple(process_group)
        if all(isinstance(member, numbers.Integral) and not isinstance(member, bool) for member in process_group):
            return None
    raise TypeError(
        f"process_group is {process_group!r}. Pass the name of a mesh axis, a tuple of such names, None, or 'auto'. "
        "With several processes, outside of shard_map, pass a jax.sharding.Mesh or a list of process indices"
    )


def declared_group(process_group: Any) -> JaxGroup:
    count = jax.process_count()
    if isinstance(process_group, str) and process_group == "auto":
        return group_of(tuple(range(count)))
    if isinstance(process_group, Mesh):
        return group_of(_on_mesh(process_group))
    if not process_group:
        raise ValueError(
            f"process_group is {process_group!r}, which contains no process. To use only the gradients of this "
            "process, pass None"
        )
    if declared_axes(process_group):
        raise ValueError(
            f"process_group is {process_group!r}, but this call is not inside shard_map, where axes have names. Pass a "
            "jax.sharding.Mesh, or a list of process indices"
        )
    ranks = tuple(sorted(set(map(int, process_group))))
    if ranks[0] < 0 or ranks[-1] >= count:
        raise ValueError(
            f"process_group is {process_group!r}, but there are {count} processes. Pass process indices from 0 to "
            f"{count - 1}"
        )
    return group_of(ranks)


@functools.cache
def _on_mesh(mesh: Mesh) -> tuple[int, ...]:
    return tuple(sorted({device.process_index for device in mesh.devices.flat}))
