"""Find weight decay that one run adds to the gradients before the clip, as an L2 regularizer in the loss does."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...causes.observation import Cause
from ..divergence import DivergencePoint, numbers
from ..pairing import CallPair, greatest_setting
from ..rounding import is_near
from .before_clips import names_text

EXACT, LOSS_ERROR = 1e-3, 1e-6
"""The relative errors of the part of a loss that a regularizer adds, and of a loss."""


def before_the_clip(point: DivergencePoint, pair: CallPair) -> Cause | None:
    """Return a cause if only one run has weight decay, and the loss of the other run contains this decay, else None.

    Weight decay of c and an L2 regularizer of c / 2 times the squared weights change the gradients by the same amount,
    but only the regularizer does before the clip. Return None, too, if the weights or the losses are unknown.
    """
    if point.first.stage not in ("gradient", "norm"):
        return None
    weights = _weights(pair)
    if not weights or not all(is_near(a, b) for _, a, b in numbers(pair, "weight")):
        return None
    kernels = [name for name in weights if len(pair.a.parameters[name].shape) > 1]
    for run, other in point.both_ways():
        own, step = (
            next((step for step in each.optimizer_steps if step.step == pair.a.step), None) for each in (run, other)
        )
        if own is None or step is None or not len(own.losses) == len(step.losses) == 1:
            continue
        decay = greatest_setting(step, "weight_decay")
        if not decay or greatest_setting(own, "weight_decay"):
            continue
        loss, least = own.losses[0], step.losses[0]
        for names in (list(weights), kernels):
            added = decay / 2 * math.fsum(weights[name] ** 2 for name in names)
            error = EXACT * added + LOSS_ERROR * abs(loss)
            if abs(loss - least - added) <= error < added / 10:
                return regularizer_cause(run.name, other.name, decay, names, f"its loss is {added:.6g} larger")
    return None


def regularizer_cause(run: str, other: str, decay: float, names: Sequence[str], evidence: str) -> Cause:
    """Return the cause of a run that adds `decay` times its weights to the gradients before the clip.

    other: The name of the run that does not.
    names: The names of these weights.
    evidence: A clause about the numbers that show it.
    """
    return Cause(
        "weight decay before the clip",
        f"{run} adds {decay:.6g} times the weight to the gradients of {names_text(names)} before the clip, as an L2 "
        f"regularizer in the loss does ({evidence}), and {other} does not. Weight decay of an optimizer acts after the "
        f"clip. In {other}, add {decay / 2:.6g} times the sum of the squares of these weights to the loss, and set the "
        "weight decay of the optimizer to 0",
    )


def _weights(pair: CallPair) -> dict[str, float]:
    """Return the norm of each weight by name, from the run that recorded it. Return {} if one is unknown."""
    weights = {}
    for name, other in pair.names.items():
        norms = (pair.a.parameters[name].weight, pair.b.parameters[other].weight)
        weights[name] = next((norm for norm in norms if norm is not None), math.nan)
    is_known = len(weights) == len(pair.a.parameters) and not any(map(math.isnan, weights.values()))
    return weights if is_known else {}
