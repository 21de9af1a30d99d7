"""The Python format of mmcv 1, with `optimizer_config.grad_clip`. The Python code is parsed, and never run."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ....documents import Document, PartialTable
from ....schema import Settings
from ...base import ATTACH, Imported, OwnFormat, paths, read_norm_type, words
from ...python_config import source as python_config
from ...python_config.bases import ConfigBases
from .mmengine import CLIP_ARGUMENTS, MMCV, clip_source

SCHEDULE = ("lr_config", "checkpoint_config", "runner", "total_epochs")
"""Names that mmcv 1 reads. A file in this format has at least one of these names."""

REPLACED = ("optim_wrapper", "param_scheduler", "train_dataloader", "default_hooks")
"""Names of mmengine that replace names of mmcv 1."""


class MMCV1(OwnFormat):
    name, title = "mmcv", "mmcv 1"
    kinds = ("python",)
    source = "mmcv 1.7.1: mmcv/runner/hooks/optimizer.py, mmcv/utils/config.py"
    newest = "1.7.1"
    extends = "mmengine"
    instead = ATTACH
    inheritance = ConfigBases()
    own_keys = paths("lr_config checkpoint_config")
    clip_keys = (MMCV,)
    vocabulary = words("_base_ model data optimizer optimizer_config workflow log_config") | {*SCHEDULE}
    zero = "zeros"
    norm_types = True
    nonfinite = ("family", "raise")

    def recognises(self, document: Document) -> bool:
        names = document.data if isinstance(document.data, dict) else {}
        has_optimizer = any(isinstance(names.get(name), dict) for name in ("optimizer", MMCV[0]))
        has_schedule = any(isinstance(names.get(name), dict | int) for name in SCHEDULE)
        return has_optimizer and has_schedule and not any(name in names for name in REPLACED)

    def parse(self, text: str, name: str) -> Document:
        return python_config.parse(text, name)

    def read(self, document: Document, version: Version | None) -> Imported:
        if not document.has(*MMCV):
            return Imported({"rule": "none"}, ["The file does not set grad_clip. By default, mmcv 1 clips nothing."])
        clip = document.get(*MMCV)
        if clip is None:
            return Imported({"rule": "none"})
        if not isinstance(clip, dict) or not document.shows(*MMCV, "max_norm"):
            raise document.wrong(MMCV, f"{clip!r:.60} makes training fail. Set None, or a dict with max_norm.")
        for name in clip:
            document.get(*MMCV, name)  # raises if the value is unknown
        if unknown := sorted(clip.keys() - CLIP_ARGUMENTS["norm"] - {"_delete_"}):
            raise document.wrong(
                [*MMCV, unknown[0]], "clip_grad_norm_ of PyTorch does not have this argument. Remove it."
            )
        notes = (
            [f"{clip.unread} An unread file might set more keys of grad_clip."]
            if isinstance(clip, PartialTable)
            else []
        )
        threshold = self.read_threshold(document, [*MMCV, "max_norm"], null="error")
        settings = self.settings("global_norm", threshold, read_norm_type(document, [*MMCV, "norm_type"]))
        return Imported(settings | ({"nonfinite": "raise"} if clip.get("error_if_nonfinite") else {}), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        raises = {"error_if_nonfinite": True} if settings.nonfinite == "raise" else {}
        if threshold is None:
            return {"max_norm": float("inf"), **raises} if raises else None
        norm_type = {} if settings.norm_type in (None, 2.0) else {"norm_type": settings.norm_type}
        return {"max_norm": threshold, **norm_type, **raises}

    def dump(self, data: Any) -> str:
        return f"optimizer_config = dict(grad_clip={clip_source(data)})\n"
