"""Compare the copies that ranks have of a gradient: the replicas of HSDP, and copies that `ownership` declares.

Each rank with a copy adds its checksum to the all-reduce of the norm. The first of them subtracts its own once for each
of the others instead. The sum is 0 if the copies are equal. So one sum compares all sets of replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from .._core.types import Leaf, Tensor
from .digests import PIECES, digest, split

MAX_SETS = 2
"""The maximum number of sets of replicas in an error message."""

CHECK = "check_replicas"


class Replica(NamedTuple):
    """A gradient of which other ranks have copies."""

    leaf: Leaf
    label: str | None
    """The name and shape as text, which are equal on all ranks with copies; None if unknown."""

    tensor: Tensor
    key: Hashable
    """A key that gradients have in common on this rank if the same ranks have copies of them."""

    number: int
    """The number of copies, including this one."""

    is_first: bool
    """Whether this copy is the first one. It is true for exactly one copy."""

    device: str = ""
    """The device of this copy, if this process has several copies."""


@dataclass(frozen=True)
class ReplicaSet:
    """The gradients of which the same ranks have copies."""

    key: int
    """A number that identifies the set on all of its ranks. It is not 0."""

    number: int
    is_first: bool
    content: int
    """A digest of the gradients, equal for equal copies."""

    text: Callable[[], dict[str, Any]]
    """A function that returns texts for an error message: the checksum of each gradient, the device, and the number of
    copies.
    """


Checksum = Callable[[Sequence[Tensor]], int]


def grouped(replicas: Iterable[Replica], checksum: Checksum) -> list[ReplicaSet]:
    """Return the sets of these replicas, all of this rank. `checksum`: computes one of tensors."""
    members: dict[Hashable, list[Replica]] = {}
    for replica in replicas:
        members.setdefault((replica.key, replica.number, replica.device), []).append(replica)
    return [_replica_set(copies, checksum) for copies in members.values()]


def _replica_set(copies: Sequence[Replica], checksum: Checksum) -> ReplicaSet:
    first = copies[0]

    def text() -> dict[str, Any]:
        checksums = {copy.leaf.place: checksum([copy.tensor]) for copy in copies}
        return {"checksums": checksums, "device": first.device, "number": first.number}

    labels = [copy.label for copy in copies]
    content = digest((labels, checksum([copy.tensor for copy in copies])))
    return ReplicaSet(digest((first.key, first.number)) >> 2 << 1 | 1, first.number, first.is_first, content >> 1, text)


def summands(sets: Iterable[ReplicaSet]) -> list[int]:
    """Return integers whose sums over all ranks are 0 if all copies are equal."""
    sums = [0] * PIECES
    for replicas in sets:
        weight = 1 - replicas.number if replicas.is_first else 1
        for place, piece in enumerate(split(replicas.content)):
            sums[place] += weight * piece
    return sums


class Exchange(Protocol):
    """The collectives that `describe` needs. A `Consensus` has them."""

    rank: int

    def all_gather(self, number: int) -> list[int]: ...

    def max_over_ranks(self, number: int) -> int: ...

    def exchange(self, texts: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]: ...


Position = tuple[int, int]
"""(a rank, the index of one of its sets)."""


def describe(sets: Sequence[ReplicaSet], exchange: Exchange) -> str:
    """Return the message of the error that all ranks raise if copies differ. `sets`: those of this rank. All ranks must
    call this.
    """
    return _describe(
        sets,
        exchange,
        "from their copies",
        "Copies have drifted apart. Restore all ranks from one checkpoint, or broadcast the parameters from one copy. "
        "Look for a rank that skips a reduction of gradients",
        "have a copy of the gradient",
        "Pass the ownership with which ranks have these copies, and set the gradient on each of them",
    )


def describe_terms(sets: Sequence[ReplicaSet], exchange: Exchange) -> str:
    """Return the message of the error that all ranks raise if layouts of `Partial` gradients differ. As `describe`."""
    remedy = (
        "Set the same Partial gradients on each of these ranks, in the same order. Set zeros where a rank has no term"
    )
    noun = "have a Partial gradient"
    return _describe(sets, exchange, "in shape, dtype or placements from those", remedy, noun, remedy)


def _describe(
    sets: Sequence[ReplicaSet], exchange: Exchange, from_others: str, remedy: str, should: str, remedy_of_number: str
) -> str:
    contents: dict[int, dict[int, list[Position]]] = {}
    for index in range(exchange.max_over_ranks(len(sets))):
        own = (sets[index].key, sets[index].content) if index < len(sets) else (0, 0)
        for rank, (key, content) in enumerate(zip(*map(exchange.all_gather, own), strict=True)):
            if key:
                contents.setdefault(key, {}).setdefault(content, []).append((rank, index))
    drifted = [sorted(copies.values(), key=len, reverse=True) for copies in contents.values() if len(copies) > 1]
    if not drifted:
        number = _describe_number(sets, contents, exchange, should)
        return f"{number}. {remedy_of_number}. No gradient was changed."
    compared = [copies[:2] for copies in drifted[:MAX_SETS]]
    senders = [positions[0] for copies in compared for positions in copies]
    texts = iter(exchange.exchange([_own_text(sets, sender, exchange) for sender in senders]))
    sentences = [_describe_set(copies, [next(texts) for _ in copies], from_others) for copies in compared]
    return f"the {'. The '.join(sentences)}. {remedy}. No gradient was changed."


def _own_text(sets: Sequence[ReplicaSet], sender: Position, exchange: Exchange) -> dict[str, Any] | None:
    rank, index = sender
    return sets[index].text() if rank == exchange.rank else None


def _describe_set(copies: Sequence[Sequence[Position]], texts: Sequence[dict[str, Any]], from_others: str) -> str:
    """Return a sentence on how the most frequent content of a set differs from another one."""
    most, other = (text["checksums"] for text in texts)
    places = [place for place in dict.fromkeys((*most, *other)) if most.get(place) != other.get(place)]
    more = f" and {len(places) - 4} more" if len(places) > 4 else ""
    where, elsewhere = (_ranks(positions, text) for positions, text in reversed(list(zip(copies, texts, strict=True))))
    missing = [place for place in places if place not in other or place not in most]
    lacking = f" ({missing[0]} is missing on {where if missing[0] not in other else elsewhere})" if missing else ""
    return f"gradients at {', '.join(places[:4])}{more} on {where} differ {from_others} on {elsewhere}{lacking}"


def _ranks(positions: Sequence[Position], text: dict[str, Any]) -> str:
    ranks = list(dict.fromkeys(rank for rank, _ in positions))
    device = f" ({text['device']})" if text["device"] else ""
    return f"rank {', '.join(map(str, ranks[:4]))}{' and others' * (len(ranks) > 4)}{device}"


def _describe_number(
    sets: Sequence[ReplicaSet], contents: dict[int, dict[int, list[Position]]], exchange: Exchange, should: str
) -> str:
    """Return the message for copies that are equal, but more or fewer than `ownership` or placements declare."""
    wrong = [
        at for at, replicas in enumerate(sets)
        if sum(map(len, contents[replicas.key].values())) != replicas.number
    ]  # fmt: skip
    flags = exchange.all_gather(int(bool(wrong)))
    if not any(flags):
        return "gradients differ between ranks, and the differences cannot be located"
    sender = flags.index(1)
    own = None
    if exchange.rank == sender:
        replicas = sets[wrong[0]]
        own = {**replicas.text(), "present": sum(map(len, contents[replicas.key].values()))}
    (text,) = exchange.exchange([own])
    place, present = next(iter(text["checksums"])), text["present"]
    have = "has" if present == 1 else "have"
    return f"{text['number']} ranks should {should} at {place}, and {present} of them {have} one"
