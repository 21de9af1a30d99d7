"""Clip groups of gradients by a rule each, as configurations do; `rule` has the rule itself."""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from .._core import rule
from .._core.gradients import GradientList
from .._core.path import Path
from .._core.rule import ClipRule, Norm
from .._core.types import Scalar, Tensor

Nonfinite = Literal["family", "raise", "skip", "zero"]
"""What becomes of gradients if a norm is not finite: as the rule has it; an error; None; zeros."""

IN_GRAPHS = {
    "raise": "raise from inside a graph; use 'zero' or 'family' there, and look at the norm outside",
    "skip": "leave a step out from inside a graph; use 'zero', which makes all gradients 0 there, or let the "
    "integration with the optimizer skip the step",
}
"""What a compiled graph cannot do, and what to do instead."""


class Outcome(NamedTuple):
    """The result of a call for groups."""

    path: Path
    """Over all gradients."""

    n: Scalar
    norm: Tensor
    """The total norm, as the caller gets it."""

    norms: list[list[Norm]]
    """Of each group; empty if it is clipped by value."""

    max_abs: list[Scalar | None]
    """The largest magnitude of each group that is clipped by value."""

    counts: tuple[Scalar, Scalar] | None
    """The numbers of NaN and inf: on the host path if a norm is not finite, on the device path with `details`."""

    per_tensor: list[Norm]
    """The norm of each gradient, with `details`."""

    skipped: bool


def clip(
    gradients: GradientList,
    groups: Sequence[tuple[range, ClipRule]],
    nonfinite: Nonfinite,
    *,
    inputs: Sequence[Tensor] = (),
    details: bool = False,
    patterns: object = None,
    step: int | None = None,
) -> Outcome:
    """Clip each group by its rule. The groups cover all gradients, in order.

    `inputs`: tensors that thresholds depend on. `patterns` and `step` have to be equal on every rank.
    """
    everything = range(len(gradients.values))
    if gradients.shards is not None:
        gradients.set_consensus_fields(_must_match([each for _, each in groups], nonfinite, details, patterns, step))
    is_single = len(groups) == 1 and groups[0][1].kind == "global_norm"
    whole = groups[0][1] if is_single else ClipRule("global_norm")
    (total,) = rule.measure(gradients, everything, whole, inputs)
    with total.path.scope():
        is_wrong = total.path.on_host and not total.path.is_finite(total.n)
        needs_counts = is_wrong or (details and not total.path.on_host)
        counts = total.path.count_nonfinite() if needs_counts else None
    scalars = nonfinite != "family"
    norms = [
        [total] if is_single else rule.measure(gradients, group, own, inputs, scalars=scalars) for group, own in groups
    ]
    measured = [[] if own.kind == "value" else found for (_, own), found in zip(groups, norms, strict=True)]
    max_abs = [_max_abs(gradients, group, inputs) if own.kind == "value" else None for group, own in groups]
    orders = [
        (total, whole.p),
        *((norm, own.p) for (_, own), found in zip(groups, measured, strict=True) for norm in found),
    ]
    skipped = _is_refused(nonfinite, gradients, orders)
    per_tensor = []
    if details:
        gradients.tensor_norms(whole.p)
        single = ClipRule("norm", p=whole.p)
        per_tensor = [rule.measure_one(gradients, range(i, i + 1), single, inputs) for i in everything]
    outcome = Outcome(total.path, total.n, total.total, measured, max_abs, counts, per_tensor, skipped)
    keep = _keep(outcome) if nonfinite == "zero" else None
    for (_, own), found in zip(groups, norms, strict=True):
        for norm in found:
            if skipped:
                rule.notify(gradients, own, norm)
            else:
                rule.apply(gradients, own, [norm], keep=keep)
    return outcome


def _must_match(
    rules: Sequence[ClipRule], nonfinite: Nonfinite, details: bool, patterns: object, step: int | None
) -> dict[str, Any]:
    """Return what has to be equal on every rank. A threshold that only a compiled graph has is not compared."""
    thresholds = [each.threshold for each in rules if isinstance(each.threshold, float)]
    threshold = {"threshold": thresholds[0]} if len(thresholds) == 1 else {"thresholds": thresholds}
    described = [
        f"{each.kind} with norm_type {each.p}, bounds {each.bounds}"
        + "".join(f", {name} {value}" for name, value in each.convention.arguments.items())
        for each in rules
    ]
    fields = {"nonfinite": nonfinite, "details": details, "names": patterns, "step": step}
    return {**threshold, "rules": " and ".join(described), **fields}


def _max_abs(gradients: GradientList, group: range, inputs: Sequence[Tensor]) -> Scalar:
    path = gradients.path(group, inputs)
    with path.scope():
        return gradients.norm(path, group, math.inf)


def _is_refused(nonfinite: Nonfinite, gradients: GradientList, orders: Sequence[tuple[Norm, float]]) -> bool:
    """Return whether to skip the step. Raise if the caller asks for that, and if a compiled graph cannot know."""
    if nonfinite not in IN_GRAPHS:
        return False
    for norm, p in orders:
        with norm.path.scope():
            is_finite = norm.path.is_finite(norm.n)
            if is_finite is None:
                raise TypeError(f"nonfinite = {nonfinite!r} cannot {IN_GRAPHS[nonfinite]}")
            if nonfinite == "raise":
                rule.check_finite(gradients, norm, p, "the configuration has nonfinite = 'raise'")
            elif not is_finite:
                return True
    return False


def _keep(outcome: Outcome) -> Scalar | None:
    """Return the condition under which results are kept, and not zeros; None if it is known to hold."""
    keep = _is_all_finite(outcome)
    return None if all(norm.path.on_host for norm in _norms(outcome)) and outcome.path.on_host and bool(keep) else keep


# -- what integrations read from a compiled graph


def smallest_coefficient(outcome: Outcome) -> Tensor:
    """Return the smallest coefficient as a tensor: NaN if any is, and 1 if there is none."""
    path = outcome.path
    with path.scope():
        xp = path.xp
        one, nan = xp.asarray(1.0), xp.asarray(math.nan)
        smallest = one
        for norm in _norms(outcome):
            coef = one if norm.coef is None else xp.asarray(_least(norm.coef))
            smallest = xp.where(coef <= smallest, coef, xp.where(coef >= smallest, smallest, nan))
        return path.as_norm(smallest)


def all_finite(outcome: Outcome) -> Tensor:
    """Return 1 as a tensor if the total norm and those of all groups are finite, else 0."""
    path = outcome.path
    with path.scope():
        xp = path.xp
        return path.as_norm(xp.where(_is_all_finite(outcome), xp.asarray(1.0), xp.asarray(0.0)))


def _is_all_finite(outcome: Outcome) -> Any:
    measured = [(outcome.path, outcome.n), *((norm.path, norm.n) for norm in _norms(outcome))]
    found = []
    for path, n in measured:
        with path.scope():
            is_finite: Any = n <= path.xp.asarray(sys.float_info.max)
            found.append(is_finite.all() if getattr(n, "ndim", 0) else is_finite)
    return functools.reduce(operator.and_, found)


def _norms(outcome: Outcome) -> Iterator[Norm]:
    return (norm for norms in outcome.norms for norm in norms)


def _least(coef: Scalar) -> Scalar:
    return coef.min() if getattr(coef, "ndim", 0) else coef
