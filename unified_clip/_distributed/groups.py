"""Ranks, meshes of ranks, and process groups, whose ranks take part in collectives together."""

from __future__ import annotations

import itertools
import json
import struct
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .._compute.checksums import digest
from .._core.types import Leaf

V = TypeVar("V")


class Ranks(Sequence[int]):
    """A sequence of ranks without repeats."""

    def __init__(self, ranks: Any) -> None:
        self._array = np.asarray(ranks, np.int64).reshape(-1)
        self._is_within: KeptByIdentity[bool] = KeptByIdentity()
        self._keys_within: KeptByIdentity[int] = KeptByIdentity()
        self._parts: KeptByIdentity[Ranks] = KeptByIdentity()

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        return np.argsort(self._array, kind="stable")

    @cached_property
    def _sorted(self) -> npt.NDArray[np.int64]:
        return np.append(self._array[self._order], np.iinfo(np.int64).max)

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Ranks: ...
    def __getitem__(self, index: int | slice) -> int | Ranks:
        return Ranks(self._array[index]) if isinstance(index, slice) else int(self._array[index])

    def __iter__(self) -> Iterator[int]:
        return iter(self._array.tolist())

    def __repr__(self) -> str:
        return repr(self._array.tolist())

    def __contains__(self, rank: object) -> bool:
        return bool(self.has(rank).all())

    def __le__(self, other: Ranks) -> bool:
        return len(self) <= len(other) and self._is_within.get(other, lambda _: bool(other.has(self._array).all()))

    def has(self, ranks: Any) -> npt.NDArray[np.bool_]:
        ordered = self._sorted
        present: npt.NDArray[np.bool_] = ordered[np.searchsorted(ordered, ranks)] == ranks
        return present

    def places(self, ranks: Any) -> npt.NDArray[np.intp]:
        """Return the indices of `ranks`, which must all be in this sequence."""
        places: npt.NDArray[np.intp] = self._order[np.searchsorted(self._sorted, ranks)]
        return places

    def at(self, places: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        taken: npt.NDArray[np.int64] = self._array[places]
        return taken

    @cached_property
    def key(self) -> int:
        return digest(self._array.tobytes())

    def key_within(self, other: Ranks) -> int:
        return self._keys_within.get(other, lambda _: digest(other.places(self._array).tobytes()))

    def within(self, other: Ranks) -> Ranks:
        """Return the ranks that are in both sequences, in the order of this sequence."""
        return self._parts.get(other, lambda _: Ranks(self._array[other.has(self._array)]))

    def is_same_set(self, other: Ranks) -> bool:
        return len(self) == len(other) and self <= other


class Mesh:
    """The ranks of a mesh, and the place of one rank on it. Dimensions are marked by a bool each."""

    def __init__(self, ranks: npt.NDArray[Any], here: int) -> None:
        self._array, self._here, self.ranks, self.shape = ranks, here, Ranks(ranks), ranks.shape
        self._place = next(map(tuple, np.argwhere(ranks == here)), None)
        self._along: dict[tuple[bool, ...], Ranks] = {}
        self._first: dict[tuple[tuple[bool, ...], int], bool | None] = {}

    def along(self, marked: Iterable[bool]) -> Ranks:
        """Return the ranks that differ from this rank only along marked dimensions, in the order of the mesh.

        Return no ranks if this rank is not on the mesh.
        """
        dims = tuple(marked)
        if dims not in self._along:
            places = zip(dims, self._place or (), strict=self._place is not None)
            index = tuple(slice(None) if is_along else at for is_along, at in places)
            self._along[dims] = Ranks([] if self._place is None else self._array[index])
        return self._along[dims]

    def is_first(self, is_copied: Iterable[bool]) -> bool:
        """Return True if no earlier rank of the mesh has the same elements. `is_copied` marks copied dimensions."""
        copies = self.along(is_copied)
        return len(copies) > 0 and copies[0] == self._here

    def is_first_within(self, is_copied: Iterable[bool], group: Ranks) -> bool | None:
        """Return True if no earlier rank of the group has the same elements.

        Return None if a rank of the group is not on the mesh, or if the group lacks an element of the tensor.
        """
        key = (tuple(is_copied), group.key)
        if key not in self._first:
            self._first[key] = self._find_first(key[0], group)
        return self._first[key]

    def _find_first(self, is_copied: tuple[bool, ...], group: Ranks) -> bool | None:
        present = group.has(self._array)
        if np.count_nonzero(present) < len(group) or not present.any(axis=tuple(np.flatnonzero(is_copied))).all():
            return None
        return self.along(is_copied).within(group)[0] == self._here


def format_ranks(ranks: Sequence[int]) -> str:
    plural, more = "s" * (len(ranks) > 1), " and others" * (len(ranks) > 4)
    return f"rank{plural} {', '.join(map(str, ranks[:4]))}{more}"


class KeptByIdentity(Generic[V]):
    """A cache with a value for each object. Deleting an object deletes its value, unless the value refers to it."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], V]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, owner: Any, compute: Callable[[Any], V]) -> V:
        key, entries = id(owner), self._entries
        entry = entries.get(key)
        if entry is not None and entry[0]() is owner:
            return entry[1]
        value = compute(owner)
        with suppress(
            TypeError
        ):  # PyTorch's group is an int on ranks outside the group, and ints have no weak references
            entries[key] = weakref.ref(owner, lambda _: entries.pop(key, None)), value
        return value


CORRUPTED = (
    "the exchange between ranks returned data that no rank sent. No gradient was changed. Check the collectives of "
    "this process group with an all-reduce of known numbers, and the network and the devices of the ranks"
)


class ProcessGroup(ABC):
    """All ranks of the group must call a collective together, with lists of the same length."""

    def __init__(self, key: Any, ranks: Ranks, here: int) -> None:
        """key: An object that identifies the process group, and exists as long as the group.
        ranks: The global ranks of the processes.
        here: The global rank of this process.
        """
        if here not in ranks:
            raise ValueError(
                f"rank {here} is not in process_group, which has the ranks {ranks}. Pass a group with this rank, or "
                "clip on the ranks of the group only"
            )
        self.key, self.ranks, self.rank, self.size = key, ranks, int(ranks.places(here)), len(ranks)

    @property
    def name(self) -> str:
        """A name that is equal on all ranks of the group, and differs between groups with the same ranks."""
        return ""

    def all_reduce_sum(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers) if self.size == 1 else self.all_reduce(numbers, "SUM")

    def all_reduce_max(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers) if self.size == 1 else self.all_reduce(numbers, "MAX")

    @abstractmethod
    def all_reduce(self, numbers: Sequence[int], op: str) -> list[int]:
        """Reduce each int64 over several ranks. `op` is SUM or MAX, a name in the framework's `ReduceOp`."""


class SingleProcess(ProcessGroup):
    def __init__(self, here: int = 0) -> None:
        super().__init__(self, Ranks([here]), here)

    def all_reduce(self, numbers: Sequence[int], op: str) -> list[int]:
        return list(numbers)


def gather_objects(all_reduce_sum: Callable[[Sequence[int]], list[int]], rank: int, size: int, own: Any) -> list[Any]:
    """Return the object of each rank, converted to JSON and back. All ranks have to call this function.

    Two all-reduces suffice: the first sums lengths, and the second sums contents, in which the other ranks send zeros.
    Of several ranks with equal objects, only the first sends its object.
    """
    content = json.dumps(own).encode()
    content += b" " * (-len(content) % 8)
    mark = digest(content) >> 1 | 1  # fits int64, and is not 0
    slots = [0] * (2 * size)
    slots[rank], slots[size + rank] = mark, len(content) // 8
    reduced = all_reduce_sum(slots)
    marks, lengths = reduced[:size], reduced[size:]
    if 0 in marks or marks[rank] != mark:
        raise RuntimeError(CORRUPTED)
    length_of = dict(zip(marks, lengths, strict=True))
    first = {mark: sender for sender, mark in reversed(list(enumerate(marks)))}
    sent: list[int] = []
    for sent_mark, length in length_of.items():
        sent += struct.unpack(f"<{length}q", content) if first[sent_mark] == rank else [0] * length
    numbers = iter(all_reduce_sum(sent))
    try:
        objects = {
            sent_mark: json.loads(struct.pack(f"<{length}q", *itertools.islice(numbers, length)))
            for sent_mark, length in length_of.items()
        }
    except (ValueError, struct.error):
        raise RuntimeError(CORRUPTED) from None
    return [objects[mark] for mark in marks]


class NormGroup(NamedTuple):
    gradient: int | None
    """The index of the gradient, or None if this rank has no gradient of the parameter."""

    groups: Sequence[ProcessGroup]
    """The process groups over which the gradient is sharded. One all-reduce per group, in this order, sums the norm."""

    leaf: Leaf
    label: str | None = None
    """The name and shape of the parameter. The ranks of `groups` check that the labels match. None skips the check."""


def by_group(norm_groups: Sequence[NormGroup], positions: Sequence[int]) -> Iterator[tuple[ProcessGroup, list[int]]]:
    """Yield (process group, positions of the parameters whose norms are summed over this group).

    The order is the same on all ranks, even if they list the parameters in different orders. With different orders
    of the groups, ranks could wait for each other forever.
    """
    for depth in range(max((len(norm_group.groups) for norm_group in norm_groups), default=0)):
        members: dict[ProcessGroup, list[int]] = {}
        for at in positions:
            if len(norm_groups[at].groups) > depth:
                members.setdefault(norm_groups[at].groups[depth], []).append(at)
        groups = (
            list(members) if len(members) < 2 else sorted(members, key=lambda group: (list(group.ranks), group.name))
        )
        yield from ((group, members[group]) for group in groups)
