"""Mistakes in the gradients that a run clips: missing, swapped, scaled, not finite, or grouped differently."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..pairing import Names
from ..runs import RecordedCall, root_of_squares
from .finding import PRODUCT, DivergencePoint, Finding, call_at, is_close, is_near, listed


def not_finite_in_one(point: DivergencePoint) -> Finding | None:
    pair = point.pair
    if pair is None:
        return None
    for run, line, other in ((point.a, pair.a, pair.b), (point.b, pair.b, pair.a)):
        if all(map(math.isfinite, _norms(line))) or not all(map(math.isfinite, _norms(other))):
            continue
        where = [repr(name) for name, each in line.parameters.items() if not math.isfinite(each.norm)]
        counts = "" if line.nan is None else f": {line.nan} NaN and {line.inf} inf"
        return Finding(
            "not finite in one run",
            f"the gradients of {run.name} are not finite{counts}{f', in {listed(where)}' if where else ''}; those of "
            "the other run are",
        )
    return None


def _norms(line: RecordedCall) -> list[float]:
    return line.norms() or [parameter.norm for parameter in line.parameters.values()]


def per_tensor(point: DivergencePoint) -> Finding | None:
    """Find one run with a global norm, and another whose norms per tensor or group make up that norm."""
    for run, other in point.both_ways():
        line, rest = call_at(run, point.index), other.lines[point.index :]
        if line is None or line.rule != "global" or line.norm_type != 2 or not rest:
            continue
        total = line.norms()[0]
        norms, calls = _norms_up_to(total, rest)
        if len(norms) > 1 and is_close(root_of_squares(norms), total, PRODUCT):
            in_groups = any(each.rule == "global" and len(each.parameters) > 1 for each in rest[:calls])
            return Finding(
                "per group for global" if in_groups else "per tensor for global",
                f"{other.name} clips by {len(norms)} norms, {'in one call' if calls == 1 else f'in {calls} calls'}; "
                f"{run.name} clips all gradients by their total norm. The gradients are the same: the norms combine to "
                f"{root_of_squares(norms):.9g}, and the total norm is {total:.9g}",
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
        combined = root_of_squares([combined, *line.norms()])
        if combined >= total * (1 - PRODUCT):
            return norms, calls
    return [], 0


def missing(point: DivergencePoint) -> Finding | None:
    pair = point.pair
    if pair is None or pair.a.order != pair.b.order:
        return None
    for run, other, line, fewer, names in (
        (point.a, point.b, pair.a, pair.b, pair.names),
        (point.b, point.a, pair.b, pair.a, {b: a for a, b in pair.names.items()}),
    ):
        if left_out := _left_out(line, fewer, names):
            return Finding(
                "a parameter is missing",
                f"{other.name} clips without {listed(list(map(repr, left_out)))}, which {run.name} clips too; the "
                f"norms of the other {len(fewer.parameters)} are equal",
            )
    return None


def _left_out(line: RecordedCall, fewer: RecordedCall, names: Names) -> list[str]:
    """Return the parameters that `fewer` lacks, if all others have equal norms; else none."""
    if not 0 < len(fewer.parameters) < len(line.parameters):
        return []
    rest = dict(line.parameters)
    by_name = any(name == other and not name.isdecimal() for name, other in names.items())
    for other, parameter in fewer.parameters.items():
        # Names that were matched by shape and order are wrong after the missing one.
        candidates = (name for name in rest if names.get(name) == other or not by_name)
        name = next((name for name in candidates if is_near(rest[name].norm, parameter.norm)), None)
        if name is None:
            return []
        del rest[name]
    return list(rest)


def swapped(point: DivergencePoint) -> Finding | None:
    moved = [(name, a, b) for name, a, b in point.gradients() if not is_near(a, b)]
    if len(moved) < 2:
        return None
    rest = list(moved)
    matches = []
    for name, a, _ in moved:
        match = next((each for each in rest if is_near(a, each[2])), None)
        if match is None:
            return None
        rest.remove(match)
        matches.append(f"{name!r} of {point.a.name} has the norm of {match[0]!r} of {point.b.name} ({a:.9g})")
    text = f"the norms are the same in another order: {listed(matches)}"
    pair = point.pair
    if pair and not any(name in pair.b.parameters for name, *_ in moved):
        text += "; the parameters were matched by shape and order. If that is wrong, pass their names with --map"
    return Finding("swapped parameters", text)


def scaled(point: DivergencePoint) -> Finding | None:
    ratios = [b / a for _, a, b in point.gradients() if a and b]
    if len(ratios) < 2 or abs(ratios[0] - 1) < 1e-3:
        return None
    if not all(is_close(ratio, ratios[0], PRODUCT) for ratio in ratios):
        return None
    return Finding(
        "scaled gradients",
        f"every gradient of {point.b.name} is {ratios[0]:.6g} times that of {point.a.name}: the loss is a sum in one "
        "run and a mean in the other, or a loss scale is not divided out",
    )
