"""Apply a clipping rule of `ClipConfig` to each group of gradients."""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from .._core import rule, validation
from .._core.backend import Backend
from .._core.gradients import GradientList
from .._core.path import Path
from .._core.rule import AdaptiveThreshold, Clamp, ClipRule, Scale
from .._core.types import Scalar, Tensor

Nonfinite = Literal["family", "raise", "skip", "zero"]
"""The action if a norm is NaN or infinite.

- "family": clip by the formula that `family` in the configuration selects.
- "raise": raise NonFiniteNormError.
- "skip": do not clip, and set `Outcome.skipped`. The caller sets all gradients to None.
- "zero": set all results to 0.
"""

IN_GRAPHS = {
    "raise": "nonfinite = 'raise' cannot raise from inside a graph. Use 'zero' or 'family' in graphs, and check the "
    "norm outside the graph",
    "skip": "nonfinite = 'skip' cannot skip a step from inside a graph. Use 'zero' to set all gradients to 0, or skip "
    "steps with attach_to() (Keras) or as_optax() (JAX)",
}


class Outcome(NamedTuple):
    path: Path
    n: Scalar
    norm: Tensor
    norms: list[list[Scale]]
    """For each group, a list with one norm for the group, one norm per tensor, or no norm for a clip by value."""

    max_abs: list[Scalar | None]
    """For each group clipped by value, the largest magnitude of an element. For other groups, None."""

    counts: tuple[Scalar, Scalar] | None
    """(number of NaN, number of infinities), or None if they were not counted."""

    per_tensor: list[Scale]
    """The norm of each gradient, or an empty list without `details`."""

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
    """Clip each group by its rule. Each gradient is in exactly one group.

    `patterns` and `step` must be equal on all ranks.
    """
    everything, scalars = range(len(gradients.values)), nonfinite != "family"
    if gradients.shards is not None:
        gradients.set_consensus_fields(
            _must_match([group_rule for _, group_rule in groups], nonfinite, details, patterns, step)
        )
    is_single = len(groups) == 1 and groups[0][1].kind == "global_norm"
    total_rule = groups[0][1] if is_single else ClipRule("global_norm")
    # measure norms per tensor first: on CPUs, the total norm then needs no second pass
    changes: list[Sequence[Scale | Clamp]] = [
        [rule.bounded(gradients, group, own, inputs)] if own.kind == "value"
        else rule.measure(gradients, group, own, inputs, scalars=scalars)
        for group, own in (() if is_single else groups)
    ]  # fmt: skip
    (total,) = rule.measure(gradients, everything, total_rule, inputs)
    with total.path.scope():
        is_wrong = total.path.on_host and not total.path.is_finite(total.n)
        needs_counts = is_wrong or (details and not total.path.on_host)
        counts = _nonfinite_counts(total.path) if needs_counts else None
    changes = changes or [[total]]
    norms = [[change for change in own if isinstance(change, Scale)] for own in changes]
    max_abs = [_max_abs(gradients, group, inputs) if own.kind == "value" else None for group, own in groups]
    orders = [
        (total, total_rule.p),
        *((norm, own.p) for (_, own), group_norms in zip(groups, norms, strict=True) for norm in group_norms),
    ]
    skipped = _is_skipped(nonfinite, gradients, orders)
    per_tensor = []
    if details:
        gradients.tensor_norms(total_rule.p)
        single = ClipRule("norm", p=total_rule.p)
        per_tensor = [rule.measure_one(gradients, range(i, i + 1), single, inputs) for i in everything]
    outcome = Outcome(total.path, total.n, total.total, norms, max_abs, counts, per_tensor, skipped)
    keep = _keep(outcome) if nonfinite == "zero" else None
    for (_, own), group_changes in zip(groups, changes, strict=True):
        for change in group_changes:
            if skipped:
                rule.notify(gradients, own, change)
            else:
                rule.apply(gradients, own, [change], keep=keep)
    return outcome


def check_order(backend: Backend, gradients: GradientList, parts: Sequence[tuple[range, ClipRule]]) -> None:
    """Complex numbers have no order, so they cannot be clipped by value."""
    for group, part in parts if gradients.collected is None else ():  # collected gradients are real
        for leaf in gradients.leaves[group.start : group.stop] if part.kind == "value" else ():
            validation.gradient_dtype(backend.dtype(leaf.tensor), leaf, reject_complex=True)


def _must_match(
    rules: Sequence[ClipRule], nonfinite: Nonfinite, details: bool, patterns: object, step: int | None
) -> dict[str, Any]:
    thresholds = [clip_rule.threshold for clip_rule in rules if isinstance(clip_rule.threshold, float)]
    threshold = {"threshold": thresholds[0]} if len(thresholds) == 1 else {"thresholds": thresholds}
    described = [
        f"{clip_rule.kind} with norm_type {clip_rule.p}, bounds {clip_rule.bounds}"
        + "".join(f", {name} {value}" for name, value in clip_rule.convention.arguments.items())
        + (f", {clip_rule.threshold.describe()}" if isinstance(clip_rule.threshold, AdaptiveThreshold) else "")
        for clip_rule in rules
    ]
    fields = {"nonfinite": nonfinite, "details": details, "names": patterns, "step": step}
    return {**threshold, "rules": " and ".join(described), **fields}


def _nonfinite_counts(path: Path) -> tuple[Scalar, Scalar]:
    zero = path.xp.asarray(0.0)
    nan, inf = zip((zero, zero), *path.nonfinite_counts(), strict=True)
    return functools.reduce(operator.add, nan), functools.reduce(operator.add, inf)


def _max_abs(gradients: GradientList, group: range, inputs: Sequence[Tensor]) -> Scalar:
    path = gradients.path(group, inputs)
    with path.scope():
        return gradients.norm(path, group, math.inf)


def _is_skipped(nonfinite: Nonfinite, gradients: GradientList, orders: Sequence[tuple[Scale, float]]) -> bool:
    if nonfinite not in IN_GRAPHS:
        return False
    for norm, p in orders:
        with norm.path.scope():
            norm = norm._replace(n=_one_number(norm.path, norm.n))
            is_finite = norm.path.is_finite(norm.n)
            if is_finite is None:
                raise TypeError(IN_GRAPHS[nonfinite])
            if nonfinite == "raise":
                rule.check_finite(gradients, norm, p, "the configuration has nonfinite = 'raise'")
            elif not is_finite:
                return True
    return False


def _keep(outcome: Outcome) -> Scalar | None:
    keep = _is_all_finite(outcome)
    return None if all(norm.path.on_host for norm in _norms(outcome)) and outcome.path.on_host and bool(keep) else keep


# -- what integrations read from a compiled graph


def smallest_coefficient(outcome: Outcome) -> Tensor:
    path = outcome.path
    with path.scope():
        xp = path.xp
        unchanged, nan = xp.asarray(1.0), xp.asarray(math.nan)
        smallest = unchanged
        for norm in _norms(outcome):
            coef = unchanged if norm.coef is None else xp.asarray(_least(norm.path, norm.coef))
            smallest = xp.where(coef <= smallest, coef, xp.where(coef >= smallest, smallest, nan))
        return path.as_norm(smallest)


def all_finite(outcome: Outcome) -> Tensor:
    path = outcome.path
    with path.scope():
        xp = path.xp
        return path.as_norm(xp.where(_is_all_finite(outcome), xp.asarray(1.0), xp.asarray(0.0)))


def _is_all_finite(outcome: Outcome) -> Any:
    measured = [(outcome.path, outcome.n), *((norm.path, norm.n) for norm in _norms(outcome))]
    conditions = []
    for path, n in measured:
        with path.scope():
            conditions.append(_one_number(path, n) <= path.xp.asarray(sys.float_info.max))
    return functools.reduce(operator.and_, conditions)


def _norms(outcome: Outcome) -> Iterator[Scale]:
    return (norm for norms in outcome.norms for norm in norms)


def _least(path: Path, coef: Scalar) -> Scalar:
    if not getattr(coef, "ndim", 0):
        return coef
    xp = path.xp
    least = xp.least(xp.where(coef >= xp.asarray(0.0), coef, xp.asarray(-1.0)))
    return xp.where(least >= xp.asarray(0.0), least, xp.asarray(math.nan))


def _one_number(path: Path, n: Scalar) -> Scalar:
    """Return a number that is finite only if all norms in `n` are finite."""
    if not getattr(n, "ndim", 0):
        return n
    xp = path.xp
    is_finite = xp.least(xp.where(n <= xp.asarray(sys.float_info.max), xp.asarray(1.0), xp.asarray(0.0)))
    return xp.where(is_finite > xp.asarray(0.0), is_finite, xp.asarray(math.nan))
