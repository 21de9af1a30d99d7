"""Compare values between ranks, and write an error message with the value of each rank.

The all-reduce of the norm sums a digest of each value that n ranks must share. The first of these ranks adds its digest
times (1 - n), and the other ranks add their digests. If all values are equal, the sum is 0. Otherwise, each rank
gathers the outlines of all values, and then the values that differ.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._compute.checksums import PIECES, digest, split
from .._core.types import Leaf, Tensor
from .groups import format_ranks
from .owners import REMEDY, Copies

REJECTION, CALL, LAYOUT, TERMS, PLAIN, REPLICAS, PRESENCE = (
    "rejection", "call", "layout", "terms", "plain", "replicas", "presence"
)  # fmt: skip
"""The kinds of values: the error of a rank that rejects the call, the arguments of the call, the parameters, the
layouts of `Partial` gradients, the bits of plain gradients and of replicas, and which gradients exist."""

ELEMENTS, CALLS = "the number of gradient elements", "the number of calls that use this process group"

SAME_CALL = "Make the same call on every rank, and list all parameters, also those without a gradient."

MESSAGES = {
    CALL: ("the ranks disagree about {}", SAME_CALL),
    LAYOUT: ("the ranks disagree about {}", SAME_CALL),
    TERMS: (
        "Partial gradients differ in shape, dtype or placements: {}",
        "Set the same Partial gradients on each of these ranks, in the same order. If a rank has no such gradient, set "
        "a gradient of zeros.",
    ),
    PLAIN: (
        "plain gradients differ between ranks: {}",
        "Other gradients of the call are distributed over all ranks, so plain tensors must be equal on all ranks. "
        f"{REMEDY}.",
    ),
    REPLICAS: (
        "copies of gradients differ between ranks: {}",
        "If copies have drifted apart, restore all ranks from one checkpoint, and look for a rank that skips a "
        "reduction of gradients. If a copy is missing, set the gradient on exactly the ranks that should have it, or "
        "pass an ownership that matches the copies.",
    ),
    PRESENCE: (
        "no rank owns the gradient at {}",
        "The owner should be the first rank with a copy of the parameter, but the gradient is None on that rank. Set "
        "the gradient on all ranks that have a copy of the parameter.",
    ),
}
"""For each kind, in the order of the checks: what is wrong, and the remedy."""

REMEDIES = {
    CALLS: "A rank skipped a call, or went on after an error, so ranks are not at the same step. Every later call of "
    "this process group raises an error, too. Restart all ranks from the same checkpoint. Or load the same checkpoint "
    "on all ranks, and pass a new process group, whose calls are counted from 1.",
    ELEMENTS: "Make the same call on every rank. If parameters of a rank have no gradient, set gradients of zeros, or "
    "leave check_numel out.",
}
"""The remedy if ranks disagree about one of these values."""

MAX_NAMES, MAX_ROWS = 4, 24


Values = Mapping[str, Sequence[str]]
"""Maps a name that is equal on all ranks to (name on this rank, value)."""


class Outline(NamedTuple):
    kind: str
    key: int
    number: int
    is_first: bool
    content: int


@dataclass(frozen=True)
class Compared:
    """Values that several ranks share."""

    kind: str
    copies: Copies
    content: int
    """A digest of the values."""

    values: Callable[[], Values]
    """Returns the values for an error message."""

    @property
    def outline(self) -> Outline:
        key, number, is_first = self.copies
        return Outline(self.kind, _key_of(self.kind, key, number), number, is_first, self.content)


@functools.lru_cache(1024)
def _key_of(kind: str, key: Hashable, number: int) -> int:
    return digest((kind, key, number))


def summands(outlines: Iterable[Outline]) -> list[int]:
    """Return the integers that this rank sends in an all-reduce. All sums are 0 if the values are equal.

    The digest includes the key, to detect a rank that swaps two values.
    """
    sums = [0] * PIECES
    for outline in outlines:
        weight = 1 - outline.number if outline.is_first else 1
        for place, piece in enumerate(split(digest((outline.key, outline.content)))):
            sums[place] += weight * piece
    return sums


def differing(outlines: Iterable[Sequence[Outline]], ignored: Collection[str] = ()) -> set[int]:
    """Return the keys of the values that differ. `outlines` has a list for each rank."""
    sharing: dict[int, list[Outline]] = {}
    for outline in itertools.chain.from_iterable(outlines):
        sharing.setdefault(outline.key, []).append(outline)
    return {key for key, members in sharing.items() if members[0].kind not in ignored and _differ(members)}


def _differ(outlines: Sequence[Outline]) -> bool:
    first = outlines[0]
    is_complete = len(outlines) == first.number and sum(outline.is_first for outline in outlines) == 1
    is_complete |= first.kind == LAYOUT  # a rank with an unknown shape compares no layout
    return not is_complete or any(outline.content != first.content for outline in outlines)


Member = tuple[int, Outline, Values]
"""(global rank, outline, values)."""

Row = tuple[str, str, str]
"""(name of a value, ranks, value on these ranks)."""


def describe(compared: Iterable[Sequence[tuple[Outline, Values]]], ranks: Sequence[int]) -> str | None:
    """Return an error message, or None if no difference makes the norm wrong.

    compared: For each rank, the values that differ.
    ranks: The global ranks.
    """
    sharing: dict[int, list[Member]] = {}
    for rank, own in zip(ranks, compared, strict=True):
        for outline, values in own:
            sharing.setdefault(outline.key, []).append((rank, outline, values))
    by_kind: dict[str, list[list[Member]]] = {}
    for members in sharing.values():
        by_kind.setdefault(members[0][1].kind, []).append(members)
    if REJECTION in by_kind:
        return _rejection(by_kind[REJECTION][0])
    for kind in MESSAGES:
        if rows := [row for members in by_kind.get(kind, ()) for row in _rows(members)]:
            return _message(kind, rows)
    return None


def _rejection(members: Sequence[Member]) -> str:
    reasons: dict[str, list[int]] = {}
    for rank, _, values in members:
        reasons.setdefault(values["error"][1], []).append(rank)
    rejected = "; ".join(f"{format_ranks(ranks)} rejected this call: {error}" for error, ranks in reasons.items())
    places = " and ".join(map(format_ranks, reasons.values()))
    return f"{rejected}. Correct the call on {places}. No gradient was changed on any rank."


def _rows(members: Sequence[Member]) -> Iterator[Row]:
    outline, is_differing = members[0][1], False
    names = {name: here for _, _, values in reversed(members) for name, (here, _) in values.items()}
    owned = {name for _, outline, values in members if outline.is_first for name in values}
    for name, here in names.items():
        ranks_of: dict[str, list[Member]] = {}
        for member in members:
            ranks_of.setdefault(member[2].get(name, ("", "None"))[1], []).append(member)
        if name not in owned if outline.kind == PRESENCE else len(ranks_of) > 1:
            is_differing = True
            yield from ((here, _ranks(having), value) for value, having in ranks_of.items())
    if is_differing or outline.kind == PRESENCE or not names:
        return
    firsts, order = sum(outline.is_first for _, outline, _ in members), "in the same order on all ranks"
    should = f"there should be {outline.number}, one of them the first, {order}"
    yield ", ".join(names.values()), _ranks(members), f"{len(members)} copies, {firsts} of them the first: {should}"


def _ranks(members: Sequence[Member]) -> str:
    return format_ranks([rank for rank, _, _ in members])


def _message(kind: str, rows: Sequence[Row]) -> str:
    problem, remedy = MESSAGES[kind]
    names = list(dict.fromkeys(name for name, _, _ in rows))
    listed = ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"  {name:{widths[0]}}  {where:{widths[1]}}  {value}" for name, where, value in rows[:MAX_ROWS]]
    lines += [f"  and {len(rows) - MAX_ROWS} more rows"] * (len(rows) > MAX_ROWS)
    remedy = next((REMEDIES[name] for name in REMEDIES if name in names), remedy)
    return "\n".join([f"{problem.format(listed)}. No gradient was changed.", *lines, remedy])


# -- the values that ranks compare


Checksum = Callable[[Sequence[tuple[Leaf, Tensor]]], int]


class Replica(NamedTuple):
    leaf: Leaf
    tensor: Tensor
    copies: Copies


def rejection(error: Exception, copies: Copies) -> Compared:
    text = f"{type(error).__name__}: {error}"
    return Compared(REJECTION, copies, digest(text), lambda: {"error": ("error", text)})


def arguments(fields: Mapping[str, Any], remarks: Callable[[], Mapping[str, str]], copies: Copies) -> Compared:
    """fields: The value is None for an argument that the caller did not pass.
    remarks: Returns details for the error message. Ranks do not compare them.
    """
    texts = {
        name: value if isinstance(value, str) else repr(value) for name, value in fields.items() if value is not None
    }
    return Compared(
        CALL,
        copies,
        digest(sorted(texts.items())),
        lambda: {name: (name, text) for name, text in {**texts, **remarks()}.items()},
    )


def layout(labels: Sequence[tuple[Leaf, str]], copies: Copies) -> Compared:
    """labels: (parameter, text with its name, shape and placements)."""
    content = digest([label for _, label in labels])
    return Compared(
        LAYOUT,
        copies,
        content,
        lambda: {str(index): (f"the parameter at {leaf.place}", label) for index, (leaf, label) in enumerate(labels)},
    )


def plain_gradients(gradients: Sequence[tuple[Leaf, Tensor]], copies: Copies, checksum: Checksum) -> Compared:
    names = [leaf.name or leaf.position for leaf, _ in gradients]  # a position may differ between ranks
    content = digest((names, checksum(gradients) if gradients else 0))
    return Compared(PLAIN, copies, content, lambda: _bits(gradients, checksum))


def replicas_by_ranks(replicas: Iterable[Replica], checksum: Checksum) -> list[Compared]:
    members: dict[Copies, list[Replica]] = {}
    for replica in replicas:
        members.setdefault(replica.copies, []).append(replica)
    return [_replicas(sharing, checksum) for sharing in members.values()]


def _replicas(replicas: Sequence[Replica], checksum: Checksum) -> Compared:
    gradients = [(replica.leaf, replica.tensor) for replica in replicas]
    content = digest(([label(leaf) for leaf, _ in gradients], checksum(gradients)))
    return Compared(REPLICAS, replicas[0].copies, content, lambda: _bits(gradients, checksum))


def presence(copies: Copies, identities: Sequence[Hashable], place: Callable[[int], str | None]) -> Compared:
    """Compare which gradients exist. The first rank with copies owns the gradients, so it must have each of them.

    identities: For each gradient, a value that is equal on all ranks with copies.
    place: Returns the place of a gradient by its index, or None if the norm does not need the gradient.
    """

    def values() -> Values:
        repeated: Counter[Hashable] = Counter()
        names = {}
        for index, identity in enumerate(identities):
            if (where := "" if copies.is_first else place(index)) is not None:
                repeated[identity] += 1
                names[f"{identity!r} {repeated[identity]}"] = where, "a gradient"
        return names

    return Compared(PRESENCE, copies, digest(list(identities)), values)


def by_name(gradients: Iterable[tuple[Leaf, str]]) -> dict[str, tuple[str, str]]:
    values: dict[str, tuple[str, str]] = {}
    for leaf, text in gradients:
        key = str(leaf.name or leaf.position)
        values[leaf.place if key in values else key] = leaf.place, text
    return values


def _bits(gradients: Sequence[tuple[Leaf, Tensor]], checksum: Checksum) -> Values:
    return by_name((own[0], f"{label(own[0]) or ''} checksum {checksum([own]):016x}".strip()) for own in gradients)


def label(leaf: Leaf, texts: dict[Hashable, tuple[Any, str]] | None = None) -> str | None:
    """Return the name, shape and placements of a parameter as text, or None for an unknown shape.

    texts: A cache, because writing placements as text takes long. It keeps the placements alive, since Paddle makes new
        ones at each access, whose `id` could be that of earlier ones.
    """
    gradient, name, parameter = leaf.tensor, leaf.name, leaf.parameter
    tensor = parameter if hasattr(parameter, "shape") else gradient
    if tensor is None:
        return None
    placements = getattr(tensor, "placements", None)  # None for a tensor without a mesh
    texts, key = {} if texts is None else texts, (tuple(tensor.shape), id(placements))
    if key not in texts:
        shape = list(tensor.shape)
        texts[key] = placements, f"{shape} {placements}" if placements else str(shape)
    _, text = texts[key]
    # A name that the framework generates has a number, which may differ between ranks.
    return text if name is None or name == getattr(parameter, "name", None) else f"{name!r} {text}"
