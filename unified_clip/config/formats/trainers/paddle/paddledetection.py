"""The YAML format of PaddleDetection, with two clip keys in `OptimizerBuilder`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ....._kit.static_values import is_number
from ....documents import Document
from ....documents.inheritance.base_files import BaseFiles
from ....schema import Settings
from ...base import AS_PADDLE, Format, Imported, check_size, paths, words
from .paddle import PER_GROUP

BUILDER = "OptimizerBuilder"
NORM, VALUE = "clip_grad_by_norm", "clip_grad_by_value"
REMOVE = "Remove this key. If a base file sets the key, set the key to null in your file."


class PaddleDetection(Format):
    name, title = "paddledetection", "PaddleDetection"
    kinds = ("yaml",)
    source = "ppdet/optimizer/optimizer.py, ppdet/core/workspace.py"
    newest = "2.6.0"
    instead = AS_PADDLE
    own_keys = paths(BUILDER)
    inheritance = BaseFiles(
        "_BASE_", f"Correct the path of the base file, or set {NORM} or {VALUE} in this file.", takes_text=False
    )
    clip_keys = ((BUILDER, NORM), (BUILDER, VALUE), (BUILDER, "optimizer", NORM), (BUILDER, "optimizer", VALUE))
    vocabulary = words("_BASE_ LearningRate architecture TrainReader epoch metric snapshot_epoch")
    rules = ("global_norm", "value")
    family = "paddle"
    zero = "zeros"

    def read(self, document: Document, version: Version | None) -> Imported:
        names = [name for name in (NORM, VALUE) if document.get(BUILDER, name) is not None]
        for name in (NORM, VALUE):
            if document.get(BUILDER, "optimizer", name) is not None:
                raise document.wrong(
                    [BUILDER, "optimizer", name], f"no optimizer has this key. Move the key to {BUILDER}."
                )
        if len(names) > 1:
            raise document.wrong([BUILDER, VALUE], f"PaddleDetection ignores this key if {NORM} is set. {REMOVE}")
        if not names:
            unset = [name for name in (NORM, VALUE) if not document.has(BUILDER, name)]
            note = f"The file does not set {' or '.join(unset)}. By default, PaddleDetection clips nothing."
            return Imported({"rule": "none"}, [note] if unset else [])
        if document.get(BUILDER, "optimizer", "type") == "AdamWDL":
            raise document.wrong([BUILDER, names[0]], f"PaddleDetection ignores this key for AdamWDL. {REMOVE}")
        notes = [PER_GROUP] if document.get(BUILDER, "optimizer", "param_groups") else []
        keys = [BUILDER, names[0]]
        if names == [VALUE]:
            return Imported(self.settings("value", self._magnitude(document, keys)), notes)
        threshold = self.read_threshold(document, keys, infinite="error")
        return Imported(self.settings("global_norm", threshold), [f"{NORM} clips by the total norm.", *notes])

    def _magnitude(self, document: Document, keys: list[str]) -> float | None:
        value = document.get(*keys)
        check_size(document, keys, value)
        return -float(value) if is_number(value) and value < 0 else self.read_threshold(document, keys)

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        clip = {} if threshold is None else {NORM if settings.rule == "global_norm" else VALUE: threshold}
        return {BUILDER: {NORM: None, VALUE: None} | clip}
