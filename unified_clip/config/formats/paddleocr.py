"""PaddleOCR's YAML: `Optimizer.clip_norm` and `Optimizer.clip_norm_global`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ..documents import Document
from ..schema import Settings
from .base import Format, Imported, Key, Zero, finite, global_norm, holds, norm, plain_threshold, threshold
from .paddleclas import PER_TENSOR

TENSOR, GLOBAL = "clip_norm", "clip_norm_global"


class PaddleOCR(Format):
    name = "paddleocr"
    title = "PaddleOCR"
    kinds = ("yaml",)
    source = "ppocr/optimizer/__init__.py"
    newest = "3.7.0"
    clip_keys = (("Optimizer", TENSOR), ("Optimizer", GLOBAL))
    vocabulary = frozenset({"Global", "Architecture", "Optimizer", "Train", "Eval", "PostProcess", "Loss"})
    keys = (
        Key(f"Optimizer.{TENSOR}", "", "absent", "each tensor by its own norm; 0 or less: fails"),
        Key(f"Optimizer.{GLOBAL}", "not in the first 2.x", "absent", "the global norm; 0: all gradients become 0"),
        Key("both of them", "", "", f"{TENSOR} wins there", "refused"),
    )

    def recognises(self, document: Document) -> bool:
        data = document.data
        known = isinstance(data, dict) and {"Architecture", "Optimizer"} <= data.keys()
        return document.kind == "yaml" and known

    def read(self, document: Document, version: Version | None) -> Imported:
        document.get("Optimizer", TENSOR)  # a table, if it is there
        given = [name for name in (TENSOR, GLOBAL) if holds(document, "Optimizer", name)]
        if len(given) > 1:
            raise document.wrong(
                ["Optimizer", GLOBAL], f"{TENSOR} is there too, and PaddleOCR leaves {GLOBAL} out; remove one of them"
            )
        if not given:
            note = f"The file does not set {TENSOR} or {GLOBAL}. By default, PaddleOCR clips nothing."
            return Imported({"rule": "none"}, [note])
        keys = ["Optimizer", given[0]]
        zero: Zero = "error" if given == [TENSOR] else "zeros"
        limit = finite(document, keys, threshold(document, keys, None, zero=zero, null="error"))
        if given == [TENSOR]:
            return Imported(norm(limit, "paddle"), [PER_TENSOR])
        return Imported(global_norm(limit, "paddle"))

    def write(self, settings: Settings, version: Version) -> Any:
        zero: Zero = "error" if settings.rule == "norm" else "zeros"
        rules = ["norm", "global_norm"]
        limit = plain_threshold(settings, self, rules=rules, family="paddle", zero=zero)
        chosen = {} if limit is None else {TENSOR if settings.rule == "norm" else GLOBAL: limit}
        return {"Optimizer": chosen}
