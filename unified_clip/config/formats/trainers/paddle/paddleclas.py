"""The YAML format of PaddleClas, with the key `Optimizer.clip_norm`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ....documents import Document, Key
from ....schema import Settings
from ...base import AS_PADDLE, Format, Imported, paths, words
from .paddle import PER_TENSOR


class PaddleClas(Format):
    name, title = "paddleclas", "PaddleClas"
    kinds = ("yaml",)
    source = "ppcls/optimizer/__init__.py"
    newest = "2.6.0"
    instead = AS_PADDLE
    clip_keys = paths("Optimizer.clip_norm Optimizer.*.*.clip_norm")
    vocabulary = words("Global Arch Optimizer DataLoader Loss")
    rules = ("norm",)
    family = "paddle"
    zero = "error"

    def recognises(self, document: Document) -> bool:
        return document.shows("Arch") and document.shows("Optimizer")

    def read(self, document: Document, version: Version | None) -> Imported:
        places = _optimizers(document)
        thresholds = [self._threshold(document, [*place, "clip_norm"]) for place in places]
        for place, threshold in zip(places, thresholds, strict=True):
            if threshold != thresholds[0]:
                raise document.wrong(
                    place,
                    "this threshold differs from the first optimizer's threshold. Set one threshold for all "
                    "optimizers.",
                )
        unset = "The file does not set clip_norm. By default, PaddleClas clips nothing."
        return Imported(self.settings("norm", thresholds[0]), [unset if thresholds[0] is None else PER_TENSOR])

    def _threshold(self, document: Document, keys: list[Key]) -> float | None:
        document.get(*keys)  # raises unless it is in a table
        return self.read_threshold(document, keys, null="error", infinite="error") if document.has(*keys) else None

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        return {"Optimizer": {} if threshold is None else {"clip_norm": threshold}}


def _optimizers(document: Document) -> list[list[Key]]:
    optimizers = document.get("Optimizer")
    if not isinstance(optimizers, list):
        return [["Optimizer"]]
    for index, optimizer in enumerate(optimizers):
        if not isinstance(optimizer, dict) or len(optimizer) != 1:
            raise document.wrong(
                ["Optimizer", index],
                "this entry is not a table with one optimizer. Write a table such as `AdamW: {clip_norm: 1}`.",
            )
    if not optimizers:
        raise document.wrong(["Optimizer"], "the list is empty. Add an optimizer.")
    return [["Optimizer", index, *optimizer] for index, optimizer in enumerate(optimizers)]
