"""PaddleDetection's YAML: `OptimizerBuilder`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ..documents import Document
from ..schema import Settings
from .base import Format, Imported, Key, check_size, finite, global_norm, plain_threshold, threshold, value
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
        Key(f"{BUILDER}.{NORM}", "", "null", "the global norm, whatever the name says; 0: all gradients become 0"),
        Key(f"{BUILDER}.{VALUE}", "", "null", "each element; of a negative number, the magnitude counts"),
        Key("both of them", "", "", "the norm wins there", "refused"),
        Key(
            "one of them, with the optimizer AdamWDL", "", "", "it is built without, and nothing is clipped", "refused"
        ),
        Key(f"{BUILDER}.optimizer.{NORM}, {VALUE}", "", "", "no optimizer has such an argument", "refused"),
    )

    def recognises(self, document: Document) -> bool:
        return document.kind == "yaml" and isinstance(document.data, dict) and BUILDER in document.data

    def read(self, document: Document, version: Version | None) -> Imported:
        given = [name for name in (NORM, VALUE) if document.get(BUILDER, name) is not None]
        for name in (NORM, VALUE):
            if document.get(BUILDER, "optimizer", name) is not None:
                raise document.wrong([BUILDER, "optimizer", name], f"it has to stand in {BUILDER} itself")
        if len(given) > 1:
            raise document.wrong(
                [BUILDER, VALUE], f"{NORM} is there too, and PaddleDetection leaves {VALUE} out; remove one of them"
            )
        if not given:
            if document.get("_BASE_") and any(name not in (document.get(BUILDER) or {}) for name in (NORM, VALUE)):
                raise document.wrong(["_BASE_"], f"{NORM} and {VALUE} are not here, but may be there; import that file")
            unset = [name for name in (NORM, VALUE) if name not in (document.get(BUILDER) or {})]
            note = f"The file does not set {' or '.join(unset)}. By default, PaddleDetection clips nothing."
            return Imported({"rule": "none"}, [note] if unset else [])
        if document.get(BUILDER, "optimizer", "type") == "AdamWDL":
            raise document.wrong(
                [BUILDER, given[0]], "PaddleDetection builds AdamWDL without it, so that nothing is clipped; remove it"
            )
        notes = [PER_GROUP] if document.get(BUILDER, "optimizer", "param_groups") else []
        keys = [BUILDER, given[0]]
        if given == [VALUE]:
            return Imported(value(_magnitude(document, keys)), notes)
        limit = finite(document, keys, threshold(document, keys, None, zero="zeros"))
        return Imported(global_norm(limit, "paddle"), [f"{NORM} is one norm over all gradients", *notes])

    def write(self, settings: Settings, version: Version) -> Any:
        rules = ["global_norm", "value"]
        limit = plain_threshold(settings, self, rules=rules, family="paddle", zero="zeros")
        chosen = {} if limit is None else {NORM if settings.rule == "global_norm" else VALUE: limit}
        return {BUILDER: {NORM: None, VALUE: None} | chosen}


def _magnitude(document: Document, keys: list[str]) -> float | None:
    found = document.get(*keys)
    check_size(document, keys, found)
    if isinstance(found, int | float) and found < 0:
        return -float(found)
    return threshold(document, keys, None, zero="zeros")
