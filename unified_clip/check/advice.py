"""Advise what to write instead of a clip that differs from the shared clip configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .._kit.static_values import is_number
from ..config import documents
from ..config.clip_config import ClipConfig
from ..config.documents import DOCUMENT_KINDS, Key
from ..config.families import family_difference
from ..config.formats import FORMATS, convert, engines, placement
from ..config.formats.base import OwnFormat
from ..errors import NotRepresentableError
from .clip_use import ARGUMENT_FORMATS, ONE_PER_GROUP, THRESHOLD, ClipUse, shown
from .model import Difference
from .rules import patterns

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

NOT_VALID = re.compile(r"this is not (TOML|YAML|JSON)")
UNSUPPORTED = "unified_clip does not support"

SENTENCES = {
    "nearest": "To accept a difference of only the family or the eps, pass --nearest, or add this file to "
    "check.nearest.",
    "nearest after": "With this edit, only the family or the eps still differs. To accept the difference, pass "
    "--nearest, or add this file to check.nearest.",
    "threshold": "Set the threshold to {threshold}.",
    "by code": 'To clip by {clip}{under}: clip = ClipConfig.load("{file}"), then {instead}.',
    "no code": "{engine} does not expose the gradients of a step, so code cannot clip them.",
    "remove settings": "Remove such settings from {clip}, or add the clip to check.ignore with a reason.",
    "own": "Use {clip} instead of this file.",
    "change": "Change the clip to match {clip}, or add the clip to check.ignore with a reason.",
    "keep": "To keep this clip, add it to check.ignore with a reason.",
    "declare": "If your own code reads this key, add to {clip}, with the rule by which your code clips. The check then "
    "compares the value. If the code does not clip with a value such as 0, also list that value in off, as in off = "
    "[0].",
    "invalid": "Correct line {line} of {path}. The check can then read the file. If no program reads the file, add to "
    "{clip}:",
    "accept": "To accept the file as it is, add to {clip}:",
    "any threshold": 'Or to accept every threshold, add the clip to check.ignore with rule = "{rule}" and a reason. '
    "The check then does not compare the threshold of this clip with the clip configuration.",
    "recommended": "This edit is recommended, because the check can then compare the threshold with the clip "
    "configuration.",
}


class Advisor:
    def __init__(self, config: ClipConfig, file: Path, *, nearest: bool) -> None:
        self._config, self._file, self._nearest = config, file, nearest

    def edit(self, use: ClipUse, differences: Sequence[Difference], *, is_near: bool) -> str:
        """is_near: Whether only the family or the eps differs."""
        by_code = self.by_code(use)
        if is_near:
            return _alternatives(self._say("nearest"), by_code)
        is_threshold = [each.about for each in differences] == ["threshold"]
        if keys := self._keys(use, only_threshold=is_threshold):
            return keys
        if written := self._call(use) or self._arguments(use):
            return _alternatives(written, by_code)
        if reason := self._unsupported(use):
            return f"{reason} {by_code}".rstrip()
        if is_threshold and isinstance(self._config.threshold, float):
            return _alternatives(self._say("threshold", threshold=differences[0].wanted), by_code)
        return by_code or self._say("change")

    def edit_of_unknown(self, use: ClipUse) -> str:
        if use.why_unknown == ONE_PER_GROUP:
            return self._approval(use)
        if not use.package:
            return _alternatives(self._keys(use), self._approval(use))
        advice = self.by_code(use) or self._say("change")
        if (rule := use.rule_of_any_threshold) is not None:
            return f"{advice} {self._say('recommended')}\n{self._say('any threshold', rule=rule.rule)}"
        return _alternatives(self._say("keep"), advice) if UNSUPPORTED in use.why_unknown else advice

    def by_code(self, use: ClipUse) -> str:
        """Return advice to clip by the configuration in code, or '' if code cannot clip in place of this clip."""
        if use.format == convert.UNIFIED_CLIP:
            return self._say("own")
        format_ = use.format or ARGUMENT_FORMATS.get(use.package, "")
        instead = INSTEAD.get(use.package) or (FORMATS[format_].instead if format_ in FORMATS else "")
        adapted = engines.adapted(instead, use.engine)
        under = "" if use.engine else engines.except_under(format_)
        return self._say("by code", under=under, instead=adapted) if adapted else ""

    def _say(self, code: str, **values: object) -> str:
        return SENTENCES[code].format(clip=self._file.name, file=shown(self._file), **values)

    def _keys(self, use: ClipUse, *, only_threshold: bool = False) -> str:
        """Return keys for a trainer's file, at the place of the key that the file has, or ''."""
        trainer, document = FORMATS.get(use.format), use.document
        if trainer is None:
            return ""
        is_document = not isinstance(trainer, OwnFormat)
        kind = DOCUMENT_KINDS.get(use.path.suffix.lower())
        text = self._exported(use.format, kind if is_document else None)
        if not text or document is None or kind is None:
            return _lines(text, self._about_nearest(use.format)) if text else ""
        places = [place for place in trainer.places(document) if place[-1] not in trainer.mode_keys]
        own = placement.first_read(document, trainer) or (placement.best_place(document, places) if places else ())
        exported = dict(leaves(documents.parse(text, kind, "").data)) if is_document else {}
        if own and (not is_document or (only_threshold and is_number(document.get(*own)))):
            exported = {own: self._config.threshold}
        elif own and own not in exported and own[-1] in [path[-1] for path in exported]:
            exported = {(*own[:-1], *path[-1:]): value for path, value in exported.items()}
        if exported and placement.ANY not in own:
            text = documents.dump(_nested(exported), kind).rstrip()
        return _lines(text, self._about_nearest(use.format))

    def _call(self, use: ClipUse) -> str:
        """Return the code of a call with the right threshold, if other settings do not differ."""
        threshold = self._config.threshold
        if THRESHOLD not in use.call or use.config is None or not isinstance(threshold, float):
            return ""
        changed = ClipConfig(**{**use.config.data(), "threshold": threshold})
        if (difference := family_difference(changed, self._config)) is None:
            return ""
        is_accepted = difference.same or self._nearest
        return _lines(use.call.replace(THRESHOLD, repr(threshold)), "" if is_accepted else self._say("nearest after"))

    def _arguments(self, use: ClipUse) -> str:
        """Return the arguments of a trainer, such as `max_grad_norm=1.0`."""
        name = ARGUMENT_FORMATS.get(use.package, "")
        text = self._exported(name, "json") if name and not use.call else ""
        if not text:
            return ""
        arguments = ", ".join(f"{path[-1]}={value!r}" for path, value in leaves(json.loads(text)))
        return _lines(arguments, self._about_nearest(name))

    def _unsupported(self, use: ClipUse) -> str:
        """Return a sentence that names the settings that the format of a trainer does not support, or ''."""
        name = use.format or ("" if use.call else ARGUMENT_FORMATS.get(use.package, ""))
        if name not in FORMATS:
            return ""
        try:
            convert.write(self._config, name, nearest=True)
        except NotRepresentableError as error:
            problem = str(error).partition(": ")[2].partition(". ")[0]
            title = FORMATS[name].title
            text = f"{title} {problem[3:]}." if problem.startswith("it ") else f"{problem[:1].upper()}{problem[1:]}."
            if use.engine in engines.UNREACHABLE:
                return f"{text} {self._say('no code', engine=use.engine)} {self._say('remove settings')}"
            return text if self.by_code(use) else f"{text} {self._say('remove settings')}"
        return ""

    def _approval(self, use: ClipUse) -> str:
        path = patterns.relative(use.path, self._file.resolve().parent)
        numbers = dict.fromkeys(each.name for each in use.values if is_number(each.value))
        if numbers:
            rule = self._config.rule if self._config.rule in ("value", "norm", "global_norm") else "global_norm"
            entries = [self._entry("key", {"path": path, "key": name, "rule": rule}) for name in numbers]
            return _lines(self._say("declare"), *entries)
        is_invalid = NOT_VALID.search(use.why_unknown) is not None
        advice = self._say("invalid" if is_invalid else "accept", line=use.line, path=shown(use.path))
        return _lines(advice, self._entry("ignore", {"path": path, "reason": "..."}))

    def _entry(self, table: str, entry: dict[str, str]) -> str:
        return documents.dump({"check": {table: [entry]}}, documents.kind_of(self._file)).rstrip()

    def _exported(self, name: str, kind: str | None) -> str:
        try:
            return convert.write(self._config, name, nearest=True, kind=kind)[0].rstrip()
        except NotRepresentableError:
            return ""

    def _about_nearest(self, name: str) -> str:
        """Return advice if a trainer clips by another family or eps than the configuration, or ''."""
        try:
            convert.write(self._config, name, nearest=self._nearest)
        except NotRepresentableError:
            return self._say("nearest after")
        return ""


def leaves(data: dict[str, Any], path: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], Any]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _nested(values: dict[tuple[Key, ...], Any]) -> dict[Key, Any]:
    data: dict[Key, Any] = {}
    for path, value in values.items():
        table = data
        for key in path[:-1]:
            table = table.setdefault(key, {})
        table[path[-1]] = value
    return data


def _alternatives(first: str, second: str) -> str:
    return f"{first}\nOr {second[0].lower()}{second[1:]}" if first and second else first or second


def _lines(*parts: str) -> str:
    return "\n".join(filter(None, parts))
