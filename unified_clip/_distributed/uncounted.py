"""Find gradients that a rank clips, but that no rank includes in the norm.

The first rank with a copy of a gradient should include the gradient in the norm. But the gradient can be missing on
this rank. Each rank adds digests of its gradients with copies to the all-reduce of the norm. If the sum is not 0, the
ranks compare single gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from .._core.types import Leaf
from .differences import format_ranks
from .digests import digest
from .replicas import Exchange


def place(leaf: Leaf, are_listed: bool) -> str:
    """Return the place of a gradient for messages.

    are_listed: Whether all ranks list the same parameters.
    """
    is_unique = are_listed or leaf.name is not None
    return leaf.place if is_unique else f"{leaf.place}, or another one with as many elements,"


class SharedSet(NamedTuple):
    """The gradients of this rank whose copies are on the same ranks.

    The first of these ranks includes the gradients in the norm.
    """

    key: Hashable
    number: int
    is_first: bool
    """The fields `key`, `number` and `is_first` are the same as in `replicas.Copies`."""

    indices: Sequence[int]
    identities: Sequence[Hashable]
    """For each gradient, a value that identifies the gradient on all ranks with copies."""

    @property
    def content(self) -> int:
        """A digest that is equal if all ranks with copies have the same gradients."""
        return digest(self.identities)

    def numbers(self, places: Callable[[int], str | None]) -> Iterator[tuple[int, str]]:
        """Yield (number, place) for each gradient that has a place.

        The number identifies the gradient in the process group. Gradients with the same identity get different numbers.
        If a later rank has more gradients with this identity, one of the numbers is missing on the first rank.
        """
        repeated: Counter[Hashable] = Counter()
        for index, identity in zip(self.indices, self.identities, strict=True):
            if (place := places(index)) is not None:
                repeated[identity] += 1
                yield digest((self.key, identity, repeated[identity])) >> 1, place


class SharedGradients(NamedTuple):
    sets: Sequence[SharedSet] = ()
    needed_place: Callable[[int], str | None] = lambda index: None
    """A function that returns the place of a gradient, or None if the norm is right without the gradient."""


def describe(shared: SharedGradients, exchange: Exchange) -> str | None:
    """Return the error message about gradients that no rank includes in the norm, or None.

    All ranks have to call this function.
    """
    own = [number for each in shared.sets if each.is_first for number, _ in each.numbers(lambda index: "")]
    others = [entry for each in shared.sets if not each.is_first for entry in each.numbers(shared.needed_place)]
    counted = set(_gathered(own, exchange))
    places = [place for number, place in others if number not in counted]
    numbers = exchange.all_gather(len(places))
    ranks = [rank for rank, number in enumerate(numbers) if number]
    if not ranks:
        return None
    (text,) = exchange.exchange([{"place": places[0]} if exchange.rank == ranks[0] else None])
    more = f" and {numbers[ranks[0]] - 1} more" * (numbers[ranks[0]] > 1)
    where = format_ranks([exchange.ranks[rank] for rank in ranks])
    return (
        f"no rank counts the gradient at {text['place']}{more} on {where}. "
        "The first rank with a copy of the parameter has to count the gradient, but this rank has no gradient. Set the "
        "gradient on all ranks with a copy. No gradient was changed."
    )


def _gathered(numbers: Sequence[int], exchange: Exchange) -> list[int]:
    lengths = exchange.all_gather(len(numbers))
    if not any(lengths):
        return []
    before, after = sum(lengths[: exchange.rank]), sum(lengths[exchange.rank + 1 :])
    return exchange.all_reduce_sum([*[0] * before, *numbers, *[0] * after])
