"""The YAML and JSON format of Accelerate, with the clip keys of DeepSpeed and Megatron-LM."""

from __future__ import annotations

import math
from typing import Any

from packaging.version import Version

from ....documents import Document, infinity
from ....documents.inheritance.named_file import NamedFile
from ....schema import Settings
from ...base import Format, Imported, SetElsewhereError, default_note, paths
from ..torch import deepspeed

DEEPSPEED = ("deepspeed_config", "gradient_clipping")
MEGATRON = ("megatron_lm_config", "megatron_lm_gradient_clipping")
FILE = ("deepspeed_config", "deepspeed_config_file")
NO_CLIP = (
    "DeepSpeed's file does not set gradient_clipping. By default, DeepSpeed clips nothing before 0.19.3, and "
    'clips at 1.0 since 0.19.3. Set "gradient_clipping" in that file.'
)


class Accelerate(Format):
    name, title = "accelerate", "Accelerate"
    kinds = ("yaml", "json")
    source = "accelerate: src/accelerate/utils/dataclasses.py, src/accelerate/accelerator.py"
    newest = "1.15.0"
    not_finite = deepspeed.UNSET
    instead = "call `clip_(accelerator, clip, model.named_parameters())` of `unified_clip.integrations.accelerate_clip`"
    own_keys = paths("compute_environment distributed_type deepspeed_config megatron_lm_config")
    inheritance = NamedFile(FILE, "Put DeepSpeed's configuration file at this path, or import that file directly.")
    clip_keys = (DEEPSPEED, MEGATRON, (*FILE, DEEPSPEED[-1]))
    off = math.inf

    def recognises(self, document: Document) -> bool:
        return super().recognises(document) and not document.shows("per_device_train_batch_size")

    def read(self, document: Document, version: Version | None) -> Imported:
        kind = document.get("distributed_type", default="DEEPSPEED" if document.has("deepspeed_config") else "NO")
        if kind == "MEGATRON_LM":
            threshold = self.read_threshold(document, MEGATRON, 1.0, null="error")
            notes = default_note(document, MEGATRON, "Accelerate sets the threshold to 1.0 for Megatron-LM")
            return Imported(self.settings("global_norm", threshold), notes)
        if kind != "DEEPSPEED":
            raise SetElsewhereError(
                f"{document.name}: with distributed_type {kind!r}, the training script passes the threshold to "
                "accelerator.clip_grad_norm_.",
                "Write a clip configuration, with the max_norm of this call as the threshold.",
            )
        if not document.get(*FILE):
            return self._deepspeed(document, DEEPSPEED)
        if not document.has(*FILE, DEEPSPEED[-1]):
            raise document.wrong(FILE, NO_CLIP)
        return self._deepspeed(document, (*FILE, DEEPSPEED[-1]))

    def _deepspeed(self, document: Document, keys: tuple[str, ...]) -> Imported:
        threshold, notes = document.get(*keys), []
        if threshold == 0 and keys == DEEPSPEED:
            remedy = f"Set {infinity(document.kind)} to clip nothing."
            raise document.wrong(DEEPSPEED, f"with 0, DeepSpeed's own default applies. {remedy}")
        if threshold is None and keys != DEEPSPEED:
            raise document.wrong(keys, "training fails with null. Set 0 to clip nothing.")
        if threshold in (None, "auto"):
            threshold = 1.0
            notes.append(
                "gradient_clipping is auto or not set. Accelerate then uses 1.0. With Hugging Face's Trainer, the "
                "threshold is max_grad_norm instead. If you use this Trainer, import the file that sets max_grad_norm."
            )
        else:
            threshold = self.read_threshold(document, keys)
        notes.append("Under DeepSpeed, accelerator.clip_grad_norm_ ignores max_norm and does not clip.")
        not_finite = deepspeed.not_finite(document, threshold, *keys[:-1])
        return Imported(self.settings("global_norm", threshold), notes, **not_finite)

    def write(self, settings: Settings, version: Version) -> Any:
        return {"distributed_type": "DEEPSPEED", **super().write(settings, version)}
