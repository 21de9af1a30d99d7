"""Accelerate's YAML format: the clip keys of DeepSpeed and Megatron-LM."""

from __future__ import annotations

import math
from typing import Any

from packaging.version import Version

from ....documents import Document
from ....schema import Settings
from ...base import Format, FormatKey, Imported, SetElsewhereError, default_note, imported_key, paths, rejected_key

DEEPSPEED = ("deepspeed_config", "gradient_clipping")
MEGATRON = ("megatron_lm_config", "megatron_lm_gradient_clipping")
FILE = ("deepspeed_config", "deepspeed_config_file")


class Accelerate(Format):
    """Accelerate's YAML. It sets a clip for DeepSpeed and Megatron-LM only; otherwise the script clips."""

    name, title = "accelerate", "Accelerate"
    kinds = ("yaml", "json")
    source = "accelerate: src/accelerate/utils/dataclasses.py, src/accelerate/accelerator.py"
    newest = "1.15.0"
    instead = "call `clip_(accelerator, clip, model.named_parameters())` of `unified_clip.integrations.accelerate_clip`"
    own_keys = paths("compute_environment distributed_type deepspeed_config megatron_lm_config")
    clip_keys = (DEEPSPEED, MEGATRON)
    off = math.inf
    keys = (
        FormatKey(
            ".".join(DEEPSPEED),
            "the global norm, PyTorch's rule; auto: 1.0, or max_grad_norm under HF's Trainer; below 0: off",
            "auto",
        ),
        rejected_key("deepspeed_config.gradient_clipping: 0", "is not passed on: DeepSpeed's default applies"),
        rejected_key(".".join(FILE), "DeepSpeed's file sets it: import that file"),
        imported_key(".".join(MEGATRON), "the global norm, PyTorch's rule; 0 or less: off", "1.0"),
        rejected_key("distributed_type: others", "the script clips; no key sets it"),
    )

    def recognises(self, document: Document) -> bool:
        return super().recognises(document) and not document.has("per_device_train_batch_size")

    def read(self, document: Document, version: Version | None) -> Imported:
        kind = document.get("distributed_type", default="DEEPSPEED" if document.has("deepspeed_config") else "NO")
        if kind == "MEGATRON_LM":
            threshold = self.read_threshold(document, MEGATRON, 1.0, null="error")
            notes = default_note(document, MEGATRON, "Accelerate sets 1.0 for Megatron-LM")
            return Imported(self.settings("global_norm", threshold), notes)
        if kind != "DEEPSPEED":
            raise SetElsewhereError(
                f"{document.name}: with distributed_type {kind!r}, the script calls accelerator.clip_grad_norm_. Write "
                "a clip configuration with its max_norm as the threshold."
            )
        if file := document.get(*FILE):
            message = f"DeepSpeed reads {file} instead. Import that file with --from deepspeed."
            raise SetElsewhereError(str(document.wrong(FILE, message)))
        return self._deepspeed(document)

    def _deepspeed(self, document: Document) -> Imported:
        threshold, notes = document.get(*DEEPSPEED), []
        if threshold == 0:
            raise document.wrong(DEEPSPEED, "with 0, DeepSpeed's own default applies. Set .inf to clip nothing.")
        if threshold in (None, "auto"):
            threshold = 1.0
            notes.append(
                "The file does not set gradient_clipping, or sets auto. Accelerate then uses 1.0. Under HF's Trainer, "
                "max_grad_norm applies: import that instead."
            )
        else:
            threshold = self.read_threshold(document, DEEPSPEED)
        notes.append("Under DeepSpeed, accelerator.clip_grad_norm_ ignores max_norm and does not clip.")
        return Imported(self.settings("global_norm", threshold), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        return {"distributed_type": "DEEPSPEED", **super().write(settings, version)}
