"""PaddleClas' YAML: `Optimizer.clip_norm`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ..documents import Document, Key
from ..schema import Settings
from .base import (
    Format,
    FormatKey,
    Imported,
    exported_threshold,
    has_key,
    norm_settings,
    read_threshold,
    require_finite,
)

PER_TENSOR = "clip_norm clips per tensor, not by the total norm."

UNSET = "The file does not set clip_norm. By default, PaddleClas clips nothing."


class PaddleClas(Format):
    name = "paddleclas"
    title = "PaddleClas"
    kinds = ("yaml",)
    source = "ppcls/optimizer/__init__.py"
    newest = "2.6.0"
    clip_keys = (("Optimizer", "clip_norm"), ("Optimizer", "*", "*", "clip_norm"))
    vocabulary = frozenset({"Global", "Arch", "Optimizer", "DataLoader", "Loss"})
    keys = (
        FormatKey("Optimizer.clip_norm", "", "absent", "each tensor by its own norm; 0 or less: fails"),
        FormatKey("Optimizer.[].NAME.clip_norm", "", "absent", "the same for one of several optimizers", "imported"),
    )

    def recognises(self, document: Document) -> bool:
        data = document.data
        return document.kind == "yaml" and isinstance(data, dict) and {"Arch", "Optimizer"} <= data.keys()

    def read(self, document: Document, version: Version | None) -> Imported:
        places = _optimizers(document)
        limits = [_limit(document, [*place, "clip_norm"]) for place in places]
        for place, limit in zip(places, limits, strict=True):
            if limit != limits[0]:
                raise document.wrong(place, "its threshold differs from the first optimizer's. Import one at a time.")
        return Imported(norm_settings(limits[0], "paddle"), [UNSET] if limits[0] is None else [PER_TENSOR])

    def write(self, settings: Settings, version: Version) -> Any:
        limit = exported_threshold(settings, self, rules=["norm"], family="paddle", zero="error")
        return {"Optimizer": {} if limit is None else {"clip_norm": limit}}


def _optimizers(document: Document) -> list[list[Key]]:
    """Return the paths of the optimizers: of one, or of each in a list of tables by name."""
    optimizers = document.get("Optimizer")
    if not isinstance(optimizers, list):
        return [["Optimizer"]]
    for index, optimizer in enumerate(optimizers):
        if not isinstance(optimizer, dict) or len(optimizer) != 1:
            raise document.wrong(["Optimizer", index], "this entry is not a table of one optimizer by its name.")
    if not optimizers:
        raise document.wrong(["Optimizer"], "the list is empty. Add an optimizer.")
    return [["Optimizer", index, *optimizer] for index, optimizer in enumerate(optimizers)]


def _limit(document: Document, keys: list[Key]) -> float | None:
    document.get(*keys)  # raises unless it is in a table
    if not has_key(document, *keys):
        return None
    return require_finite(document, keys, read_threshold(document, keys, None, zero="error", null="error"))
