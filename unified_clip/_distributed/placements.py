"""Who counts what, where several processes hold gradients: what tensors tell, and what the caller states.

In the group that adds up, every element is counted by exactly one process. The same for all frameworks that cut tensors
over a mesh of processes; a subclass says what its tensors are like.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from .._core.distributed import DISTINCT, REPLICATED, DistributedSpec
from .._core.types import Leaf, Tensor
from .consensus import Group, undeclared
from .differences import REMEDY
from .norm import LocalShards, NormGroup, SingleProcess, label


class RankedGroup(Group, Protocol):
    """A group that knows its processes' ranks among all."""

    ranks: list[int]


def states(spec: DistributedSpec, leaf: Leaf, held_by: Collection[int], *, here: int, first: int) -> bool | None:
    """Return whether this process counts a gradient, as the caller states it; None where nothing is stated.

    `held_by`: the ranks that are known to hold it. `here`, `first`: those of this process, and of the group's first.
    """
    if callable(spec.ownership):  # of a gradient where its parameter is a name, which does not tell where it is
        found = spec.ownership(leaf.tensor if isinstance(leaf.parameter, str) else leaf.parameter)
        if found not in (True, False):
            raise TypeError(
                f"ownership gave {found!r} for {leaf.place}; it has to be True or False: whether this process counts it"
            )
        return bool(found)
    if spec.ownership == REPLICATED and here not in held_by:
        raise ValueError(
            f"ownership is {REPLICATED!r}, and the gradient at {leaf.place} is on the ranks {sorted(held_by)} alone: "
            f"rank {here} has no copy; pass {DISTINCT!r} where every process lists the tensors of all"
        )
    if spec.ownership == DISTINCT:
        return True
    return first in held_by if spec.ownership == REPLICATED else None


def ownership_unknown(size: int, place: str, held: str) -> ValueError:
    return undeclared(
        f"{size} processes hold the gradients, and the one at {place} is {held}, which does not tell what the others "
        f"have in its place; {REMEDY}"
    )


def part_unknown(leaf: Leaf) -> ValueError:
    return undeclared(
        f"{leaf.place} is a plain tensor, of which other processes may hold other parts, so its own norm is not known; "
        "use one norm over all gradients, or, if it is whole here, leave process_group out, or state "
        f"ownership={REPLICATED!r} where that is taken"
    )


class Terminology(NamedTuple):
    """What a framework calls things, for messages."""

    mesh: str
    redistribute: str
    everybody: str
    """The group of all processes."""


class DistributedGradients(LocalShards):
    """`Shards` of one call."""

    words: ClassVar[Terminology]

    def __init__(self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> None:
        super().__init__(gradients, parameters, spec)
        self._gradients = [leaf.tensor for leaf in gradients]
        self._groups: dict[Any, Any] = {}
        self._assumed: list[int] = []
        self._within: set[frozenset[int]] = set()  # of the meshes whose processes are known to be in the group

    # -- what a framework says of its tensors

    @abstractmethod
    def is_sharded(self, tensor: Any) -> bool:
        """Return whether it tells by a mesh and placements what processes have of it; else it is plain."""

    @abstractmethod
    def ranks(self, tensor: Any) -> frozenset[int]:
        """Return the processes of its mesh."""

    @abstractmethod
    def is_first(self, tensor: Any) -> bool:
        """Return whether no process of its mesh that comes before this one has the same, once terms are added up."""

    @abstractmethod
    def is_replicated(self, tensor: Any) -> bool:
        """Return whether this process has all of it."""

    @abstractmethod
    def is_partial(self, tensor: Any) -> bool:
        """Return whether every process has a term of each element."""

    @abstractmethod
    def summed(self, index: int) -> Tensor:
        """What this process holds of a gradient, or of the sum where every process has a term, by a collective."""

    @abstractmethod
    def layout(self, tensor: Any) -> str:
        """Return the placements of a tensor in words: `Shard(dim=0) over dp=4`."""

    @abstractmethod
    def world(self) -> RankedGroup:
        """All processes."""

    @abstractmethod
    def named_group(self, stated: Any) -> RankedGroup:
        """What the caller passes as process_group."""

    @abstractmethod
    def groups_over(self, leaf: Leaf, tensor: Any) -> Sequence[Group] | None:
        """Over which the parts of a parameter's gradient are spread, one after the other; None where that is untold."""

    def inferred_group(self) -> RankedGroup | None:
        """Where neither the caller nor a mesh tells the group, but something else does."""
        return None

    def inferred_owner(self, leaf: Leaf, group: RankedGroup) -> bool | None:
        """Return the same for who counts a plain tensor."""
        return None

    # -- what follows

    def copies(self) -> list[tuple[Leaf, Tensor]]:
        return [(self._leaves[index], self.values[index]) for index in self._assumed]

    def awaits_sums(self) -> bool:
        return any(self.is_sharded(tensor) and self.is_partial(tensor) for tensor in self._gradients)

    def rows(self, known_only: bool = False) -> list[NormGroup]:
        index_of = {leaf.position: index for index, leaf in enumerate(self._leaves)}
        if self._spec.process_group is None:
            self._check_complete(range(len(self._leaves)))
            return [NormGroup(index_of.get(leaf.position), [], leaf) for leaf in self._parameters]
        group = None if self._spec.process_group == "auto" else self._group
        rows = []
        for leaf in self._parameters:
            index = index_of.get(leaf.position)
            tensor = leaf.parameter if index is None else self._gradients[index]
            if group is not None and self.is_sharded(tensor):
                self._check_within(leaf, self.ranks(tensor), group)
            groups = self.groups_over(leaf, tensor)
            if groups is not None:
                text = label(leaf) if self.is_sharded(tensor) else None
                rows.append(NormGroup(index, groups, leaf, text))
            elif not known_only:
                raise part_unknown(leaf)
        return rows

    def is_complete_here(self, parameter: Any, tensor: Any) -> bool:
        """Return whether a plain tensor is said to be all there is of a gradient, or tells so."""
        if self._spec.ownership is not None:
            return bool(self._spec.ownership == REPLICATED)
        if self._is_of_part(parameter, tensor):
            return False
        return self._spec.process_group == "auto" or self._is_beside_whole_meshes

    def _is_of_part(self, parameter: Any, tensor: Any) -> bool:
        """Whether a plain gradient is that of a part of its parameter, which is cut: then it has another shape."""
        return self.is_sharded(parameter) and list(tensor.shape) != list(parameter.shape)

    def check_by_value(self) -> None:
        for leaf in self._leaves:
            if self.is_sharded(leaf.tensor) and self.is_partial(leaf.tensor):
                raise ValueError(
                    f"the gradient at {leaf.place} has the placements {leaf.tensor.placements}: every process holds a "
                    f"term of each element, so that elements cannot be clipped by value; {self.words.redistribute}"
                )

    def layouts(self) -> Iterable[str]:
        return map(self.layout, self._gradients)

    def group(self) -> SingleProcess | RankedGroup:
        return SingleProcess() if self._spec.process_group is None else self._group

    def counted(self, indices: Sequence[int]) -> list[Tensor]:
        check_present = getattr(self._spec.ownership, "check_present", None)
        if check_present is not None:
            check_present(self._tensors())
        if self._spec.process_group is None:
            self._check_complete(indices)
            return [self.values[index] for index in indices]
        self._assumed = []
        counts = [
            self._counts(index, self._group) for index in indices
        ]  # where that cannot be told, before any is summed
        summed = [self.summed(index) for index in indices]  # on all processes, since they communicate
        return [tensor for tensor, counted in zip(summed, counts, strict=True) if counted]

    def _check_complete(self, indices: Sequence[int]) -> None:
        for index in indices:
            gradient = self._gradients[index]
            if self.is_sharded(gradient) and not self.is_replicated(gradient):
                raise ValueError(
                    f"process_group is None, and the gradient at {self._leaves[index].place} is not complete here: it "
                    f"is {gradient.placements} on {len(self.ranks(gradient))} processes; leave process_group out"
                )

    # -- the group

    @functools.cached_property
    def _group(self) -> RankedGroup:
        group = self._inferred_group()
        mesh = getattr(self._spec.ownership, "mesh_ranks", None)
        if mesh is not None and mesh != set(group.ranks):
            raise ValueError(
                f"ownership goes by a {self.words.mesh} with the ranks {sorted(mesh)}, and the gradients are added up "
                f"over {group.ranks}; pass the {self.words.mesh} and the process_group of all that hold the model"
            )
        return group

    def _inferred_group(self) -> RankedGroup:
        stated, world = self._spec.process_group, self.world()
        if stated != "auto":
            return self.named_group(stated)
        sizes = {len(self.ranks(tensor)) for tensor in self._tensors() if self.is_sharded(tensor)}
        if world.size in sizes or len(getattr(self._spec.ownership, "mesh_ranks", ())) == world.size:
            return world
        if (told := self.inferred_group()) is not None:
            return told
        if not sizes:
            raise ValueError(
                "ownership or check_numel is given, and no tensor tells which processes hold the gradients; pass "
                "process_group as well"
            )
        raise ValueError(
            f"the gradients are on {self.words.mesh}es of {', '.join(map(str, sorted(sizes)))} of the {world.size} "
            "processes, and nothing tells what the other processes hold; pass process_group, the group of all that "
            f"hold the model ({self.words.everybody} if all do), and ownership: 'replicated' if others hold copies, "
            "'distinct' if they hold other parameters, or a function of a parameter"
        )

    def _tensors(self) -> list[Any]:
        return [leaf.parameter for leaf in self._parameters] + self._gradients

    # -- who counts what

    def _counts(self, index: int, group: RankedGroup) -> bool:
        """Return whether this process counts its part of a gradient."""
        gradient = self._gradients[index]
        if not self.is_sharded(gradient):
            return self._is_owner(index, group, frozenset([group.ranks[group.rank]]))
        ranks = self.ranks(gradient)
        self._check_within(self._leaves[index], ranks, group)
        is_owner = len(ranks) == group.size or self._is_owner(index, group, ranks)  # or an error, for copies too
        return is_owner and self.is_first(gradient)

    def _check_within(self, leaf: Leaf, ranks: frozenset[int], group: RankedGroup) -> None:
        if ranks not in self._within and not ranks <= set(group.ranks):
            raise ValueError(
                f"the gradient at {leaf.place} is on a {self.words.mesh} with the ranks {sorted(ranks)}, and "
                f"process_group has {group.ranks}; pass a group of all processes that hold the model"
            )
        self._within.add(ranks)

    def _is_owner(self, index: int, group: RankedGroup, ranks: frozenset[int]) -> bool:
        """Return whether what these ranks hold is counted: the tensor does not tell what the others have."""
        leaf, plain = self._leaves[index], not self.is_sharded(self._gradients[index])
        stated = states(self._spec, leaf, ranks, here=group.ranks[group.rank], first=group.ranks[0])
        if stated is not None:
            return stated
        if plain and self._is_of_part(leaf.parameter, leaf.tensor):
            raise ownership_unknown(group.size, leaf.place, "a plain tensor, and a part of what its parameter has")
        if plain and self._is_beside_whole_meshes:
            self._assumed.append(index)  # which the ranks compare
            return group.rank == 0
        if plain and (told := self.inferred_owner(leaf, group)) is not None:
            return told
        raise ownership_unknown(group.size, leaf.place, "a plain tensor" if plain else f"on {len(ranks)} of them")

    @functools.cached_property
    def _is_beside_whole_meshes(self) -> bool:
        """Return whether there are tensors that are cut over all processes: then plain ones beside them are copies."""
        everybody = frozenset(self._group.ranks)
        return any(self.is_sharded(tensor) and self.ranks(tensor) == everybody for tensor in self._tensors())
