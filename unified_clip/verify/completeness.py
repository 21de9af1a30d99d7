"""Reject outputs of two training steps that cannot be compared: they would count as the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..recording.pairing import Names
from .match_names import Parameters
from .run import ScriptRun, VerifyError

Shapes = Mapping[str, tuple[int, ...]]

MOST_LISTED = 4
"""Names that an error lists."""


def reject_changing_outputs(ran: ScriptRun) -> None:
    """Reject outputs whose parameters or shapes change between steps, and gradients that belong to no parameter.

    Raises:
        VerifyError: The outputs have such a tensor.
    """
    first = shapes(ran)
    for step, given in enumerate(ran.given, start=1):
        now = {name: tuple(each.shape) for name, each in given.parameters.items()}
        if other := sorted(name for name in {*first, *now} if first.get(name) != now.get(name)):
            raise VerifyError(
                f"{ran.script} yields {_listing(other)} at step {step} but not at step 1, or in another shape. Yield "
                "the same parameters after each step."
            )
        for part, tensors in (("gradients", given.gradients or {}), ("unclipped gradients", given.unclipped or {})):
            if unknown := sorted(name for name in tensors if name not in now):
                raise VerifyError(
                    f"{ran.script} yields {part} of {_listing(unknown)} at step {step}, but no such parameters. Its "
                    f"parameters are {_listing(now)}. Name each gradient like its parameter."
                )
            if turned := [name for name, each in tensors.items() if tuple(each.shape) != now[name]]:
                raise VerifyError(
                    f"{ran.script} yields {part} of {turned[0]!r} in the shape {tuple(tensors[turned[0]].shape)} at "
                    f"step {step}, and the parameter in {now[turned[0]]}. Yield both in one shape."
                )


def reject_unpaired(
    old: ScriptRun, new: ScriptRun, weights: Parameters, names: Names, axes: Mapping[str, Sequence[int] | None]
) -> None:
    """Reject parameters without a partner or with one of another shape, and weights that neither function yields.

    Raises:
        VerifyError: There is such a parameter or weight.
    """
    for name, other_name in names.items():
        if axes[name] is None:
            raise VerifyError(
                f"{old.script} yields {name!r} in the shape {shapes(old)[name]}, and {new.script} {other_name!r} in "
                f"{shapes(new)[other_name]}. No order of axes makes them equal. Pair other names with --map, or "
                "reshape one of them."
            )
    sides = ((old, new, set(names)), (new, old, set(names.values())))
    for ran, other, paired in sides:
        if alone := [name for name in shapes(ran) if name not in paired]:
            raise VerifyError(
                f"{other.script} yields no parameter that matches {_listing(alone)} of {ran.script}, so it cannot be "
                "compared. Yield it from both, or pair the names with --map."
            )
    if unseen := [name for name in weights if name not in {*names, *names.values()}]:
        raise VerifyError(
            f"--weights has {_listing(unseen)}, which neither function yields, so it cannot be compared. Yield it from "
            "both after each step, by that name in one of them, or remove it from the file."
        )


def shapes(ran: ScriptRun) -> Shapes:
    """Return the shapes of the parameters that a function yields."""
    return {name: tuple(each.shape) for name, each in ran.given[0].parameters.items()}


def _listing(names: Collection[str]) -> str:
    listed = [repr(name) for name in names]
    more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    return ", ".join(listed[:MOST_LISTED]) + more
