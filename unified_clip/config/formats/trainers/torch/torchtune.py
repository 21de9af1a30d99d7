"""The YAML format of torchtune, with the key `clip_grad_norm` of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packaging.version import Version

from ....documents import Document, Key
from ....documents.inheritance.hydra import Hydra
from ....schema import Settings
from ...base import Format, Imported, default_note, paths, words

KEY = "clip_grad_norm"
ASYNC = ("training", "optimizer")
"""Only files of the recipe async_grpo have this table. This recipe reads `training.clip_grad_norm`."""

ZERO = "with 0, recipes on one device clip nothing. In recipes on several devices, 0 makes all gradients 0."


class TorchTune(Format):
    name, title = "torchtune", "torchtune"
    kinds = ("yaml",)
    source = "recipes/full_finetune_distributed.py, recipes/full_finetune_single_device.py"
    newest = "0.6.1"
    inheritance = Hydra()  # for the interpolations of OmegaConf
    clip_keys = paths(f"{KEY} training.{KEY}")
    vocabulary = words("""
        tokenizer model checkpointer dataset optimizer loss lr_scheduler batch_size epochs max_steps_per_epoch
        gradient_accumulation_steps optimizer_in_bwd metric_logger enable_activation_checkpointing profiler
    """)
    zero = "zeros"
    off = None

    def places(self, document: Document) -> Sequence[tuple[Key, ...]]:
        return self.clip_keys if document.shows(*ASYNC) else self.clip_keys[:1]

    def recognises(self, document: Document) -> bool:
        tables = document.data.values() if isinstance(document.data, dict) else ()
        if not any(map(document.shows, ("optimizer", "training", KEY))):  # a file for evaluation or generation
            return False
        components = [table.get("_component_") for table in tables if isinstance(table, dict)]
        return any(isinstance(name, str) and name.startswith("torchtune.") for name in components)

    def read(self, document: Document, version: Version | None) -> Imported:
        is_nested = ("training", KEY) in self.places(document) and document.has("training", KEY)
        place = ["training", KEY] if is_nested and not document.has(KEY) else [KEY]
        notes = default_note(document, place, "torchtune clips nothing")
        threshold = self.read_threshold(document, place)
        if threshold == 0:
            raise document.wrong(place, f"{ZERO} Set null to clip nothing.")
        if threshold is not None and document.get("optimizer_in_bwd") is True:
            raise document.wrong(place, "torchtune rejects this key with optimizer_in_bwd: true. Remove one of them.")
        return Imported(self.settings("global_norm", threshold), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        if settings.threshold == 0:
            raise self.not_exported(f"{ZERO} Set a threshold above 0.")
        return super().write(settings, version)
