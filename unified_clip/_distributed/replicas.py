"""Compare copies of a gradient between ranks: the replicas of HSDP, and copies that `ownership` declares.

The all-reduce of the norm also sums checksums. Of n ranks with copies, the first adds its checksum times (1 - n), and
the other ranks add their checksums. If the copies are equal, the sum is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from .._core.distributed import DISTINCT, REPLICATED, DistributedSpec
from .._core.types import Leaf, Tensor
from .differences import format_ranks
from .digests import PIECES, digest, split
from .groups import ProcessGroup
from .ranks import Ranks

MAX_SETS = 2

CHECK = "check_replicas"


class Replica(NamedTuple):
    leaf: Leaf
    label: str | None
    """The name and shape of the gradient as text, equal on all ranks with copies. None for an unknown shape."""

    tensor: Tensor
    key: Hashable
    """Gradients of this rank have equal keys if their copies are on the same ranks."""

    number: int
    """The number of copies, including the copy on this rank."""

    is_first: bool

    device: str = ""
    """The device of this copy, if this process has several copies."""


class Copies(NamedTuple):
    key: Hashable
    number: int
    is_first: bool

    @classmethod
    def on(cls, ranks: Ranks, here: int) -> Copies:
        return cls(("mesh", ranks.key), len(ranks), ranks[0] == here)


def declared_copies(spec: DistributedSpec, leaf: Leaf, mesh: Ranks, ranks: Ranks, group: ProcessGroup) -> Copies | None:
    """Return the copies of a gradient that `ownership` declares, or None if `ownership` declares no copies.

    mesh: The ranks of the gradient's mesh, which lacks some ranks of the group.
    """
    ownership, here = spec.ownership_of(leaf), group.ranks[group.rank]
    if ownership == REPLICATED:
        key = ("group", ranks.key_within(mesh), len(mesh))
        return Copies(key, len(ranks) * group.size // len(mesh), ranks[0] == here and group.ranks[0] in mesh)
    if not callable(ownership):
        return None
    if not hasattr(ownership, "ranks_with_copies"):
        raise ValueError(
            f"check_replicas cannot infer which ranks have copies of {leaf.place}: ownership is your own function. "
            f"Pass ownership=mesh_ownership(mesh), {REPLICATED!r} or {DISTINCT!r}, or leave check_replicas out"
        )
    everywhere: Ranks = ownership.ranks_with_copies(mesh, ranks)
    return Copies.on(everywhere, here)


@dataclass(frozen=True)
class ReplicaSet:
    """A set of gradients whose copies are on the same ranks."""

    key: int
    """Equal on all ranks with copies, and not 0. A rank without a set sends 0."""

    number: int
    is_first: bool
    content: int

    text: Callable[[], dict[str, Any]]
    """Returns texts for an error message."""


class SharedSet(NamedTuple):
    """Gradients with copies on the same ranks. The first of these ranks owns the gradients."""

    key: Hashable
    number: int
    is_first: bool

    indices: Sequence[int]
    identities: Sequence[Hashable]
    """For each gradient, a value that is equal on all ranks with copies."""

    @property
    def content(self) -> int:
        return digest(self.identities)

    def numbers(self, places: Callable[[int], str | None]) -> Iterator[tuple[int, str]]:
        """Yield (number, place) for each gradient whose place is not None. Copies have equal numbers."""
        repeated: Counter[Hashable] = Counter()
        for index, identity in zip(self.indices, self.identities, strict=True):
            if (place := places(index)) is not None:
                repeated[identity] += 1
                yield digest((self.key, identity, repeated[identity])) >> 1, place


Checksum = Callable[[Sequence[tuple[Leaf, Tensor]]], int]


def contents(gradients: Iterable[tuple[Leaf, Any]]) -> dict[str, tuple[str, Any]]:
    entries: dict[str, tuple[str, Any]] = {}
    for leaf, compared in gradients:
        key = str(leaf.name or leaf.position)
        entries[leaf.place if key in entries else key] = leaf.place, compared
    return entries


def grouped(replicas: Iterable[Replica], checksum: Checksum) -> list[ReplicaSet]:
    members: dict[Hashable, list[Replica]] = {}
    for replica in replicas:
        members.setdefault((replica.key, replica.number, replica.device), []).append(replica)
    return [_replica_set(copies, checksum) for copies in members.values()]


def _replica_set(copies: Sequence[Replica], checksum: Checksum) -> ReplicaSet:
    first = copies[0]

    def text() -> dict[str, Any]:
        compared = ((copy.leaf, [copy.label, checksum([(copy.leaf, copy.tensor)])]) for copy in copies)
        return {"contents": contents(compared), "device": first.device, "number": first.number}

    labels = [copy.label for copy in copies]
    content = digest((labels, checksum([(copy.leaf, copy.tensor) for copy in copies])))
    return ReplicaSet(digest((first.key, first.number)) >> 2 << 1 | 1, first.number, first.is_first, content >> 1, text)


def summands(sets: Iterable[ReplicaSet | SharedSet]) -> list[int]:
    """Return the integers that this rank sends in an all-reduce. All sums are 0 if the copies of each set are equal.

    The digest of a set includes its key, to detect a rank that swaps the contents of two sets.
    """
    sums = [0] * PIECES
    for replicas in sets:
        weight = 1 - replicas.number if replicas.is_first else 1
        for place, piece in enumerate(split(digest((replicas.key, replicas.content)))):
            sums[place] += weight * piece
    return sums


class Exchange(Protocol):
    """The methods of `Consensus` that `describe` needs."""

    rank: int
    """The index of this process in the process group."""

    ranks: Ranks

    def all_gather(self, number: int) -> list[int]: ...

    def all_reduce_sum(self, numbers: Sequence[int]) -> list[int]: ...

    def max_over_ranks(self, number: int) -> int: ...

    def exchange(self, texts: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]: ...


Position = tuple[int, int]
"""(rank in the process group, index of a `ReplicaSet` on this rank)."""


def describe(sets: Sequence[ReplicaSet], exchange: Exchange) -> str:
    """All ranks have to call this function."""
    return _describe(
        sets,
        exchange,
        "differ from their copies",
        "Copies have drifted apart. Restore all ranks from one checkpoint, or broadcast the parameters from one copy. "
        "Look for a rank that skips a reduction of gradients",
        "a copy of the gradient",
        "Pass an ownership that matches these copies, or set the gradient on exactly the ranks that should have it",
    )


def describe_terms(sets: Sequence[ReplicaSet], exchange: Exchange) -> str:
    """All ranks have to call this function."""
    remedy = (
        "Set the same Partial gradients on each of these ranks, in the same order. If a rank has no such gradient, set "
        "a gradient of zeros"
    )
    noun = "a Partial gradient"
    return _describe(sets, exchange, "differ in shape, dtype or placements from those", remedy, noun, remedy)


def _describe(
    sets: Sequence[ReplicaSet], exchange: Exchange, difference: str, remedy: str, noun: str, remedy_of_number: str
) -> str:
    contents: dict[int, dict[int, list[Position]]] = {}
    for index in range(exchange.max_over_ranks(len(sets))):
        own = (sets[index].key, sets[index].content) if index < len(sets) else (0, 0)
        for rank, (key, content) in enumerate(zip(*map(exchange.all_gather, own), strict=True)):
            if key:
                contents.setdefault(key, {}).setdefault(content, []).append((rank, index))
    drifted = [sorted(copies.values(), key=len, reverse=True) for copies in contents.values() if len(copies) > 1]
    if not drifted:
        return f"{_describe_number(sets, contents, exchange, noun, remedy_of_number)}. No gradient was changed."
    compared = drifted[:MAX_SETS]
    senders = [positions[0] for copies in compared for positions in copies[:2]]
    texts = iter(exchange.exchange([sets[index].text() if rank == exchange.rank else None for rank, index in senders]))
    sentences = [_describe_set(copies, (next(texts), next(texts)), difference, exchange) for copies in compared]
    return f"the {'. The '.join(sentences)}. {remedy}. No gradient was changed."


def _describe_set(
    copies: Sequence[Sequence[Position]], texts: Sequence[dict[str, Any]], difference: str, exchange: Exchange
) -> str:
    most, differing = (text["contents"] for text in texts)
    compared = [{key: entry[1] for key, entry in entries.items()} for entries in (differing, most)]
    keys = [key for key in {**most, **differing} if compared[0].get(key) != compared[1].get(key)]
    places = [{**most, **differing}[key][0] for key in keys or differing]  # without keys, only the order differs
    more = f" and {len(places) - 4} more" if len(places) > 4 else ""
    where, elsewhere = (
        _ranks(positions, text, exchange) for positions, text in ((copies[1], texts[1]), (copies[0], texts[0]))
    )
    missing = [key for key in keys if key not in differing or key not in most]
    sentences = [f"gradients at {', '.join(places[:4])}{more} on {where} {difference} on {elsewhere}"]
    if not keys:
        sentences.append("Only their order differs")
    if missing:
        lacking = where if missing[0] not in differing else elsewhere
        sentences.append(f"The gradient at {({**most, **differing})[missing[0]][0]} is missing on {lacking}")
    others = sorted({exchange.ranks[rank] for positions in copies[2:] for rank, _ in positions})
    if others:
        sentences.append(f"The gradients on {format_ranks(others)} differ, too")
    return ". ".join(sentences)


def _ranks(positions: Sequence[Position], text: dict[str, Any], exchange: Exchange) -> str:
    device = f" ({text['device']})" if text["device"] else ""
    return format_ranks(list(dict.fromkeys(exchange.ranks[rank] for rank, _ in positions))) + device


def _describe_number(
    sets: Sequence[ReplicaSet],
    contents: dict[int, dict[int, list[Position]]],
    exchange: Exchange,
    noun: str,
    remedy: str,
) -> str:
    wrong = [
        at for at, replicas in enumerate(sets)
        if sum(map(len, contents[replicas.key].values())) != replicas.number
    ]  # fmt: skip
    flags = exchange.all_gather(int(bool(wrong)))
    if not any(flags):
        return (
            f"the ranks disagree about the first rank that has {noun}. On every rank, pass the same ownership, and "
            "list the ranks of a mesh in the same order"
        )
    sender = flags.index(1)
    own = None
    if exchange.rank == sender:
        replicas = sets[wrong[0]]
        own = {**replicas.text(), "present": sum(map(len, contents[replicas.key].values()))}
    (text,) = exchange.exchange([own])
    (place, _), present = next(iter(text["contents"].values())), text["present"]
    have = "rank has" if present == 1 else "ranks have"
    return f"{present} {have} {noun} at {place}, but {text['number']} should have one. {remedy}"
