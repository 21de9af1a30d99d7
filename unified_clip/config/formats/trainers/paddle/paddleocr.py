"""The YAML format of PaddleOCR, with the keys `Optimizer.clip_norm` and `Optimizer.clip_norm_global`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ....documents import Document
from ....schema import Rule, Settings
from ...base import AS_PADDLE, Format, Imported, words
from .paddle import PER_TENSOR, zero_of

TENSOR, GLOBAL = "clip_norm", "clip_norm_global"


class PaddleOCR(Format):
    name, title = "paddleocr", "PaddleOCR"
    kinds = ("yaml",)
    source = "ppocr/optimizer/__init__.py"
    newest = "3.7.0"
    instead = AS_PADDLE
    clip_keys = (("Optimizer", TENSOR), ("Optimizer", GLOBAL))
    vocabulary = words("Global Architecture Optimizer Train Eval PostProcess Loss")
    rules = ("norm", "global_norm")
    family = "paddle"

    def recognises(self, document: Document) -> bool:
        return document.shows("Architecture") and document.shows("Optimizer")

    def read(self, document: Document, version: Version | None) -> Imported:
        document.get("Optimizer", TENSOR)  # raises unless it is in a table
        names = [name for name in (TENSOR, GLOBAL) if document.has("Optimizer", name)]
        if len(names) > 1:
            raise document.wrong(
                ["Optimizer", GLOBAL], f"PaddleOCR ignores this key if {TENSOR} is set. Remove this key."
            )
        if not names:
            note = f"The file does not set {TENSOR} or {GLOBAL}. By default, PaddleOCR clips nothing."
            return Imported({"rule": "none"}, [note])
        rule: Rule = "norm" if names == [TENSOR] else "global_norm"
        keys = ["Optimizer", names[0]]
        threshold = self.read_threshold(document, keys, zero=zero_of(rule), null="error", infinite="error")
        return Imported(self.settings(rule, threshold), [PER_TENSOR] if rule == "norm" else [])

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings, zero=zero_of(settings.rule))
        return {"Optimizer": {} if threshold is None else {TENSOR if settings.rule == "norm" else GLOBAL: threshold}}
