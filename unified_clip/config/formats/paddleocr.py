"""PaddleOCR's YAML: `Optimizer.clip_norm` and `Optimizer.clip_norm_global`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ..documents import Document
from ..schema import Settings
from .base import (
    Format,
    FormatKey,
    Imported,
    Zero,
    exported_threshold,
    global_norm_settings,
    has_key,
    norm_settings,
    read_threshold,
    require_finite,
)
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
        FormatKey(f"Optimizer.{TENSOR}", "", "absent", "each tensor by its own norm; 0 or less: fails"),
        FormatKey(
            f"Optimizer.{GLOBAL}", "not in the first 2.x", "absent", "the global norm; 0: all gradients become 0"
        ),
        FormatKey("both of them", "", "", f"{TENSOR} wins there", "rejected"),
    )

    def recognises(self, document: Document) -> bool:
        data = document.data
        known = isinstance(data, dict) and {"Architecture", "Optimizer"} <= data.keys()
        return document.kind == "yaml" and known

    def read(self, document: Document, version: Version | None) -> Imported:
        document.get("Optimizer", TENSOR)  # raises unless it is in a table
        names = [name for name in (TENSOR, GLOBAL) if has_key(document, "Optimizer", name)]
        if len(names) > 1:
            raise document.wrong(
                ["Optimizer", GLOBAL],
                f"the file sets {TENSOR} too, and PaddleOCR ignores {GLOBAL}. Remove one of them.",
            )
        if not names:
            note = f"The file does not set {TENSOR} or {GLOBAL}. By default, PaddleOCR clips nothing."
            return Imported({"rule": "none"}, [note])
        keys = ["Optimizer", names[0]]
        zero: Zero = "error" if names == [TENSOR] else "zeros"
        limit = require_finite(document, keys, read_threshold(document, keys, None, zero=zero, null="error"))
        if names == [TENSOR]:
            return Imported(norm_settings(limit, "paddle"), [PER_TENSOR])
        return Imported(global_norm_settings(limit, "paddle"))

    def write(self, settings: Settings, version: Version) -> Any:
        zero: Zero = "error" if settings.rule == "norm" else "zeros"
        rules = ["norm", "global_norm"]
        limit = exported_threshold(settings, self, rules=rules, family="paddle", zero=zero)
        return {"Optimizer": {} if limit is None else {TENSOR if settings.rule == "norm" else GLOBAL: limit}}
