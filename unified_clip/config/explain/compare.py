"""Explain a configuration in sentences, or compare the settings of two configurations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...recorder.lines import plain_json
from ..clip_config import ClipConfig
from ..families import SAME, family_difference
from ..schema import is_off
from . import describe

RESULT = "the result if the norm is not finite"
NOT_FINITE = "the trainer's action if the norm is not finite"


@dataclass(frozen=True)
class ExplainedConfig:
    name: str
    sentences: list[str]
    notes: list[str]


@dataclass(frozen=True)
class DifferingSetting:
    about: str
    a: str
    b: str


@dataclass(frozen=True)
class ConfigComparison:
    a: ExplainedConfig
    b: ExplainedConfig
    same: bool
    differences: list[DifferingSetting]
    effect: str
    """Sentences about the parameters that only one of the configurations clips, and about the size of the difference
    if only the family or the eps differs. '' if there are none."""

    @property
    def summary(self) -> str:
        if self.same:
            return SAME
        names = ", ".join(setting.about for setting in self.differences)
        return f"The configurations differ in: {names}. {self.effect}".rstrip()


def explain(config: ClipConfig, name: str) -> ExplainedConfig:
    notes = [note for note in config.notes if note != config.not_finite]
    return ExplainedConfig(name, describe.sentences(config), notes)


def with_own_action(config: ClipConfig, other: ClipConfig) -> ClipConfig:
    """If a trainer acts like the `nonfinite` of another configuration, return its configuration with this `nonfinite`.

    With fp16, for example, a loss scaler skips steps like nonfinite = "skip", although no key of the trainer says so.
    """
    if "family" in (config.acts_as, other.nonfinite) or config.acts_as != other.nonfinite or is_off(config):
        return config
    return config.model_copy(update={"nonfinite": other.nonfinite})


def compare(a: ClipConfig, b: ClipConfig, names: Sequence[str]) -> ConfigComparison:
    a, b = with_own_action(a, b), with_own_action(b, a)
    same = a.meaning == b.meaning and a.not_finite == b.not_finite
    differences, effect = _differences(a, b), "" if same else _effect(a, b, names)
    return ConfigComparison(explain(a, names[0]), explain(b, names[1]), same, differences, effect)


def _effect(a: ClipConfig, b: ClipConfig, names: Sequence[str]) -> str:
    sentences = []
    if (a.include, a.exclude) != (b.include, b.exclude):
        sentences.append(f"{names[0]} {describe.selection(a)}, but {names[1]} {describe.selection(b)}.")
        b = b.model_copy(update={"include": a.include, "exclude": a.exclude})
    family = family_difference(a, b)
    return " ".join([*sentences, *([family.sentence] if family is not None and not family.same else [])])


def as_data(result: ExplainedConfig | ConfigComparison) -> dict[str, Any]:
    summary = {"summary": result.summary} if isinstance(result, ConfigComparison) else {}
    data: dict[str, Any] = plain_json(asdict(result) | summary)
    return data


def _differences(a: ClipConfig, b: ClipConfig) -> list[DifferingSetting]:
    first, second = _aspects(a, b), _aspects(b, a)
    rows = [(about, text, second.get(about, "no such group")) for about, text in first.items()]
    rows += [(about, "no such group", text) for about, text in second.items() if about not in first]
    return [DifferingSetting(about, x, y) for about, x, y in rows if x != y]


def _aspects(config: ClipConfig, other: ClipConfig) -> dict[str, str]:
    has_norm = config.rule in ("norm", "global_norm")
    shared = {group.name for group in other.groups}
    groups = {f"group {group.name!r}": f"{describe.listed(group)}: {describe.rule(group)}" for group in config.groups}
    return {
        "rule": config.rule,
        "threshold": describe.limits(config),
        "norm": describe.order(config) if has_norm else "none",
        "eps": describe.number(config.as_clip_rule(1.0).convention.eps) if has_norm else "none",
        RESULT: describe.nonfinite(config),
        NOT_FINITE: config.not_finite or "clipped by the rule",
        "parameters": describe.listed(config),
        "order of the groups": ", ".join(group.name for group in config.groups if group.name in shared),
        **groups,
    }
