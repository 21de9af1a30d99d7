"""The Python format of mmcv 1, with the key `optimizer_config.grad_clip`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ....documents import Document
from ...base import Imported, paths, words
from .mmengine import CLIP_ARGUMENTS, MMCV, MMEngine, check_known, clip_source

SCHEDULE = ("lr_config", "checkpoint_config", "runner", "total_epochs")
"""A file of mmcv 1 sets at least one of these variables."""

REPLACED = ("optim_wrapper", "param_scheduler", "train_dataloader", "default_hooks")
"""Variables of mmengine that replace variables of mmcv 1."""


class MMCV1(MMEngine):
    name, title = "mmcv", "mmcv 1"
    source = "mmcv 1.7.1: mmcv/runner/hooks/optimizer.py, mmcv/utils/config.py"
    newest = "1.7.1"
    extends = "mmengine"
    own_keys = paths("lr_config checkpoint_config")
    clip_keys = (MMCV,)
    foreign_keys = ()
    vocabulary = words("_base_ model data optimizer optimizer_config workflow log_config") | {*SCHEDULE}
    rules = ("global_norm",)

    def recognises(self, document: Document) -> bool:
        names = document.data if isinstance(document.data, dict) else {}
        has_optimizer = any(isinstance(names.get(name), dict) for name in ("optimizer", MMCV[0]))
        has_schedule = any(isinstance(names.get(name), dict | int) for name in SCHEDULE)
        is_replaced = any(name in names for name in REPLACED)
        return has_optimizer and has_schedule and not is_replaced and self.names_own_key(document)

    def read(self, document: Document, version: Version | None) -> Imported:
        if not document.has(*MMCV):
            return Imported({"rule": "none"}, ["The file does not set grad_clip. By default, mmcv 1 clips nothing."])
        clip = document.get(*MMCV)
        if clip is None:
            return Imported({"rule": "none"})
        if not isinstance(clip, dict) or not document.shows(*MMCV, "max_norm"):
            raise document.wrong(MMCV, f"{clip!r:.60} makes training fail. Set None, or a dict with max_norm.")
        notes = check_known(document, MMCV)
        if unknown := sorted(clip.keys() - CLIP_ARGUMENTS["norm"]):
            raise document.wrong(
                [*MMCV, unknown[0]], "clip_grad_norm_ of PyTorch does not have this argument. Remove the argument."
            )
        return self.by_norm(document, MMCV, notes)

    def dump(self, data: Any) -> str:
        return f"optimizer_config = dict(grad_clip={clip_source(data)})\n"
