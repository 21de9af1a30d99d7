"""Describe the effect of a configuration in words."""

from __future__ import annotations

import math

import numpy as np

from ..schedules import Constant, Linear, Piecewise, Schedule
from ..schema import DEFAULT_FAMILY, Clipping, Settings

FAMILY_TITLES = {"pytorch": "PyTorch's", "tensorflow": "TensorFlow's", "paddle": "Paddle's"}


def sentences(settings: Settings, limit: str = "") -> list[str]:
    """Return sentences about a configuration. `limit`: the name of an unknown threshold, or of both bounds."""
    groups = [f"The group {group.name!r}, parameters named {listed(group.include, group.exclude)}: {rule(group)}"
              for group in settings.groups]  # fmt: skip
    rest = rule(settings, limit)
    if settings.include != ["*"] or settings.exclude:
        named = f"Parameters named {listed(settings.include, settings.exclude)}: {rest}"
        return [*groups, named, "All others are neither counted nor clipped.", nonfinite(settings)]
    return [*groups, f"All other parameters: {rest}" if groups else rest[0].upper() + rest[1:], nonfinite(settings)]


def rule(clipping: Clipping, limit: str = "") -> str:
    """Return a sentence about a rule."""
    if clipping.rule == "none":
        return "nothing is clipped; the norm is measured."
    if clipping.rule == "value":
        if clipping.min is None or clipping.max is None:
            bounds = f"[-c, c], c being {limit or limits(clipping)}"
        else:
            bounds = f"[{limit or f'{number(clipping.min)}, {number(clipping.max)}'}]"
        return f"every element is moved into {bounds}; NaN stays NaN."
    eps = clipping.part(1.0).family.eps
    below = f"(n + {number(eps)})" if eps else "n"
    is_global = clipping.rule == "global_norm"
    whose = "one norm n over all gradients" if is_global else "for each tensor its own norm n"
    own_eps = f", with eps = {number(clipping.eps)}." if clipping.eps is not None else "."
    return (
        f"{whose} ({order(clipping)}); {'each' if is_global else 'it'} is multiplied by min(1, c / {below}), c being "
        f"{limit or limits(clipping)}. That is {FAMILY_TITLES[clipping.family or DEFAULT_FAMILY]} rule{own_eps}"
    )


def number(value: float) -> str:
    """Return the shortest text of a number that reads as the same number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def measured(value: float) -> str:
    """Return a computed number as text: the shortest text of its float32, or 9 digits if it is no float32."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    is_single = float(single) == value or math.isnan(value)
    return str(single).removesuffix(".0") if is_single else f"{value:.9g}"


def order(clipping: Clipping) -> str:
    p = clipping.norm_type or 2.0
    names = {2.0: "the root of the sum of squares", 1.0: "the sum of magnitudes", math.inf: "the largest magnitude"}
    return names.get(p, f"of order {number(p)}")


def limits(clipping: Clipping) -> str:
    """Return the threshold or the bounds as text."""
    limit = clipping.threshold
    if clipping.min is not None and clipping.max is not None:
        return f"{number(clipping.min)} to {number(clipping.max)}"
    if limit is None:
        return "none"
    if isinstance(limit, float):
        return "inf, so that nothing is clipped" if limit == math.inf else number(limit)
    return _schedule(limit)


def _schedule(schedule: Schedule) -> str:
    if isinstance(schedule, Constant):
        return number(schedule.value)
    if isinstance(schedule, Piecewise):
        later = zip(schedule.boundaries, schedule.values[1:], strict=True)
        texts = [f"{number(value)} from step {step} on" for step, value in later]
        return ", ".join([f"{number(schedule.values[0])} at first", *texts])
    way = "in a straight line" if isinstance(schedule, Linear) else "along half a cosine"
    start, end = number(schedule.start), number(schedule.end)
    return f"{start} until step {schedule.begin}, then {way} {end} at step {schedule.begin + schedule.steps}"


def nonfinite(settings: Settings) -> str:
    """Return a sentence about steps whose norm is not finite."""
    actions = {
        "raise": "an error is raised and nothing is changed",
        "skip": "the step is skipped",
        "zero": "all gradients become 0",
    }
    if settings.nonfinite in actions:
        return f"If the total norm is NaN or infinite, {actions[settings.nonfinite]}."
    if settings.rule in ("none", "value"):
        return "NaN is left as it is."
    if settings.part(1.0).family.infinite_norm_gives_nan:
        return "If the norm is NaN or infinite, every gradient becomes NaN."
    return "If the norm is infinite, finite gradients become 0 and infinite ones NaN; if it is NaN, all become NaN."


def listed(include: list[str], exclude: list[str]) -> str:
    """Return patterns of names as text."""
    but = f", but not {' or '.join(exclude)}" if exclude else ""
    return f"{' or '.join(include)}{but}"
