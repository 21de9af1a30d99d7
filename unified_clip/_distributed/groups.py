"""Process groups: ranks that take part in collectives together."""

from __future__ import annotations

import itertools
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .._core.types import Leaf
from .digests import digest
from .ranks import Ranks

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
        return self.all_reduce(numbers, "SUM")

    def all_reduce_max(self, numbers: Sequence[int]) -> list[int]:
        return self.all_reduce(numbers, "MAX")

    @abstractmethod
    def all_reduce(self, numbers: Sequence[int], op: str) -> list[int]:
        """Reduce each int64 over the ranks. `op` is SUM or MAX, a name in the framework's `ReduceOp`."""


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
