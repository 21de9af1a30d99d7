"""Find gradients that have no owner rank.

The first rank with a copy of a parameter owns its gradient. If the gradient is None on this rank, the norm does not
include it. To detect this, the all-reduce of the norm also sums digests of the gradients that have copies.
The sum is 0 if no copy is missing. Otherwise, the ranks compare the gradients one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .._core.types import Leaf
from .differences import format_ranks
from .replicas import Exchange, SharedSet


def place(leaf: Leaf, are_listed: bool) -> str:
    """are_listed: Whether all ranks list the same parameters."""
    is_unique = are_listed or leaf.name is not None
    return leaf.place if is_unique else f"{leaf.place} (or another gradient of the same size)"


class SharedGradients(NamedTuple):
    sets: Sequence[SharedSet] = ()
    needed_place: Callable[[int], str | None] = lambda index: None
    """Returns the name or position of a gradient, or None if the norm does not need the gradient."""


def describe(shared: SharedGradients, exchange: Exchange) -> str | None:
    """Return an error message, or None if each gradient has an owner. All ranks have to call this function."""
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
        f"no rank owns the gradient at {text['place']}{more} on {where}. "
        "The owner should be the first rank with a copy of the parameter, but the gradient is None on that first rank. "
        "Set the gradient on all ranks that have a copy of the parameter. No gradient was changed."
    )


def _gathered(numbers: Sequence[int], exchange: Exchange) -> list[int]:
    lengths = exchange.all_gather(len(numbers))
    if not any(lengths):
        return []
    before, after = sum(lengths[: exchange.rank]), sum(lengths[exchange.rank + 1 :])
    return exchange.all_reduce_sum([*[0] * before, *numbers, *[0] * after])
