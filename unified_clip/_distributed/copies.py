"""The values that ranks compare: arguments and parameters of the call, and copies of gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .._core.types import Leaf, Tensor
from .agreement import CALL, LAYOUT, PLAIN, PRESENCE, REJECTION, REPLICAS, Compared, Values
from .digests import digest
from .owners import Copies

Checksum = Callable[[Sequence[tuple[Leaf, Tensor]]], int]


class Replica(NamedTuple):
    leaf: Leaf
    tensor: Tensor
    copies: Copies
    device: str = ""
    """The device of this copy, if this process has several copies."""


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
    members: dict[Hashable, list[Replica]] = {}
    for replica in replicas:
        members.setdefault((replica.copies, replica.device), []).append(replica)
    return [_replicas(sharing, checksum) for sharing in members.values()]


def _replicas(replicas: Sequence[Replica], checksum: Checksum) -> Compared:
    gradients = [(replica.leaf, replica.tensor) for replica in replicas]
    content = digest(([label(leaf) for leaf, _ in gradients], checksum(gradients)))
    return Compared(REPLICAS, replicas[0].copies, content, lambda: _bits(gradients, checksum), replicas[0].device)


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


def label(leaf: Leaf, texts: dict[Hashable, str] | None = None) -> str | None:
    """Return the name, shape and placements of a parameter as text, or None for an unknown shape.

    texts: A cache, because writing placements as text takes long.
    """
    gradient, name, parameter = leaf.tensor, leaf.name, leaf.parameter
    tensor = parameter if hasattr(parameter, "shape") else gradient
    if tensor is None:
        return None
    placements = getattr(tensor, "placements", None)  # None for a tensor without a mesh
    texts, key = {} if texts is None else texts, (tuple(tensor.shape), id(placements))
    text = texts.get(key)
    if text is None:
        text = texts[key] = f"{list(tensor.shape)} {placements}" if placements else str(list(tensor.shape))
    # A name that the framework generates has a number, which may differ between ranks.
    return text if name is None or name == getattr(parameter, "name", None) else f"{name!r} {text}"
