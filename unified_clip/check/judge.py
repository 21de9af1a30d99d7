"""Compare clips with the shared clip configuration, and advise what to write instead of a clip that differs."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._kit.display import counted
from .._kit.static_values import is_number
from ..config import documents
from ..config.clip_config import ClipConfig
from ..config.documents import DOCUMENT_KINDS, Key
from ..config.explain import compare, describe
from ..config.families import family_difference
from ..config.formats import FORMATS, convert, engines, placement
from ..config.formats.base import OwnFormat
from ..config.formats.rows import put
from ..config.schema import DEFAULT_FAMILY, is_off
from ..errors import NotRepresentableError
from .clip_use import ARGUMENT_FORMATS, THRESHOLD, ClipUse, shown, with_threshold
from .model import Clip, Difference, Finding, Kind, Result
from .python.notebooks import NOTEBOOK

WITH_THRESHOLD = "With the threshold of {file}:"
ANY_THRESHOLD = "{why} Whatever the threshold is, these settings differ: {settings}."

MODEL = "clip.attach_to(optimizer, model), or clip.clip_(model.named_parameters()) before optimizer.step()"
GRADIENTS = "clip(gradients)"

INSTEAD = {
    "torch": MODEL,
    "apex": MODEL,
    "keras": "clip.attach_to(optimizer)",
    "tf_keras": "clip.attach_to(optimizer)",
    "tf": GRADIENTS,
    "tensorflow": GRADIENTS,
    "paddle": "grad_clip=clip.as_paddle(model) for the optimizer",
    "jax": f"{GRADIENTS}, or clip.as_optax() as the first argument of optax.chain",
    "optax": "clip.as_optax() as the first argument of optax.chain",
    "unified_clip": f"clip.attach_to(optimizer, model), or {GRADIENTS}",
    "accelerate": FORMATS["accelerate"].instead,
    "fabric": "clip.attach_to(optimizer, model), in place of fabric.clip_gradients",
    "fsdp": "clip.clipper(process_group=model.process_group, ownership='distinct').clip_(model.parameters())",
    "lightning": FORMATS["lightning"].instead,
    "pytorch_lightning": FORMATS["lightning"].instead,
    "transformers": FORMATS["hf"].instead,
    "trl": FORMATS["hf"].instead,
}
"""Maps the package of a clip in Python source to the code that clips by a `ClipConfig` instead."""

NEAREST = "To accept a difference of only the family or the eps, pass --nearest, or add the file to check.nearest."
BY_CODE = "To clip by {clip}{under}: clip = {load}, then {instead}."
OWN_FILE = "Use {clip} instead of this file."
CHANGE = (
    "Change the clip to match {clip}. Or if your own code reads its key, declare the key in check.key. Or add the clip "
    "to check.ignore with a reason."
)


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
            largest = [f"at most {family.relative:.2g} of the clip coefficient"] * bool(family.relative)
            infinite = ["another result if the norm is infinite"] * family.differs_if_infinite
            self._near.setdefault(", and ".join(largest + infinite), []).append(
                f"{shown(use.path)}:{use.line} {use.clip}"
            )
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
        for difference, places in self._near.items():
            count = len(places) - 1
            are = f"and {count} more clip{'s' if count > 1 else ''} are" if count else "is"
            near.append(f"{places[0]} {are} accepted with this difference: {difference}.")
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
    entries = f"{'entry' if others['unused'] == 1 else 'entries'} without effect"
    words = {"same": f"as in {file}", "drift": f"not as in {file}", "unused": entries}
    kinds = ("same", "drift", "missing", "unknown", "unused", "ignored", "accepted")
    of_clips, of_others = (
        ", ".join(f"{counts[kind]} {words.get(kind, kind)}" for kind in kinds if counts[kind])
        for counts in (results, others)
    )
    also = f" Also: {of_others}." if of_clips and of_others else ""
    return f"{counted(len(clips), 'clip')}: {of_clips or of_others or f'0 as in {file}'}.{also}"


class Advisor:
    def __init__(self, config: ClipConfig, file: Path) -> None:
        self._config, self._file = config, file

    def edit(self, use: ClipUse, *, is_near: bool = False, only_threshold: bool = False) -> str:
        """Return the edit of a clip.

        Args:
            is_near: Whether only the family or the eps differs.
            only_threshold: Whether only the threshold differs.
        """
        by_code = self._by_code(use)
        if is_near:
            return _alternatives(NEAREST, by_code)
        if keys := self._keys(use, only_threshold=only_threshold):
            return keys
        written = self._call(use) or self._arguments(use)
        is_of_trainer = use.format != "" or use.package in ARGUMENT_FORMATS  # 0 can switch its clip off
        if not written and only_threshold and not is_of_trainer and isinstance(self._config.threshold, float):
            where = f" in {use.written_at}" if use.written_at else ""
            written = f"Set the threshold{where} to {self._config.threshold:g}."
        return _alternatives(written, by_code) or CHANGE.format(clip=self._file.name)

    def _by_code(self, use: ClipUse) -> str:
        """Return advice to clip by the configuration in code, or '' if code cannot clip in place of this clip."""
        if use.format == convert.UNIFIED_CLIP:
            return OWN_FILE.format(clip=self._file.name)
        format_ = use.format or ARGUMENT_FORMATS.get(use.package, "")
        instead = INSTEAD.get(use.package) or (FORMATS[format_].instead if format_ in FORMATS else "")
        adapted = engines.adapted(instead, use.engine)
        under = "" if use.engine else engines.except_under(format_)
        load = loading(self._file, use.path)
        return BY_CODE.format(clip=self._file.name, load=load, under=under, instead=adapted) if adapted else ""

    def _keys(self, use: ClipUse, *, only_threshold: bool) -> str:
        """Return keys for a trainer's file, at the place of the key that the file has, or ''."""
        trainer, document = FORMATS.get(use.format), use.document
        if trainer is None:
            return ""
        is_document = not isinstance(trainer, OwnFormat)
        kind = DOCUMENT_KINDS.get(use.path.suffix.lower())
        text = self._exported(use.format, kind if is_document else None)
        if not text or document is None or kind is None:
            return text
        places = [place for place in trainer.places(document) if place[-1] not in trainer.mode_keys]
        own = placement.first_read(document, trainer) or (placement.best_place(document, places) if places else ())
        exported = dict(_leaves(documents.parse(text, kind, "").data)) if is_document else {}
        if own and (not is_document or (only_threshold and is_number(document.get(*own)))):
            exported = {own: self._config.threshold}
        elif own and own not in exported and own[-1] in [path[-1] for path in exported]:
            exported = {(*own[:-1], *path[-1:]): value for path, value in exported.items()}
        if exported and placement.ANY not in own:
            data: dict[str, Any] = {}
            for path, value in exported.items():
                put(data, path, value)
            text = documents.dump(data, kind).rstrip()
        return text

    def _call(self, use: ClipUse) -> str:
        """Return the code of a call with the right threshold, if other settings do not differ."""
        threshold = self._config.threshold
        if THRESHOLD not in use.call or use.config is None or not isinstance(threshold, float):
            return ""
        changed = with_threshold(use.config, threshold)
        is_enough = family_difference(changed, self._config) is not None
        return use.call.replace(THRESHOLD, repr(threshold)) if is_enough else ""

    def _arguments(self, use: ClipUse) -> str:
        """Return the arguments of a trainer, such as `max_grad_norm=1.0`."""
        name = ARGUMENT_FORMATS.get(use.package, "")
        text = self._exported(name, "json") if name and use.config is not None and not use.call else ""
        return ", ".join(f"{path[-1]}={value!r}" for path, value in _leaves(json.loads(text))) if text else ""

    def _exported(self, name: str, kind: str | None) -> str:
        try:
            return convert.write(self._config, name, nearest=True, kind=kind)[0].rstrip()
        except NotRepresentableError:
            return ""


def loading(clip: Path, source: Path) -> str:
    """Return code that loads a clip configuration in `source`, or in a script beside it, from any working directory."""
    parts = Path(os.path.relpath(os.path.realpath(clip), os.path.realpath(source.parent))).parts
    up, path = parts.count(".."), "/".join(parts)
    if source.suffix == NOTEBOOK:  # it has no __file__, and runs in its folder
        return f'ClipConfig.load("{path}")'
    folder = f"parents[{up}]" if up else "parent"
    return f'ClipConfig.load(Path(__file__).{folder} / "{path[3 * up :]}")'


def _leaves(data: dict[str, Any]) -> Iterator[tuple[tuple[Key, ...], Any]]:
    return ((path, value) for path, value in placement.entries(data) if not isinstance(value, dict))


def _alternatives(first: str, second: str) -> str:
    return f"{first}\nOr {second[0].lower()}{second[1:]}" if first and second else first or second
