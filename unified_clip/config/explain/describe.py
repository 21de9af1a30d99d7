"""Describe the effect of a configuration in sentences."""

from __future__ import annotations

import math

from ..schedules import Constant, Linear, Piecewise, Ramp, Schedule
from ..schema import DEFAULT_FAMILY, Clipping, FamilyName, Group, Settings

FAMILY_TITLES: dict[FamilyName, str] = {
    "pytorch": "PyTorch's rule",
    "tensorflow": "the rule of TensorFlow and Keras",
    "paddle": "the rule of Paddle, optax and MaxText",
}


NAN_STAYS = "NaN stays NaN."


def sentences(settings: Settings, threshold: str = "") -> list[str]:
    """Return sentences about the effect of a configuration.

    threshold: The source code of the threshold, if its value is unknown. Otherwise ''.
    """
    groups = [f"Group {group.name!r}, parameters named {listed(group)}: {rule(group)}" for group in settings.groups]
    rest, last = rule(settings, threshold), settings.not_finite or nonfinite(settings)
    # the rule `value` already describes NaN, and the rule `none` changes nothing
    ends = [] if last == NAN_STAYS and settings.rule in ("none", "value") else [last]
    if settings.is_adaptive:
        ends.append("The threshold depends on the norms of earlier steps.")
    ends += warm_up(settings)
    if settings.include == ["*"] and not settings.exclude:
        return [*groups, f"All other parameters: {rest}" if groups else rest, *ends]
    others = "Other parameters are not clipped, and not part of the norm."
    if not groups:
        return [f"Parameters named {listed(settings)}: {rest}", others, *ends]
    included = f"The rules are for parameters named {listed(settings)}. {others}"
    return [included, *groups, f"All other included parameters: {rest}", *ends]


def warm_up(settings: Settings) -> list[str]:
    parts = [(f"Nothing of group {group.name!r}", group) for group in settings.groups] + [("Nothing", settings)]
    sentences = []
    for subject, part in parts:
        steps = getattr(part.adaptive, "warmup_steps", None) if part.adaptive is not None else None
        if part.rule == "global_norm" and steps and part.threshold in (None, math.inf):
            end = "threshold is not set" if part.threshold is None else "threshold is inf"
            sentences.append(f"{subject} is clipped during the {steps} warm-up steps, because {end}.")
    return sentences


def rule(clipping: Clipping, threshold: str = "") -> str:
    if clipping.rule == "none":
        return "No gradient is clipped. Only the norm is measured."
    if clipping.bounds:
        return f"Clip each element to {f'[{threshold}]' if threshold else limits(clipping)}. {NAN_STAYS}"
    threshold = threshold or limits(clipping)
    if clipping.rule == "value":
        return f"Clip each element to [-c, c] with c = {threshold}. {NAN_STAYS}"
    eps = clipping.as_clip_rule(1.0).convention.eps
    denominator = f"(n + {number(eps)})" if eps else "n"
    is_global = clipping.rule == "global_norm"
    gradients, norm = ("all gradients", "their total norm") if is_global else ("each gradient", "its own norm")
    if clipping.adaptive is not None and not clipping.adaptive.has_state:
        gradients = "each unit (such as a channel) of a gradient"
    own_eps = "" if clipping.eps is None else f", with eps = {number(clipping.eps)}"
    family = f"This formula is {FAMILY_TITLES[clipping.family or DEFAULT_FAMILY]}{own_eps}."
    product = f"Multiply {gradients} by min(1, c / {denominator}) with c = {threshold}."
    return f"{product} n is {norm} ({order(clipping)}). {family}"


def number(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def order(clipping: Clipping) -> str:
    p = clipping.norm_type or 2.0
    names = {2.0: "the root of the sum of squares", 1.0: "the sum of magnitudes", math.inf: "the largest magnitude"}
    return names.get(p, f"of order {number(p)}")


def limits(clipping: Clipping) -> str:
    threshold = clipping.threshold
    if clipping.bounds:
        return f"[{', '.join(map(number, clipping.bounds))}]"
    if clipping.adaptive is not None:
        rule = clipping.adaptive
        most = "" if threshold in (None, math.inf) else f", but never more than {_threshold(threshold)}"
        origin = "the norms of earlier steps" if rule.has_state else "the norm of the same unit of the parameter"
        return f"the threshold that {rule} computes from {origin}{most}"
    return _threshold(threshold)


def _threshold(threshold: float | Schedule | None) -> str:
    match threshold:
        case None:
            return "none"
        case float():
            return "inf, which clips nothing" if threshold == math.inf else number(threshold)
        case Constant(value=value):
            return number(value)
        case Piecewise(values=values, boundaries=steps):
            later = [f"{number(value)} from step {step} on" for step, value in zip(steps, values[1:], strict=True)]
            return ", ".join([f"{number(values[0])} at first", *later])
        case Ramp():
            line = "linearly" if isinstance(threshold, Linear) else "along half a cosine"
            start, end = number(threshold.start), number(threshold.end)
            last = threshold.begin + threshold.steps
            return f"{start} until step {threshold.begin}, then {line} to {end} at step {last}"


def nonfinite(settings: Settings) -> str:
    actions = {
        "raise": "an error is raised and no gradient changes",
        "skip": "the step is skipped",
        "zero": "all gradients become 0",
    }
    if settings.nonfinite in actions:
        return f"If the total norm is NaN or infinite, {actions[settings.nonfinite]}."
    if settings.rule in ("none", "value"):
        return NAN_STAYS
    if settings.as_clip_rule(1.0).convention.infinite_norm_gives_nan:
        return "If the norm is NaN or infinite, every gradient becomes NaN."
    return (
        "If the norm is infinite, finite gradients become 0, and infinite gradients become NaN. If the norm is NaN, "
        "all gradients become NaN."
    )


def selection(settings: Settings) -> str:
    """Return words such as "leaves *.bias unclipped"."""
    if settings.include != ["*"]:
        return f"clips only {listed(settings)}"
    return f"leaves {' and '.join(settings.exclude)} unclipped" if settings.exclude else "clips all parameters"


def listed(clipping: Settings | Group) -> str:
    exclude = clipping.exclude
    return " or ".join(clipping.include) + (f", except {' or '.join(exclude)}" if exclude else "")
