"""The YAML format of detectron2, with the table `SOLVER.CLIP_GRADIENTS`."""

from __future__ import annotations

import ast
import contextlib
from typing import Any

from packaging.version import Version

from ....documents import Document
from ....documents.inheritance.base_files import BaseFiles
from ....documents.merge import MergeRules
from ....schema import Settings
from ...base import ATTACH, Format, Imported, paths, read_norm_type, words

TABLE = ("SOLVER", "CLIP_GRADIENTS")
DEFAULTS = {"ENABLED": False, "CLIP_TYPE": "value", "CLIP_VALUE": 1.0, "NORM_TYPE": 2.0}


class Detectron2(Format):
    name, title = "detectron2", "detectron2"
    kinds = ("yaml",)
    source = "detectron2/config/defaults.py, detectron2/solver/build.py; fvcore: fvcore/common/config.py"
    newest = "0.6"
    instead = ATTACH
    own_keys = paths("SOLVER.CLIP_GRADIENTS SOLVER.IMS_PER_BATCH")
    inheritance = BaseFiles(
        "_BASE_", "Correct the path of the base file, or import the output of cfg.dump().", MergeRules(is_strict=True)
    )
    clip_keys = paths("SOLVER.CLIP_GRADIENTS SOLVER.CLIP_GRADIENTS.CLIP_VALUE SOLVER.CLIP_GRADIENTS.CLIP_TYPE")
    vocabulary = words("SOLVER MODEL DATASETS DATALOADER INPUT TEST _BASE_ OUTPUT_DIR")
    rules = ("norm", "value")
    zero = "zeros"
    norm_types = True

    def read(self, document: Document, version: Version | None) -> Imported:
        notes: list[str] = []
        if not self._is_enabled(document, notes):
            return Imported({"rule": "none"}, notes)
        kind = self._value(document, "CLIP_TYPE", notes)
        self._value(document, "CLIP_VALUE", notes)
        keys = [*TABLE, "CLIP_VALUE"]
        if kind == "full_model":
            threshold = self.read_threshold(document, keys, 1.0, zero="off", null="error")
            notes.append(
                "CLIP_TYPE full_model comes from projects such as Mask2Former, and always uses the norm type 2."
            )
            return Imported(self.settings("global_norm", threshold), notes)
        threshold = self.read_threshold(document, keys, 1.0, null="error")
        if kind == "value":
            return Imported(self.settings("value", threshold), notes)
        if kind != "norm":
            raise document.wrong(
                [*TABLE, "CLIP_TYPE"], f"{kind!r:.60} is not a CLIP_TYPE of detectron2. Set value or norm."
            )
        self._value(document, "NORM_TYPE", notes)
        notes.append("CLIP_TYPE norm is per tensor: each gradient is clipped by its own norm.")
        return Imported(self.settings("norm", threshold, read_norm_type(document, [*TABLE, "NORM_TYPE"])), notes)

    def _is_enabled(self, document: Document, notes: list[str]) -> bool:
        """Evaluate a string such as "False" as Python, as detectron2 does."""
        table = document.get(*TABLE)
        unknown = [key for key in table if key not in DEFAULTS] if isinstance(table, dict) else []
        if unknown and "ENABLED" not in table:
            names = ", ".join(DEFAULTS)
            raise document.wrong([*TABLE, unknown[0]], f"detectron2 has no such key. Use one of {names}.", "UC105")
        enabled = self._value(document, "ENABLED", notes)
        if isinstance(enabled, str):
            with contextlib.suppress(SyntaxError, ValueError):
                enabled = ast.literal_eval(enabled)
        if enabled is not None and not isinstance(enabled, bool):
            raise document.wrong([*TABLE, "ENABLED"], f"detectron2 rejects {enabled!r:.60}. Set True or False.")
        return bool(enabled)

    def _value(self, document: Document, key: str, notes: list[str]) -> Any:
        if document.has(*TABLE, key):
            return document.get(*TABLE, key)
        notes.append(f"The file does not set {key}. The default is {DEFAULTS[key]}.")
        return DEFAULTS[key]

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        table: dict[str, Any] = {"ENABLED": threshold is not None}
        if threshold is not None:
            table |= {"CLIP_TYPE": settings.rule, "CLIP_VALUE": threshold, "NORM_TYPE": settings.norm_type or 2.0}
        return {"SOLVER": {"CLIP_GRADIENTS": table}}
