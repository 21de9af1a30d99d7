"""Compare clips with the shared clip configuration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .._kit.display import counted
from .._kit.static_values import is_number
from ..config.clip_config import ClipConfig
from ..config.explain import compare, describe
from ..config.families import family_difference
from ..config.formats import FORMATS
from ..config.schema import DEFAULT_FAMILY, is_off
from .advice import Advisor
from .clip_use import ARGUMENT_FORMATS, ClipUse, shown
from .model import Clip, Difference, Finding, Kind, Result

WITH_THRESHOLD = "With the threshold of {file}:"
ANY_THRESHOLD = "{why} Whatever the threshold is, these settings differ: {settings}."


class Judge:
    def __init__(self, config: ClipConfig, file: Path) -> None:
        self.config, self._file = config, file
        self._near: dict[str, list[str]] = {}
        self._not_finite: dict[str, list[tuple[str, str]]] = {}
        self._text = " ".join(describe.sentences(config))
        self._comparisons: dict[str, compare.ConfigComparison] = {}

    def judge(self, use: ClipUse, *, nearest: bool = False) -> tuple[Result, Finding | None]:
        """Compare a clip with the configuration, and return (result, finding).

        Without a finding, the result is "same" or "near".
        """
        advisor = Advisor(self._exported(use), self._file)
        if use.config is None and (rule := self._other_rule(use, nearest=nearest)) is not None:
            return "drift", self._drift(use, rule, advisor, f"{use.why_unknown} {WITH_THRESHOLD}")
        if use.config is None:
            return "unknown", self._finding(use, "unknown", use.why_unknown, advisor.edit(use))
        family = family_difference(use.config, self.config)
        if use.config.not_finite:
            place = f"{shown(use.path)}:{use.line}"
            self._not_finite.setdefault(use.config.not_finite, []).append((place, use.clip))
        if self._is_accepted(use.config, nearest=nearest) and (second := self._second_clip(use)):
            return "drift", second
        if family is not None and family.same:
            return "same", None
        if family is not None and nearest:
            self._near.setdefault(family.sentence, []).append(f"{shown(use.path)}:{use.line} {use.clip}")
            return "near", None
        return "drift", self._drift(use, use.config, advisor)

    def _exported(self, use: ClipUse) -> ClipConfig:
        """Return the configuration without `nonfinite` if the trainer already acts so, but has no key for it."""
        trainer = FORMATS.get(use.format or ARGUMENT_FORMATS.get(use.package, ""))
        is_same = use.config is not None and use.config.nonfinite == self.config.nonfinite
        if trainer is None or not is_same or self.config.nonfinite in trainer.nonfinite:
            return self.config
        return self.config.model_copy(update={"nonfinite": "family"})

    def _second_clip(self, use: ClipUse) -> Finding | None:
        """Return a finding if the optimizer clips again, at a global norm that the first clip allows."""
        trainer = FORMATS.get(use.format)
        if trainer is None or use.document is None:
            return None
        limit = self.config.threshold if self.config.rule == "global_norm" else None
        largest = limit if isinstance(limit, float) else math.inf
        optimizer, threshold = trainer.second_clip(use.document)
        if threshold is None or (is_number(threshold) and threshold >= largest):
            return None
        does = f"{optimizer} clips by the global norm again in its step, at {threshold}."
        is_script = use.document.kind == "args"
        edit = "--opt-kwargs max_grad_norm=None" if is_script else "opt_kwargs:\n  max_grad_norm: null"
        again = replace(use, clip=f"{trainer.title}: max_grad_norm of {optimizer}")
        accepted = "none" if largest == math.inf else f"{largest:g} or more, or none"
        difference = Difference(about="second threshold", found=str(threshold), wanted=accepted)
        return self._finding(again, "drift", does, edit, [difference], does)

    def _drift(self, use: ClipUse, config: ClipConfig, advisor: Advisor, why: str = "") -> Finding:
        family = family_difference(config, self.config)
        does = " ".join(describe.sentences(config))
        compared = self._comparison(config)
        differences = _differences(compared)
        effect = compared.effect
        if why:
            does = f"{why.format(file=self._file.name)} {does}"
            settings = ", ".join(each.about for each in differences)
            effect = ANY_THRESHOLD.format(why=use.why_unknown, settings=settings)
        is_threshold = [each.about for each in differences] == ["threshold"]
        edit = advisor.edit(replace(use, config=config), is_near=family is not None, only_threshold=is_threshold)
        return self._finding(use, "drift", does, edit, differences, effect)

    def _other_rule(self, use: ClipUse, *, nearest: bool) -> ClipConfig | None:
        if use.rule is None or is_off(self.config):
            return None
        if not isinstance(self.config.threshold, float):
            return use.rule if use.rule.rule != self.config.rule else None
        settings = {key: value for key, value in use.rule.data().items() if key not in ("min", "max")}
        config = ClipConfig(**{**settings, "threshold": self.config.threshold})
        return None if self._is_accepted(config, nearest=nearest) else config

    def _is_accepted(self, config: ClipConfig | None, *, nearest: bool) -> bool:
        family = family_difference(config, self.config) if config is not None else None
        return family is not None and (family.same or nearest)

    @property
    def notes(self) -> list[str]:
        is_rule = self.config.nonfinite == "family"
        name = self._file.name
        rule = f"With {name}, these steps are clipped." if is_rule else f"{name}: {describe.nonfinite(self.config)}"
        notes = []
        for text, [(place, clip), *more] in self._not_finite.items():
            others = f" (and {len(more)} more)" * bool(more)
            notes.append(f"{place}{others} {clip}: {text} {rule}")
        near = []
        for sentence, places in self._near.items():
            count = len(places) - 1
            are = f"and {count} more clip{'s' if count > 1 else ''} are" if count else "is"
            near.append(f"{places[0]} {are} accepted with this difference: {sentence}")
        return [*near, *notes, *(f"{self._file.name}: {each}" for each in describe.warm_up(self.config))]

    def _finding(
        self, use: ClipUse, kind: Kind, does: str, edit: str, differences: Sequence[Difference] = (), effect: str = ""
    ) -> Finding:
        return make_finding(use, kind, does, edit, self._text, differences, effect)

    def _comparison(self, config: ClipConfig) -> compare.ConfigComparison:
        key = repr({**config.data(), "provenance": None})
        if key not in self._comparisons:
            self._comparisons[key] = compare.compare(config, self.config, ("this clip", self._file.name))
        return self._comparisons[key]


def _differences(compared: compare.ConfigComparison) -> list[Difference]:
    return [
        Difference(about=each.about, found=each.a, wanted=each.b)
        for each in compared.differences
        if each.about != compare.NOT_FINITE
    ]


def clip_result(use: ClipUse, result: Result) -> Clip:
    has_family = use.config is not None and use.config.rule in ("norm", "global_norm")
    family = (use.config.family or DEFAULT_FAMILY) if use.config is not None and has_family else ""
    return Clip(
        path=shown(use.path), line=use.line, column=use.column, clip=use.clip, format=use.format, family=family,
        result=result,
    )  # fmt: skip


def make_finding(
    use: ClipUse,
    kind: Kind,
    does: str,
    edit: str,
    expected: str = "",
    differences: Sequence[Difference] = (),
    effect: str = "",
) -> Finding:
    return Finding(
        kind=kind, path=shown(use.path), line=use.line, column=use.column, clip=use.clip, code=use.code, does=does,
        wanted=expected,
        differences=list(differences), effect=effect, edit=edit,
    )  # fmt: skip


def headline(findings: Sequence[Finding], ignored: int, clips: Sequence[Clip], file: str) -> str:
    results: Counter[str] = Counter("same" if clip.result == "near" else clip.result for clip in clips)
    others: Counter[str] = Counter([*(each.kind for each in findings), *["ignored"] * ignored]) - results
    rules = f"{'rule' if others['unused'] == 1 else 'rules'} of [check] without effect"
    words = {"same": f"as in {file}", "drift": f"not as in {file}", "unused": rules}
    kinds = ("same", "drift", "missing", "unknown", "unused", "ignored", "accepted")
    of_clips, of_others = (
        ", ".join(f"{counts[kind]} {words.get(kind, kind)}" for kind in kinds if counts[kind])
        for counts in (results, others)
    )
    also = f" Also: {of_others}." if of_clips and of_others else ""
    return f"{counted(len(clips), 'clip')}: {of_clips or of_others or f'0 as in {file}'}.{also}"
