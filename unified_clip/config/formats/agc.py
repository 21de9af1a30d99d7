"""Read and write adaptive gradient clipping (AGC) in the configuration formats of trainers."""

from __future__ import annotations

import math
from typing import Any, Literal

from ...adaptive.rules import AGC
from ..schema import DEFAULT_FAMILY, FAMILIES, Settings
from .base import Format, OtherFamilyError

Convention = Literal["timm", "optax", "composer"]


def agc_settings(clip_factor: float | None, convention: Convention, **options: float) -> dict[str, Any]:
    """Return the settings for a `clip_factor`. None and inf switch clipping off."""
    if clip_factor is None or clip_factor == math.inf:
        return {"rule": "none"}
    table = {"rule": "agc", "clip_factor": clip_factor, "convention": convention, **options}
    return {"rule": "norm", "eps": 0.0, "adaptive": table}


def exported_agc(trainer: Format, settings: Settings, convention: Convention, *, has_eps: bool = False) -> AGC | None:
    """Return the AGC rule to export, or None for settings without AGC."""
    table = settings.adaptive
    if table is None or table.rule != "agc":
        return None
    rule: AGC = table.make()
    if problem := trainer.unsupported_keys(settings):
        raise trainer.not_exported(problem)
    if settings.threshold is not None:
        problem = "it does not support `threshold` together with adaptive clipping. Remove `threshold`."
    if problem := problem or _problem(rule, convention, has_eps=has_eps):
        raise trainer.not_exported(problem + trainer.in_python)
    family = FAMILIES[settings.family or DEFAULT_FAMILY, "norm"]
    added = family.eps if settings.eps is None else settings.eps
    if added != 0:
        problem = f"its adaptive clipping adds no eps to the norm, but your configuration adds {added:g}. "
        raise OtherFamilyError(str(trainer.not_exported(f"{problem}Set `eps` (not `adaptive.eps`) to 0.")), "paddle")
    return rule


def _problem(rule: AGC, convention: Convention, *, has_eps: bool) -> str:
    same = f"Set `adaptive.convention` to {convention!r}."
    if (rule.convention == "optax") != (convention == "optax"):
        return f"it does not support `adaptive.convention = {rule.convention!r}`. {same}"
    floors = list(zip(("eps", "smallest_norm"), rule.floors, AGC(convention=convention).floors, strict=True))
    for name, value, own in floors[1 if has_eps else 0 :]:
        if value != own:
            remedy = f"Remove `adaptive.{name}`." if rule.convention == convention else same
            problem = f"it always uses `adaptive.{name} = {own:g}`, but your configuration has {value:g}."
            return f"{problem} {remedy}"
    return ""
