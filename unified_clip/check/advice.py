"""Advise what to write instead of a clip that differs from the shared clip configuration: the key with its value, the
call with its argument, or a clip by the configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from .clip_use import ARGUMENT_FORMATS, THRESHOLD, ClipUse, shown, with_threshold

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
BY_CODE = 'To clip by {clip}{under}: clip = ClipConfig.load("{file}"), then {instead}.'
OWN_FILE = "Use {clip} instead of this file."
CHANGE = (
    "Change the clip to match {clip}. Or if your own code reads its key, declare the key in check.key. Or add the clip "
    "to check.ignore with a reason."
)


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
            written = f"Set the threshold to {self._config.threshold:g}."
        return _alternatives(written, by_code) or CHANGE.format(clip=self._file.name)

    def _by_code(self, use: ClipUse) -> str:
        """Return advice to clip by the configuration in code, or '' if code cannot clip in place of this clip."""
        if use.format == convert.UNIFIED_CLIP:
            return OWN_FILE.format(clip=self._file.name)
        format_ = use.format or ARGUMENT_FORMATS.get(use.package, "")
        instead = INSTEAD.get(use.package) or (FORMATS[format_].instead if format_ in FORMATS else "")
        adapted = engines.adapted(instead, use.engine)
        under = "" if use.engine else engines.except_under(format_)
        values = {"clip": self._file.name, "file": shown(self._file), "under": under, "instead": adapted}
        return BY_CODE.format(**values) if adapted else ""

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
        exported = dict(leaves(documents.parse(text, kind, "").data)) if is_document else {}
        if own and (not is_document or (only_threshold and is_number(document.get(*own)))):
            exported = {own: self._config.threshold}
        elif own and own not in exported and own[-1] in [path[-1] for path in exported]:
            exported = {(*own[:-1], *path[-1:]): value for path, value in exported.items()}
        if exported and placement.ANY not in own:
            text = documents.dump(_nested(exported), kind).rstrip()
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
        return ", ".join(f"{path[-1]}={value!r}" for path, value in leaves(json.loads(text))) if text else ""

    def _exported(self, name: str, kind: str | None) -> str:
        try:
            return convert.write(self._config, name, nearest=True, kind=kind)[0].rstrip()
        except NotRepresentableError:
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
