"""Find the owner rank of a gradient, and the ranks with copies, from the caller's `ownership`."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import NamedTuple

from .._core.distributed import DISTINCT, REPLICATED, DistributedSpec
from .._core.types import Leaf
from .groups import ProcessGroup, Ranks

REMEDY = (
    "Pass ownership='replicated' if all ranks have the same parameters, plain or as DTensors (as with tensor "
    "parallelism), or 'distinct' if no rank has a copy of another rank's. Or pass a function that gets a parameter and "
    "returns whether this rank owns the parameter (see unified_clip.ownership)"
)


def declared_owner(spec: DistributedSpec, leaf: Leaf, ranks: Collection[int], *, rank: int, first: int) -> bool | None:
    """Return whether `ownership` makes this rank the owner, or None if `ownership` declares nothing.

    ranks: The ranks that have the gradient.
    first: The first rank of the process group.
    """
    ownership = spec.ownership_of(leaf)
    if callable(ownership):
        # A name has no placements.
        is_owner = ownership(leaf.tensor if isinstance(leaf.parameter, str) else leaf.parameter)
        if is_owner not in (True, False):
            raise TypeError(
                f"ownership returned {is_owner!r} for {leaf.place}. Return True if this rank owns the gradient, else "
                "False"
            )
        return bool(is_owner)
    if ownership == REPLICATED and rank not in ranks:
        raise ValueError(
            f"ownership is {REPLICATED!r}, but the gradient at {leaf.place} is only on the ranks {sorted(ranks)}: "
            f"rank {rank} has no copy. Pass ownership={DISTINCT!r} if your list is meant to have gradients "
            "of other ranks"
        )
    if ownership == DISTINCT:
        return True
    return first in ranks if ownership == REPLICATED else None


class Copies(NamedTuple):
    key: Hashable
    """Values of this rank have equal keys if the same ranks share them."""

    number: int
    """The number of copies of the value, including the copy on this rank."""

    is_first: bool

    @classmethod
    def on(cls, ranks: Ranks, here: int) -> Copies:
        return cls(("mesh", ranks.key), len(ranks), ranks[0] == here)

    @classmethod
    def on_all(cls, group: ProcessGroup) -> Copies:
        return cls("all", group.size, group.rank == 0)


def undeclared(message: str) -> ValueError:
    """Return an error that only this rank raises. Other ranks might never start a collective to receive the error."""
    error = ValueError(message)
    error.raises_alone = True  # type: ignore[attr-defined]
    return error


def ownership_unknown(size: int, place: str, kind: str) -> ValueError:
    return undeclared(
        f"Cannot infer how gradients are distributed over {size} ranks: the gradient at {place} is {kind}. {REMEDY}"
    )


def copies_unknown(leaf: Leaf) -> ValueError:
    return ValueError(
        f"check_replicas cannot infer which ranks have copies of {leaf.place}: ownership is your own function. "
        f"Pass ownership=mesh_ownership(mesh), {REPLICATED!r} or {DISTINCT!r}, or leave check_replicas out"
    )


def norm_unknown(leaf: Leaf) -> ValueError:
    return undeclared(
        f"{leaf.place} is a plain tensor. Other ranks may have other shards of this tensor, so its norm is unknown. If "
        f"the tensor is complete on this rank, pass ownership={REPLICATED!r}, or leave process_group out. If ranks "
        f"have different shards, clip by the total norm: pass ownership={DISTINCT!r} to clip_grad_norm_"
    )


class Terminology(NamedTuple):
    """The terms that a framework uses, for error messages."""

    mesh: str
    redistribute: str
    world_group: str
