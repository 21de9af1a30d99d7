"""PaddleDetection's YAML: `OptimizerBuilder`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ..documents import Document
from ..schema import Settings
from .base import (
    Format,
    FormatKey,
    Imported,
    check_size,
    exported_threshold,
    global_norm_settings,
    read_threshold,
    require_finite,
    value_settings,
)
from .paddle import PER_GROUP

BUILDER = "OptimizerBuilder"
NORM, VALUE = "clip_grad_by_norm", "clip_grad_by_value"


class PaddleDetection(Format):
    name = "paddledetection"
    title = "PaddleDetection"
    kinds = ("yaml",)
    source = "ppdet/optimizer/optimizer.py"
    newest = "2.6.0"
    clip_keys = ((BUILDER, NORM), (BUILDER, VALUE), (BUILDER, "optimizer", NORM), (BUILDER, "optimizer", VALUE))
    vocabulary = frozenset(
        {"_BASE_", "LearningRate", "architecture", "TrainReader", "epoch", "metric", "snapshot_epoch"}
    )
    keys = (
        FormatKey(
            f"{BUILDER}.{NORM}", "", "null", "the global norm, whatever the name says; 0: all gradients become 0"
        ),
        FormatKey(f"{BUILDER}.{VALUE}", "", "null", "each element; of a negative number, the magnitude counts"),
        FormatKey("both of them", "", "", "the norm wins there", "rejected"),
        FormatKey(
            "one of them, with the optimizer AdamWDL",
            "",
            "",
            "AdamWDL is built without it: nothing is clipped",
            "rejected",
        ),
        FormatKey(f"{BUILDER}.optimizer.{NORM}, {VALUE}", "", "", "no optimizer has such an argument", "rejected"),
    )

    def recognises(self, document: Document) -> bool:
        return document.kind == "yaml" and isinstance(document.data, dict) and BUILDER in document.data

    def read(self, document: Document, version: Version | None) -> Imported:
        names = [name for name in (NORM, VALUE) if document.get(BUILDER, name) is not None]
        for name in (NORM, VALUE):
            if document.get(BUILDER, "optimizer", name) is not None:
                raise document.wrong(
                    [BUILDER, "optimizer", name], f"no optimizer has this argument. Move it to {BUILDER}."
                )
        if len(names) > 1:
            raise document.wrong(
                [BUILDER, VALUE], f"the file sets {NORM} too, and PaddleDetection ignores {VALUE}. Remove one of them."
            )
        if not names:
            if document.get("_BASE_") and any(name not in (document.get(BUILDER) or {}) for name in (NORM, VALUE)):
                raise document.wrong(["_BASE_"], f"the _BASE_ files may set {NORM} or {VALUE}. Import them instead.")
            unset = [name for name in (NORM, VALUE) if name not in (document.get(BUILDER) or {})]
            note = f"The file does not set {' or '.join(unset)}. By default, PaddleDetection clips nothing."
            return Imported({"rule": "none"}, [note] if unset else [])
        if document.get(BUILDER, "optimizer", "type") == "AdamWDL":
            raise document.wrong(
                [BUILDER, names[0]], "PaddleDetection builds AdamWDL without this clip. Nothing is clipped. Remove it."
            )
        notes = [PER_GROUP] if document.get(BUILDER, "optimizer", "param_groups") else []
        keys = [BUILDER, names[0]]
        if names == [VALUE]:
            return Imported(value_settings(_magnitude(document, keys)), notes)
        limit = require_finite(document, keys, read_threshold(document, keys, None, zero="zeros"))
        return Imported(global_norm_settings(limit, "paddle"), [f"{NORM} clips by the total norm.", *notes])

    def write(self, settings: Settings, version: Version) -> Any:
        rules = ["global_norm", "value"]
        limit = exported_threshold(settings, self, rules=rules, family="paddle", zero="zeros")
        limits = {} if limit is None else {NORM if settings.rule == "global_norm" else VALUE: limit}
        return {BUILDER: {NORM: None, VALUE: None} | limits}


def _magnitude(document: Document, keys: list[str]) -> float | None:
    limit = document.get(*keys)
    check_size(document, keys, limit)
    if isinstance(limit, int | float) and limit < 0:
        return -float(limit)
    return read_threshold(document, keys, None, zero="zeros")
