"""Who counts what, where several processes hold gradients: what tensors tell, and what the caller states.

In the group that adds up, every element is counted by exactly one process. The same for all frameworks that cut tensors
over a mesh of processes; a subclass says what its tensors are like.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from .consensus import REMEDY, Group, undeclared
from .containers import Leaf
from .ops import Tensor
from .shards import DISTINCT, REPLICATED, Across, Alone, Row


class RankedGroup(Group, Protocol):
    """A group that knows its processes' ranks among all."""

    ranks: list[int]


def states(across: Across, leaf: Leaf, held_by: Collection[int], *, here: int, first: int) -> bool | None:
    """Whether this process counts a gradient, as the caller states it; None where nothing is stated.

    `held_by`: the ranks that are known to hold it. `here`, `first`: those of this process, and of the group's first.
    """
    if callable(across.ownership):  # of a gradient where its parameter is a name, which does not tell where it is
        found = across.ownership(leaf.tensor if isinstance(leaf.parameter, str) else leaf.parameter)
        if found not in (True, False):
            raise TypeError(
                f"ownership gave {found!r} for {leaf.place}; it has to be True or False: whether this process counts it"
            )
        return bool(found)
    if across.ownership == REPLICATED and here not in held_by:
        raise ValueError(
            f"ownership is {REPLICATED!r}, and the gradient at {leaf.place} is on the ranks {sorted(held_by)} alone: "
            f"rank {here} has no copy; pass {DISTINCT!r} where every process lists the tensors of all"
        )
    if across.ownership == DISTINCT:
        return True
    return first in held_by if across.ownership == REPLICATED else None


def untold(size: int, place: str, held: str) -> ValueError:
    return undeclared(
        f"{size} processes hold the gradients, and the one at {place} is {held}, which does not tell what the others "
        f"have in its place; {REMEDY}"
    )


def label(leaf: Leaf) -> str | None:
    """Name and shape of a parameter, to be compared across ranks. None where its shape is not known."""
    tensor = leaf.parameter if hasattr(leaf.parameter, "shape") else leaf.tensor
    if tensor is None:
        return None
    name = leaf.name if leaf.name != getattr(leaf.parameter, "name", None) else None  # a framework numbers its own
    return f"{list(tensor.shape)}" if name is None else f"{name!r} {list(tensor.shape)}"


def labels(parameters: Sequence[Leaf]) -> list[tuple[Leaf, str]] | None:
    """All of them, or None where one is not known."""
    known = [(leaf, text) for leaf in parameters if (text := label(leaf)) is not None]
    return known if len(known) == len(parameters) else None


def without_gradient(parameters: Sequence[Leaf], gradients: Sequence[Leaf]) -> list[Leaf]:
    positions = {leaf.position for leaf in gradients}
    return [leaf for leaf in parameters if leaf.position not in positions]


def untold_part(leaf: Leaf) -> ValueError:
    return undeclared(
        f"{leaf.place} is a plain tensor, of which other processes may hold other parts, so its own norm is not known; "
        "use one norm over all gradients, or, if it is whole here, leave process_group out, or state "
        f"ownership={REPLICATED!r} where that is taken"
    )


class Words(NamedTuple):
    """What a framework calls things, for messages."""

    mesh: str
    redistribute: str
    everybody: str
    """The group of all processes."""


class Held(ABC):
    """`Shards` of one call."""

    words: ClassVar[Words]
    values: list[Tensor]

    def __init__(self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], across: Across) -> None:
        self._leaves, self._parameters, self._across = list(gradients), list(parameters), across
        self._gradients = [leaf.tensor for leaf in gradients]
        self._groups: dict[Any, Any] = {}
        self._assumed: list[int] = []
        self._within: set[frozenset[int]] = set()  # of the meshes whose processes are known to be in the group

    # -- what a framework says of its tensors

    @abstractmethod
    def is_cut(self, tensor: Any) -> bool:
        """Whether it tells by a mesh and placements what processes have of it; else it is plain."""

    @abstractmethod
    def ranks(self, tensor: Any) -> frozenset[int]:
        """The processes of its mesh."""

    @abstractmethod
    def is_first(self, tensor: Any) -> bool:
        """Whether no process of its mesh that comes before this one has the same, once terms are added up."""

    @abstractmethod
    def is_whole(self, tensor: Any) -> bool:
        """Whether this process has all of it."""

    @abstractmethod
    def has_terms(self, tensor: Any) -> bool:
        """Whether every process has a term of each element."""

    @abstractmethod
    def summed(self, index: int) -> Tensor:
        """What this process holds of a gradient, or of the sum where every process has a term, by a collective."""

    @abstractmethod
    def elements(self, index: int) -> int:
        """How many a gradient has, all parts together."""

    @abstractmethod
    def layout(self, tensor: Any) -> str:
        """In words: `Shard(dim=0) over dp=4`."""

    @abstractmethod
    def world(self) -> RankedGroup:
        """All processes."""

    @abstractmethod
    def named_group(self, stated: Any) -> RankedGroup:
        """What the caller passes as process_group."""

    @abstractmethod
    def groups_over(self, leaf: Leaf, tensor: Any) -> Sequence[Group] | None:
        """Over which the parts of a parameter's gradient are spread, one after the other; None where that is untold."""

    def told_group(self) -> RankedGroup | None:
        """Where neither the caller nor a mesh tells the group, but something else does."""
        return None

    def told_owner(self, leaf: Leaf, group: RankedGroup) -> bool | None:
        """The same for who counts a plain tensor."""
        return None

    # -- what follows

    @property
    def numel(self) -> int | None:
        return self._across.elements(lambda: sum(map(self.elements, range(len(self._gradients)))))

    @property
    def parameters(self) -> int | None:
        return self._across.comparable(self._parameters)

    def labels(self) -> list[tuple[Leaf, str]] | None:
        return None if self.parameters is None else labels(self._parameters)

    def missing(self) -> list[Leaf]:
        return without_gradient(self._parameters, self._leaves)

    def copies(self) -> list[tuple[Leaf, Tensor]]:
        return [(self._leaves[index], self.values[index]) for index in self._assumed]

    def awaits_sums(self) -> bool:
        return any(self.is_cut(tensor) and self.has_terms(tensor) for tensor in self._gradients)

    def rows(self, known_only: bool = False) -> list[Row]:
        index_of = {leaf.position: index for index, leaf in enumerate(self._leaves)}
        if self._across.process_group is None:
            self._check_complete(range(len(self._leaves)))
            return [Row(index_of.get(leaf.position), [], leaf) for leaf in self._parameters]
        group = None if self._across.process_group == "auto" else self._group
        rows = []
        for leaf in self._parameters:
            index = index_of.get(leaf.position)
            tensor = leaf.parameter if index is None else self._gradients[index]
            if group is not None and self.is_cut(tensor):
                self._check_within(leaf, self.ranks(tensor), group)
            groups = self.groups_over(leaf, tensor)
            if groups is not None:
                text = label(leaf) if self.is_cut(tensor) else None
                rows.append(Row(index, groups, leaf, text))
            elif not known_only:
                raise untold_part(leaf)
        return rows

    def is_whole_here(self, parameter: Any, tensor: Any) -> bool:
        """Whether a plain tensor is said to be all there is of a gradient, or tells so."""
        if self._across.ownership is not None:
            return bool(self._across.ownership == REPLICATED)
        if self._is_of_part(parameter, tensor):
            return False
        return self._across.process_group == "auto" or self._is_beside_whole_meshes

    def _is_of_part(self, parameter: Any, tensor: Any) -> bool:
        """Whether a plain gradient is that of a part of its parameter, which is cut: then it has another shape."""
        return self.is_cut(parameter) and list(tensor.shape) != list(parameter.shape)

    def check_by_value(self) -> None:
        for leaf in self._leaves:
            if self.is_cut(leaf.tensor) and self.has_terms(leaf.tensor):
                raise ValueError(
                    f"the gradient at {leaf.place} has the placements {leaf.tensor.placements}: every process holds a "
                    f"term of each element, so that elements cannot be clipped by value; {self.words.redistribute}"
                )

    def told(self) -> dict[str, Any]:
        world = self.world()
        return {"ranks": world.size, "rank": world.rank, "layout": dict(Counter(map(self.layout, self._gradients)))}

    def group(self) -> Alone | RankedGroup:
        return Alone() if self._across.process_group is None else self._group

    def counted(self, indices: Sequence[int]) -> list[Tensor]:
        check_present = getattr(self._across.ownership, "check_present", None)
        if check_present is not None:
            check_present(self._tensors())
        if self._across.process_group is None:
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
            if self.is_cut(gradient) and not self.is_whole(gradient):
                raise ValueError(
                    f"process_group is None, and the gradient at {self._leaves[index].place} is not complete here: it "
                    f"is {gradient.placements} on {len(self.ranks(gradient))} processes; leave process_group out"
                )

    # -- the group

    @functools.cached_property
    def _group(self) -> RankedGroup:
        group = self._told_group()
        mesh = getattr(self._across.ownership, "mesh_ranks", None)
        if mesh is not None and mesh != set(group.ranks):
            raise ValueError(
                f"ownership goes by a {self.words.mesh} with the ranks {sorted(mesh)}, and the gradients are added up "
                f"over {group.ranks}; pass the {self.words.mesh} and the process_group of all that hold the model"
            )
        return group

    def _told_group(self) -> RankedGroup:
        stated, world = self._across.process_group, self.world()
        if stated != "auto":
            return self.named_group(stated)
        sizes = {len(self.ranks(tensor)) for tensor in self._tensors() if self.is_cut(tensor)}
        if world.size in sizes or len(getattr(self._across.ownership, "mesh_ranks", ())) == world.size:
            return world
        if (told := self.told_group()) is not None:
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
        """Whether this process counts its part of a gradient."""
        gradient = self._gradients[index]
        if not self.is_cut(gradient):
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
        """Whether what these ranks hold is counted: the tensor does not tell what the others have."""
        leaf, plain = self._leaves[index], not self.is_cut(self._gradients[index])
        stated = states(self._across, leaf, ranks, here=group.ranks[group.rank], first=group.ranks[0])
        if stated is not None:
            return stated
        if plain and self._is_of_part(leaf.parameter, leaf.tensor):
            raise untold(group.size, leaf.place, "a plain tensor, and a part of what its parameter has")
        if plain and self._is_beside_whole_meshes:
            self._assumed.append(index)  # which the ranks compare
            return group.rank == 0
        if plain and (told := self.told_owner(leaf, group)) is not None:
            return told
        raise untold(group.size, leaf.place, "a plain tensor" if plain else f"on {len(ranks)} of them")

    @functools.cached_property
    def _is_beside_whole_meshes(self) -> bool:
        """Whether there are tensors that are cut over all processes: then plain ones beside them are copies."""
        everybody = frozenset(self._group.ranks)
        return any(self.is_cut(tensor) and self.ranks(tensor) == everybody for tensor in self._tensors())
