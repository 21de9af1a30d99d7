"""Assign each gradient element to one rank, by placements on a mesh or by the caller's `ownership`."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from .._core.distributed import REPLICATED, DistributedSpec, Measures
from .._core.types import Leaf, Tensor
from .agreement import Replica, label
from .groups import Mesh, NormGroup, ProcessGroup, Ranks, SingleProcess
from .owners import (
    REMEDY,
    Copies,
    Terminology,
    copies_unknown,
    declared_owner,
    norm_unknown,
    ownership_unknown,
)

Kind = Literal["shard", "replicate", "partial"]
""""shard" includes similar placements, such as a different number of rows on each rank."""


class Placements(ABC):
    """The owner ranks of the gradients of a call."""

    terminology: ClassVar[Terminology]
    values: list[Tensor]
    _counts_by_placement = False
    """Whether placements make this rank the owner of at least one gradient."""

    def __init__(self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> None:
        self._leaves, self._parameters, self._spec = list(gradients), list(parameters), spec
        self._gradients = [leaf.tensor for leaf in gradients]
        self._assumed_copies: list[int] = []
        self._groups: dict[Any, ProcessGroup] = {}
        self._is_owned: dict[int, bool] = {}
        self._deferred: list[int] = []
        self._checked_meshes: dict[int, Ranks] = {}
        self._owned_layouts: dict[Hashable, bool] = {}

    # -- from the framework

    @abstractmethod
    def is_sharded(self, tensor: Any) -> bool:
        """Return whether a tensor has a mesh and placements. All other tensors are called plain tensors."""

    @abstractmethod
    def mesh(self, tensor: Any) -> Mesh:
        """Two tensors on one mesh get the same `Mesh` object."""

    @abstractmethod
    def kinds(self, tensor: Any) -> Sequence[Kind]:
        """Return how the tensor is placed along each dimension of its mesh."""

    @abstractmethod
    def reduced(self, index: int) -> Tensor:
        """Return the local tensor of a gradient. For a `Partial` gradient, compute this tensor by a collective."""

    @abstractmethod
    def layout(self, tensor: Any) -> str:
        """Return the placements as text, such as "Shard(dim=0) over dp=4"."""

    @abstractmethod
    def world(self) -> ProcessGroup: ...

    @abstractmethod
    def group_from(self, process_group: Any) -> ProcessGroup: ...

    @abstractmethod
    def shard_groups(self, leaf: Leaf, tensor: Any) -> Sequence[ProcessGroup] | None:
        """Return the process groups over which a gradient is sharded. One all-reduce per group, in this order, sums
        the norm.

        Return [] if the norm needs no sum over ranks. Return None if it is unknown whether a plain tensor is a shard.
        """

    @functools.cached_property
    def layout_keys(self) -> Sequence[Hashable]:
        """A key per gradient. Equal keys mean equal meshes and placements. None means that they are unknown."""
        return [None] * len(self._gradients)

    def tensors_by_layout(self) -> Iterable[Any]:
        """Return at least one tensor for each combination of mesh and placements."""
        return filter(self.is_sharded, self._tensors())

    def inferred_group(self) -> ProcessGroup | None:
        """Return the process group that the framework has set up, or None if there is no such group."""
        return None

    def inferred_owner(self, leaf: Leaf, group: ProcessGroup) -> bool | None:
        """Return whether this rank owns the parameter, as its attributes declare. None means unknown."""
        return None

    def inferred_copies(self, leaf: Leaf, group: ProcessGroup) -> Ranks | None:
        """Return the ranks that have a copy of the parameter, as its attributes declare. None means unknown."""
        return None

    # -- for all frameworks

    @property
    def parameters(self) -> int | None:
        """The number of parameters, or None if the number can differ between ranks."""
        return None if self._spec.declares_owners else len(self._parameters)

    def ranks(self, tensor: Any) -> Ranks:
        return self.mesh(tensor).ranks

    def ranks_along(self, tensor: Any, kind: Kind) -> Ranks:
        """Return the ranks that differ from this rank only along dimensions with this kind of placement."""
        return self.mesh(tensor).along(each == kind for each in self.kinds(tensor))

    def is_first(self, tensor: Any, group: ProcessGroup | None = None) -> bool | None:
        """Return True if no earlier rank has the same elements as this rank. "partial" counts as "replicate".

        Look only at the ranks of `group`, if it is given. Return None if they might not have all elements.
        """
        mesh, is_copied = self.mesh(tensor), [kind != "shard" for kind in self.kinds(tensor)]
        return mesh.is_first(is_copied) if group is None else mesh.is_first_within(is_copied, group.ranks)

    def is_replicated(self, tensor: Any) -> bool:
        """Return whether this rank has all elements. Return False for "partial"."""
        both = zip(self.mesh(tensor).shape, self.kinds(tensor), strict=True)
        return all(size == 1 or kind == "replicate" for size, kind in both)

    def is_partial(self, tensor: Any) -> bool:
        return "partial" in self.kinds(tensor)

    def copies(self) -> list[tuple[Leaf, Tensor]]:
        """Return (leaf, local tensor) of each plain gradient that `owned` treated as a copy."""
        return [(self._leaves[index], self.values[index]) for index in self._assumed_copies]

    def replicas(self, indices: Sequence[int]) -> list[Replica]:
        if self._spec.process_group is None:
            return []
        known = [(index, self._copies(index, check_all=True)) for index in indices if index not in self._assumed_copies]
        return [
            Replica(self._leaves[index], self.values[index], copies) for index, copies in known if copies is not None
        ]

    def _copies(self, index: int, *, check_all: bool) -> Copies | None:
        """Return the copies of a gradient in the process group. None means that there are none, or unknown ones.

        check_all: Whether to raise ValueError if some copies are unknown, or on ranks outside the group.
        """
        leaf, gradient, group = self._leaves[index], self._gradients[index], self._group
        is_sharded, ownership, here = self.is_sharded(gradient), self._spec.ownership_of(leaf), group.ranks[group.rank]
        mesh = self.ranks(gradient) if is_sharded else self._alone
        if here not in mesh or (is_sharded and not check_all and self.is_partial(gradient)):
            return None
        ranks = self.ranks_along(gradient, "replicate") if is_sharded else mesh
        if len(mesh) < group.size and ownership == REPLICATED:
            key = ("group", ranks.key_within(mesh), len(mesh))
            number = len(ranks) * group.size // len(mesh)
            return Copies(key, number, ranks[0] == here and group.ranks[0] in mesh) if number > 1 else None
        if len(mesh) < group.size and callable(ownership):
            if not hasattr(ownership, "ranks_with_copies"):
                if check_all:
                    raise copies_unknown(leaf)
                return None
            ranks = ownership.ranks_with_copies(mesh, ranks)
        elif check_all and not is_sharded and group.size > 1:
            ranks = self.inferred_copies(leaf, group) or ranks
        if check_all and not ranks <= group.ranks:
            raise ValueError(
                f"check_replicas compares all copies of the gradient at {leaf.place}, but some copies are on ranks "
                "outside process_group. Leave process_group or check_replicas out"
            )
        ranks = ranks.within(group.ranks)
        return Copies.on(ranks, here) if len(ranks) > 1 else None

    @functools.cached_property
    def _alone(self) -> Ranks:
        return self._group.ranks[self._group.rank : self._group.rank + 1]

    def awaits_sums(self, measures: Measures) -> bool:
        """Return whether other collectives come before the all-reduce of the norm. During these collectives,
        a rank cannot send an error to the other ranks."""
        return any(self.is_sharded(tensor) and self.is_partial(tensor) for tensor in self._gradients)

    def norm_groups(self, known_only: bool = False) -> list[NormGroup]:
        """Return a `NormGroup` for each parameter, in the same order on all ranks.

        If the ranks of a gradient are unknown, raise ValueError. With `known_only`, leave out this gradient instead.
        """
        index_of = {leaf.position: index for index, leaf in enumerate(self._leaves)}
        if self._spec.process_group is None:
            self._check_complete(range(len(self._leaves)))
            return [NormGroup(index_of.get(leaf.position), [], leaf) for leaf in self._parameters]
        group = None if self._spec.process_group == "auto" else self._group
        norm_groups = []
        for leaf in self._parameters:
            index = index_of.get(leaf.position)
            tensor = leaf.parameter if index is None else self._gradients[index]
            if group is not None and self.is_sharded(tensor):
                self._check_within(leaf, tensor, group)
            groups = self.shard_groups(leaf, tensor)
            if groups is not None:
                text = label(leaf) if self.is_sharded(tensor) else None
                norm_groups.append(NormGroup(index, groups, leaf, text))
            elif not known_only:
                raise norm_unknown(leaf)
        return norm_groups

    def is_complete(self, leaf: Leaf, tensor: Any) -> bool:
        """Return whether a plain tensor is a complete gradient. A declared `ownership` decides."""
        ownership = self._spec.ownership_of(leaf)
        if ownership is not None:
            return bool(ownership == REPLICATED)
        if self._is_plain_shard(leaf.parameter, tensor):
            return False
        return self._spec.process_group == "auto" or self._has_full_mesh

    def _is_plain_shard(self, parameter: Any, tensor: Any) -> bool:
        return self.is_sharded(parameter) and list(tensor.shape) != list(parameter.shape)

    def check_by_value(self) -> None:
        for leaf in self._leaves:
            if self.is_sharded(leaf.tensor) and self.is_partial(leaf.tensor):
                raise ValueError(
                    f"the gradient at {leaf.place} has the placements {leaf.tensor.placements}: every rank has a "
                    f"partial sum of each element, which cannot be clipped by value. {self.terminology.redistribute}"
                )

    def group(self) -> ProcessGroup:
        """Return the process group of the all-reduces of norms."""
        return SingleProcess() if self._spec.process_group is None else self._group

    def owned(self, indices: Sequence[int]) -> list[Tensor]:
        """Return the local tensors that this rank owns. Each element has exactly one owner rank."""
        if isinstance(self._spec.ownership, Mapping):
            for leaf in self._parameters:
                self._spec.ownership_of(leaf)  # raises ValueError for a parameter without a name
        for owner in self._spec.owners:
            if hasattr(owner, "check_present"):
                owner.check_present(self._tensors())
        self._deferred = []
        if self._spec.process_group is None:
            self._check_complete(indices)
            return [self.values[index] for index in indices]
        self._assumed_copies = []
        # All errors come before the first collective, in which all ranks take part.
        self._is_owned = {index: self._owns(index, self._group) for index in indices}
        self._deferred = self.defer_terms(indices)
        tensors = {index: self.reduced(index) for index in indices if index not in self._deferred}
        return [tensor for index, tensor in tensors.items() if self._is_owned[index]]

    def defer_terms(self, indices: Sequence[int]) -> list[int]:
        """Return the indices of `Partial` gradients that ranks sum only after they have compared the layouts."""
        return []

    def owned_terms(self) -> list[int]:
        """Return which results of `sum_terms` this rank owns, as list indices."""
        return [at for at, index in enumerate(self._deferred) if self._is_owned[index]]

    def owns(self, index: int) -> bool:
        return self._spec.process_group is None or self._owns(index, self._group)

    def _check_complete(self, indices: Sequence[int]) -> None:
        for index in indices:
            gradient = self._gradients[index]
            if self.is_sharded(gradient) and not self.is_replicated(gradient):
                raise ValueError(
                    f"process_group is None, but the gradient at {self._leaves[index].place} is not complete on this "
                    f"rank: its placements are {gradient.placements} on {len(self.ranks(gradient))} ranks. Leave "
                    "process_group out"
                )

    # -- the group

    def cached_group(self, key: Hashable, make: Callable[[], ProcessGroup]) -> ProcessGroup:
        if key not in self._groups:
            self._groups[key] = make()
        return self._groups[key]

    @functools.cached_property
    def _group(self) -> ProcessGroup:
        group, mesh_name = self._find_group(), self.terminology.mesh
        for mesh in self._declared_meshes():
            if not mesh.is_same_set(group.ranks):
                raise ValueError(
                    f"mesh_ownership got a {mesh_name} with the ranks {sorted(mesh)}, but the norm is all-reduced over "
                    f"the ranks {group.ranks}. To mesh_ownership, pass the {mesh_name} of all ranks with the "
                    "model. As process_group, pass the group of these ranks"
                )
        return group

    def _declared_meshes(self) -> list[Ranks]:
        return [owner.mesh_ranks for owner in self._spec.owners if hasattr(owner, "mesh_ranks")]

    def _find_group(self) -> ProcessGroup:
        process_group, world = self._spec.process_group, self.world()
        if process_group != "auto":
            return self.group_from(process_group)
        sizes = {len(ranks) for ranks in self._meshes}
        if world.size in {*sizes, *map(len, self._declared_meshes())}:
            return world
        if (inferred := self.inferred_group()) is not None:
            return inferred
        if not sizes:
            raise ValueError(
                "Cannot infer which ranks have the gradients: no tensor has a mesh. Pass process_group as well, "
                f"such as {self.terminology.world_group}"
            )
        raise ValueError(
            f"the gradients are on {self.terminology.mesh}es with {' or '.join(map(str, sorted(sizes)))} of "
            f"{world.size} ranks. Cannot infer which gradients the other ranks have. As process_group, pass the group "
            "of all ranks that have the model. If all ranks have the model, pass "
            f"{self.terminology.world_group}. {REMEDY}"
        )

    def _tensors(self) -> list[Any]:
        return [leaf.parameter for leaf in self._parameters] + self._gradients

    # -- ownership

    def _owns(self, index: int, group: ProcessGroup) -> bool:
        layout = self.layout_keys[index]
        if layout is not None and layout in self._owned_layouts:
            return self._owned_layouts[layout]
        gradient = self._gradients[index]
        if not self.is_sharded(gradient):
            return self._is_owner(index, group, self._alone)
        ranks = self.ranks(gradient)
        is_first = self._check_within(self._leaves[index], gradient, group)
        if len(ranks) < group.size:
            return self._is_owner(index, group, ranks) and is_first  # `_is_owner` comes first because it may raise
        self._counts_by_placement |= is_first
        if layout is not None:
            self._owned_layouts[layout] = is_first
        return is_first

    def _check_within(self, leaf: Leaf, tensor: Any, group: ProcessGroup) -> bool:
        ranks = self.ranks(tensor)
        if group.size < len(ranks) and (is_first := self.is_first(tensor, group)) is not None:
            return is_first
        if id(ranks) not in self._checked_meshes and not ranks <= group.ranks:
            raise ValueError(
                f"the tensor at {leaf.place} is on a {self.terminology.mesh} with the ranks {sorted(ranks)}, but "
                f"process_group has the ranks {group.ranks}. Pass a group of all ranks that have the model"
            )
        self._checked_meshes[id(ranks)] = ranks
        return bool(self.is_first(tensor))

    def _is_owner(self, index: int, group: ProcessGroup, ranks: Ranks) -> bool:
        """Return whether this rank owns a gradient that some ranks of the group might lack.

        ranks: The ranks that are known to have the gradient. For a plain tensor, pass only this rank.
        """
        leaf, plain = self._leaves[index], not self.is_sharded(self._gradients[index])
        declared = declared_owner(self._spec, leaf, ranks, rank=group.ranks[group.rank], first=group.ranks[0])
        if declared is not None:
            return declared
        if plain and self._is_plain_shard(leaf.parameter, leaf.tensor):
            raise ownership_unknown(group.size, leaf.place, "a plain tensor that is smaller than its parameter")
        if plain and self._has_full_mesh:
            self._assumed_copies.append(index)  # the ranks compare these copies
            return group.rank == 0
        if plain and (inferred := self.inferred_owner(leaf, group)) is not None:
            return inferred
        raise ownership_unknown(
            group.size, leaf.place, "a plain tensor" if plain else f"on only {len(ranks)} of these ranks"
        )

    @functools.cached_property
    def _has_full_mesh(self) -> bool:
        """Whether any tensor is on a mesh of all ranks. If so, plain tensors are assumed to be equal on all ranks."""
        return any(map(self._group.ranks.__le__, self._meshes))

    @functools.cached_property
    def _meshes(self) -> list[Ranks]:
        return list({id(ranks): ranks for ranks in map(self.ranks, self.tensors_by_layout())}.values())
