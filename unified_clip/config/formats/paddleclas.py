"""PaddleClas' YAML: `Optimizer.clip_norm`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ..documents import Document
from ..documents import Key as Place
from ..schema import Settings
from .base import Format, Imported, Key, finite, holds, norm, plain_threshold, threshold

PER_TENSOR = "clip_norm is the norm of each tensor, not of all together"

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
        Key("Optimizer.clip_norm", "", "absent", "each tensor by its own norm; 0 or less: fails"),
        Key("Optimizer.[].NAME.clip_norm", "", "absent", "the same of one of several optimizers", "imported"),
    )

    def recognises(self, document: Document) -> bool:
        data = document.data
        return document.kind == "yaml" and isinstance(data, dict) and {"Arch", "Optimizer"} <= data.keys()

    def read(self, document: Document, version: Version | None) -> Imported:
        places = _optimizers(document)
        found = [_limit(document, [*place, "clip_norm"]) for place in places]
        for place, limit in zip(places, found, strict=True):
            if limit != found[0]:
                raise document.wrong(place, "it clips otherwise than the first optimizer; import one at a time")
        return Imported(norm(found[0], "paddle"), [UNSET] if found[0] is None else [PER_TENSOR])

    def write(self, settings: Settings, version: Version) -> Any:
        limit = plain_threshold(settings, self, rules=["norm"], family="paddle", zero="error")
        return {"Optimizer": {} if limit is None else {"clip_norm": limit}}


def _optimizers(document: Document) -> list[list[Place]]:
    """Where optimizers stand: there may be a list of them, each a table with its name."""
    found = document.get("Optimizer")
    if not isinstance(found, list):
        return [["Optimizer"]]
    for index, each in enumerate(found):
        if not isinstance(each, dict) or len(each) != 1:
            raise document.wrong(["Optimizer", index], "it should be a table of one optimizer, with its name")
    if not found:
        raise document.wrong(["Optimizer"], "it is empty; give an optimizer")
    return [["Optimizer", index, *each] for index, each in enumerate(found)]


def _limit(document: Document, keys: list[Place]) -> float | None:
    document.get(*keys)  # in a table, if that is there
    if not holds(document, *keys):
        return None
    return finite(document, keys, threshold(document, keys, None, zero="error", null="error"))
