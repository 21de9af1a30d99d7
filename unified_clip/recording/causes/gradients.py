"""Causes in the gradients that a run clips: not finite, missing, swapped, scaled, or grouped differently."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...causes.find import find
from ...causes.observation import Cause, Observation
from ...causes.scaling import combined_norm
from ..pairing import CallPair
from ..rounding import distance
from ..runs import RecordedCall
from .point import PRODUCT, DivergencePoint, call_at, is_close, is_near, stand_ins

BEFORE_CLIPPING = ("swapped", "left out", "scaled gradients")
"""The causes for which the gradients before clipping are compared."""


def not_finite_in_one(point: DivergencePoint, pair: CallPair) -> Cause | None:
    for run, line, other in ((point.a, pair.a, pair.b), (point.b, pair.b, pair.a)):
        if all(map(math.isfinite, _norms(line))) or not all(map(math.isfinite, _norms(other))):
            continue
        names = [repr(name) for name, each in line.parameters.items() if not math.isfinite(each.norm)]
        counts = "" if line.nan is None else f": {line.nan} NaN and {line.inf} inf"
        where = f", in {', '.join(names[:3])}{f' and {len(names) - 3} more' * (len(names) > 3)}" if names else ""
        sentence = f"the gradients of {run.name} are not finite{counts}{where}; those of the other run are"
        return Cause("not finite in one run", sentence)
    return None


def _norms(line: RecordedCall) -> list[float]:
    return line.norms() or [parameter.norm for parameter in line.parameters.values()]


def per_tensor(point: DivergencePoint) -> Cause | None:
    """Find one run with a total norm, and another whose norms per tensor or group make up that norm."""
    for run, other in point.both_ways():
        line, rest = call_at(run, point.index), other.lines[point.index :]
        if line is None or line.rule != "global" or line.norm_type != 2 or not rest:
            continue
        total = line.norms()[0]
        norms, calls = _norms_up_to(total, rest)
        combined = combined_norm(norms, 2)
        if len(norms) > 1 and is_close(combined, total, PRODUCT):
            in_groups = any(each.rule == "global" and len(each.parameters) > 1 for each in rest[:calls])
            return Cause(
                "per group for global" if in_groups else "per tensor for global",
                f"{other.name} clips by {len(norms)} norms, {'in one call' if calls == 1 else f'in {calls} calls'}; "
                f"{run.name} clips all gradients by their total norm. The gradients are the same: the norms combine to "
                f"{combined:.9g}, and the total norm is {total:.9g}",
            )
    return None


def _norms_up_to(total: float, lines: Sequence[RecordedCall]) -> tuple[list[float], int]:
    """Return the norms of consecutive calls until they combine to `total`, and the number of these calls."""
    norms: list[float] = []
    combined = 0.0
    for calls, line in enumerate(lines, start=1):
        if line.rule not in ("global", "each"):
            break
        norms += line.norms()
        combined = combined_norm([combined, *line.norms()], 2)
        if combined >= total * (1 - PRODUCT):
            return norms, calls
    return [], 0


def before_clipping(point: DivergencePoint, pair: CallPair) -> Cause | None:
    """Find missing, swapped or scaled gradients in the second run, or else in the first."""
    name_in_a = {b: a for a, b in pair.names.items()}
    of_a = {name: each.norm for name, each in pair.a.parameters.items()}
    of_b = {name_in_a.get(name, name): each.norm for name, each in pair.b.parameters.items()}
    if not of_a or not of_b or len(of_a) == len(of_b):
        of_a, of_b = ({name: norms[side] for name, *norms in point.gradients()} for side in (0, 1))
    elif pair.a.order != pair.b.order:
        return None
    elif any(name == other and not name.isdecimal() for name, other in pair.names.items()):
        of_b = {name: of_b[name] for name in of_a if name in of_b} | of_b
    else:  # names that were matched by shape and order are wrong after a missing one
        of_a, of_b = (dict(sorted(norms.items(), key=lambda item: item[1])) for norms in (of_a, of_b))
    for run, due, found in ((point.b, of_a, of_b), (point.a, of_b, of_a)):
        cause = _find(due, list(found.values()))
        if cause and cause.kind in BEFORE_CLIPPING:
            sentence = cause.sentence
            if cause.kind == "swapped" and not any(name in pair.b.parameters for name in due):
                sentence += ". They were matched by shape and order: if that is wrong, pass their names with --map"
            return point.cause(cause.kind, sentence, run)
    return None


def _find(due: Mapping[str, float], found: Sequence[float]) -> Cause | None:
    """Find the cause of other norms before clipping. Norms that are near are equal."""
    nearest = [min(due.values(), key=lambda norm: distance(norm, each).ulps) for each in found]
    norms = [norm if is_near(norm, each) else each for norm, each in zip(nearest, found, strict=True)]
    given, after = stand_ins(due.values()), stand_ins(norms)
    return find(
        Observation(given, given, after, "global", math.inf, names=list(due), are_norms=True, slacks=(PRODUCT,))
    )
