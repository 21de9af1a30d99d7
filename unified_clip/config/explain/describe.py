"""Describe the effect of a configuration in words."""

from __future__ import annotations

import math

import numpy as np

from ..schedules import Constant, Linear, Piecewise, Schedule
from ..schema import DEFAULT_FAMILY, Clipping, Settings

FAMILY_TITLES = {"pytorch": "PyTorch's", "tensorflow": "TensorFlow's", "paddle": "Paddle's"}


def sentences(settings: Settings, limit: str = "") -> list[str]:
    """Return sentences about a configuration. `limit`: the name of an unknown threshold, or of both bounds."""
    found = [f"The group {group.name!r}, parameters named {listed(group.include, group.exclude)}: {rule(group)}"
             for group in settings.groups]  # fmt: skip
    everyone = settings.include == ["*"] and not settings.exclude
    if everyone:
        whole = rule(settings, limit)
        found.append(f"All other parameters: {whole}" if settings.groups else _capital(whole))
    else:
        found.append(f"Parameters named {listed(settings.include, settings.exclude)}: {rule(settings, limit)}")
        found.append("All others are neither counted nor clipped.")
    found.append(nonfinite(settings))
    return found


def rule(clipping: Clipping, limit: str = "") -> str:
    """Return a sentence about a rule."""
    if clipping.rule == "none":
        return "nothing is clipped; the norm is measured."
    if clipping.rule == "value":
        low, high = (clipping.min, clipping.max)
        bounds = (
            f"[-c, c], c being {limit or threshold(clipping)}"
            if low is None or high is None
            else f"[{limit or f'{number(low)}, {number(high)}'}]"
        )
        return f"every element is moved into {bounds}; NaN stays NaN."
    eps = clipping.part(1.0).family.eps
    below = f"n + {number(eps)}" if eps else "n"
    whose = "one norm n over all gradients" if clipping.rule == "global_norm" else "for each tensor its own norm n"
    every = "each" if clipping.rule == "global_norm" else "it"
    return (
        f"{whose} ({order(clipping)}); {every} is multiplied by min(1, c / {f'({below})' if eps else below}), c being "
        f"{limit or threshold(clipping)}. That is {FAMILY_TITLES[clipping.family or DEFAULT_FAMILY]} rule"
        + (f", with eps = {number(clipping.eps)}." if clipping.eps is not None else ".")
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


def threshold(clipping: Clipping) -> str:
    limit = clipping.threshold
    if limit is None:
        return "none"
    if isinstance(limit, float):
        return "inf, so that nothing is clipped" if limit == math.inf else f"{number(limit)}"
    return schedule(limit)


def limits(clipping: Clipping) -> str:
    """Return the threshold or the bounds as text."""
    if clipping.min is None or clipping.max is None:
        return threshold(clipping)
    return f"{number(clipping.min)} to {number(clipping.max)}"


def schedule(found: Schedule) -> str:
    """Return a schedule as text."""
    if isinstance(found, Constant):
        return f"{number(found.value)}"
    if isinstance(found, Piecewise):
        later = [
            f"{number(value)} from step {step} on"
            for step, value in zip(found.boundaries, found.values[1:], strict=True)
        ]
        return ", ".join([f"{number(found.values[0])} at first", *later])
    way = "in a straight line" if isinstance(found, Linear) else "along half a cosine"
    start, end = number(found.start), number(found.end)
    return f"{start} until step {found.begin}, then {way} {end} at step {found.begin + found.steps}"


def nonfinite(settings: Settings) -> str:
    """Return a sentence about steps whose norm is not finite."""
    if settings.nonfinite == "raise":
        return "If the total norm is NaN or infinite, an error is raised and nothing is changed."
    if settings.nonfinite == "skip":
        return "If the total norm is NaN or infinite, the step is skipped."
    if settings.nonfinite == "zero":
        return "If the total norm is NaN or infinite, all gradients become 0."
    if settings.rule in ("none", "value"):
        return "NaN is left as it is."
    if settings.part(1.0).family.infinite_norm_gives_nan:
        return "If the norm is NaN or infinite, every gradient becomes NaN."
    return "If the norm is infinite, finite gradients become 0 and infinite ones NaN; if it is NaN, all become NaN."


def listed(include: list[str], exclude: list[str]) -> str:
    """Return patterns of names as text."""
    but = f", but not {' or '.join(exclude)}" if exclude else ""
    return f"{' or '.join(include)}{but}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
