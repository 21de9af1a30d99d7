"""detectron2's YAML: `SOLVER.CLIP_GRADIENTS`."""

from __future__ import annotations

import ast
import contextlib
from typing import Any

from packaging.version import Version

from ...errors import NotRepresentableError
from ..documents import Document
from ..schema import Settings, is_off
from .base import Format, Imported, Key, global_norm, holds, order, plain, plain_threshold, threshold

TABLE = ("SOLVER", "CLIP_GRADIENTS")
DEFAULTS = {"ENABLED": False, "CLIP_TYPE": "value", "CLIP_VALUE": 1.0, "NORM_TYPE": 2.0}


class Detectron2(Format):
    name = "detectron2"
    title = "detectron2"
    kinds = ("yaml",)
    source = "detectron2/config/defaults.py, detectron2/solver/build.py"
    newest = "0.6"
    clip_keys = ((*TABLE,), *((*TABLE, name) for name in ("CLIP_VALUE", "CLIP_TYPE")))
    vocabulary = frozenset({"SOLVER", "MODEL", "DATASETS", "DATALOADER", "INPUT", "TEST", "_BASE_", "OUTPUT_DIR"})
    keys = (
        Key("SOLVER.CLIP_GRADIENTS.ENABLED", "", "False", "whether anything is clipped"),
        Key("SOLVER.CLIP_GRADIENTS.CLIP_TYPE: value", "", "value", "each element"),
        Key("SOLVER.CLIP_GRADIENTS.CLIP_TYPE: norm", "", "", "each tensor by its own norm, PyTorch's rule"),
        Key(
            "SOLVER.CLIP_GRADIENTS.CLIP_TYPE: full_model",
            "",
            "",
            "the global norm, PyTorch's rule, of order 2; of projects such as Mask2Former, not of detectron2 itself",
            "imported",
        ),
        Key("SOLVER.CLIP_GRADIENTS.CLIP_VALUE", "", "1.0", "the threshold; 0: zeros, or off with full_model"),
        Key("SOLVER.CLIP_GRADIENTS.NORM_TYPE", "", "2.0", "the order of norm, .inf too; full_model ignores it"),
        Key("_BASE_", "", "", "another file, which is not read: what is not here may be there", "refused"),
    )

    def recognises(self, document: Document) -> bool:
        return holds(document, *TABLE) or (holds(document, "SOLVER", "IMS_PER_BATCH"))

    def read(self, document: Document, version: Version | None) -> Imported:
        notes: list[str] = []
        if not self._is_enabled(document, notes):
            return Imported({"rule": "none"}, notes)
        kind = self._value(document, "CLIP_TYPE", notes)
        self._value(document, "CLIP_VALUE", notes)
        keys = [*TABLE, "CLIP_VALUE"]
        if kind == "full_model":
            limit = threshold(document, keys, 1.0, zero="off", negative="off", null="error")
            notes.append(
                "CLIP_TYPE full_model is not detectron2's own, but of projects; their norm is always of order 2"
            )
            return Imported(global_norm(limit, "pytorch"), notes)
        limit = threshold(document, keys, 1.0, zero="zeros", null="error")
        if kind == "value":
            return Imported({"rule": "value", "threshold": limit}, notes)
        if kind != "norm":
            raise document.wrong([*TABLE, "CLIP_TYPE"], f"it is {kind!r:.60}; detectron2 knows value and norm")
        self._value(document, "NORM_TYPE", notes)
        notes.append("CLIP_TYPE norm is per tensor: each parameter's gradient has a norm of its own")
        found = global_norm(limit, "pytorch", order(document, [*TABLE, "NORM_TYPE"]))
        return Imported({**found, "rule": "norm"}, notes)

    def _is_enabled(self, document: Document, notes: list[str]) -> bool:
        """yacs reads a string as Python, where it is one."""
        table = document.get(*TABLE)
        unknown = [key for key in table if key not in DEFAULTS] if isinstance(table, dict) else []
        if unknown and "ENABLED" not in table:
            names = ", ".join(DEFAULTS)
            raise document.wrong(
                [*TABLE, unknown[0]], f"detectron2 has no such key, and ENABLED is not there. The keys are {names}."
            )
        found = self._value(document, "ENABLED", notes)
        if isinstance(found, str):
            with contextlib.suppress(SyntaxError, ValueError):
                found = ast.literal_eval(found)
        if found is not None and not isinstance(found, bool):
            raise document.wrong([*TABLE, "ENABLED"], f"it is {found!r:.60}, which yacs refuses; give True or False")
        return bool(found)

    def _value(self, document: Document, key: str, notes: list[str]) -> Any:
        """What a key says, or its default, which is said aloud."""
        if holds(document, *TABLE, key):
            return document.get(*TABLE, key)
        if base := document.get("_BASE_"):
            raise document.wrong(
                ["_BASE_"],
                f"{key} of {'.'.join(TABLE)} may be set in {base}, which is not read; import the whole configuration: "
                "what cfg.dump() gives",
            )
        notes.append(f"{key} is not there, and {DEFAULTS[key]} by default")
        return DEFAULTS[key]

    def write(self, settings: Settings, version: Version) -> Any:
        settings = plain(settings)
        if settings.rule == "global_norm" and not is_off(settings):
            raise NotRepresentableError(
                f"Cannot export to {self.title}: its norms are each tensor's own; where a project such as Mask2Former "
                "adds CLIP_TYPE: full_model, write that by hand"
            )
        limit = plain_threshold(settings, self, rules=["norm", "value"], family="pytorch", zero="zeros", orders=True)
        if limit is None:
            return {"SOLVER": {"CLIP_GRADIENTS": {"ENABLED": False}}}
        found = {
            "ENABLED": True,
            "CLIP_TYPE": settings.rule,
            "CLIP_VALUE": limit,
            "NORM_TYPE": settings.norm_type or 2.0,
        }
        return {"SOLVER": {"CLIP_GRADIENTS": found}}
