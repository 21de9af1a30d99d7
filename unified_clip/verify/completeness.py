"""Whether all that two training steps gave can be compared: what cannot is refused, for it would count as the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..recording.pairing import Names
from .match_names import Parameters
from .run import Ran, VerifyError

Shapes = Mapping[str, tuple[int, ...]]

LISTED = 4
"""Names of which a sentence tells."""


def refuse_what_changes(ran: Ran) -> None:
    """Parameters that a function does not give after each step, or not in one shape, and gradients of no parameter.

    Raises:
        VerifyError: There is one.
    """
    first = shapes(ran)
    for step, given in enumerate(ran.given, start=1):
        now = {name: tuple(each.shape) for name, each in given.parameters.items()}
        if other := sorted(name for name in {*first, *now} if first.get(name) != now.get(name)):
            raise VerifyError(
                f"{ran.script} gives {_listing(other)} at step {step} and not at step 1, or in another shape; give the "
                "same parameters after each"
            )
        for part, tensors in (("gradients", given.gradients or {}), ("unclipped gradients", given.unclipped or {})):
            if unknown := sorted(name for name in tensors if name not in now):
                raise VerifyError(
                    f"{ran.script} gives {part} of {_listing(unknown)} at step {step}, which are no parameters that it "
                    f"gives: {_listing(now)}; call a gradient like its parameter"
                )
            if turned := [name for name, each in tensors.items() if tuple(each.shape) != now[name]]:
                raise VerifyError(
                    f"{ran.script} gives {part} of {turned[0]!r} in the shape {tuple(tensors[turned[0]].shape)} at "
                    f"step {step}, and the parameter in {now[turned[0]]}; give both alike"
                )


def refuse_what_is_alone(
    old: Ran, new: Ran, weights: Parameters, names: Names, axes: Mapping[str, Sequence[int] | None]
) -> None:
    """Parameters without a partner, or with one of another shape, and weights that neither function gives.

    Raises:
        VerifyError: There is one.
    """
    for name, other_name in names.items():
        if axes[name] is None:
            raise VerifyError(
                f"{old.script} gives {name!r} in the shape {shapes(old)[name]}, and {new.script} {other_name!r} in "
                f"{shapes(new)[other_name]}: no order of the axes makes them one. Pair others with --map, or give one "
                "reshaped"
            )
    sides = ((old, new, set(names)), (new, old, set(names.values())))
    for ran, other, paired in sides:
        if alone := [name for name in shapes(ran) if name not in paired]:
            raise VerifyError(
                f"{other.script} gives nothing that belongs to {_listing(alone)} of {ran.script}: what only one of "
                "them gives is not compared. Let both give it, or pair the names with --map"
            )
    if unseen := [name for name in weights if name not in {*names, *names.values()}]:
        raise VerifyError(
            f"--weights has {_listing(unseen)}, which neither function gives: what it becomes is not compared. Let "
            "both give it after each step, by that name in one of them, or take it out of the file"
        )


def shapes(ran: Ran) -> Shapes:
    """Of the parameters that a function gives."""
    return {name: tuple(each.shape) for name, each in ran.given[0].parameters.items()}


def _listing(names: Collection[str]) -> str:
    listed = [repr(name) for name in names]
    more = f" and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
    return ", ".join(listed[:LISTED]) + more
