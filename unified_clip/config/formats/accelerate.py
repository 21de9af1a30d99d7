"""Accelerate's YAML, for DeepSpeed and Megatron-LM. In other modes the training script clips."""

from __future__ import annotations

import math
from typing import Any

from packaging.version import Version

from ...errors import ConfigError
from ..documents import Document
from ..schema import Settings
from .base import Format, FormatKey, Imported, exported_threshold, global_norm_settings, has_key, read_threshold

DEEPSPEED = ("deepspeed_config", "gradient_clipping")
MEGATRON = ("megatron_lm_config", "megatron_lm_gradient_clipping")


class Accelerate(Format):
    name = "accelerate"
    title = "Accelerate"
    kinds = ("yaml", "json")
    source = "accelerate: src/accelerate/utils/dataclasses.py, src/accelerate/accelerator.py"
    newest = "1.15.0"
    instead = "`clip_` of `unified_clip.integrations.accelerate_clip`"
    clip_keys = (DEEPSPEED, MEGATRON)
    keys = (
        FormatKey(
            "deepspeed_config.gradient_clipping",
            "",
            "auto",
            "the global norm, PyTorch's rule; auto: 1.0, or max_grad_norm under HF's Trainer; below 0: off",
        ),
        FormatKey(
            "deepspeed_config.gradient_clipping: 0", "", "", "is not passed on: DeepSpeed's default applies", "rejected"
        ),
        FormatKey(
            "deepspeed_config.deepspeed_config_file", "", "", "DeepSpeed's file sets it: import that file", "rejected"
        ),
        FormatKey(
            "megatron_lm_config.megatron_lm_gradient_clipping",
            "",
            "1.0",
            "the global norm, PyTorch's rule; 0 or less: off",
            "imported",
        ),
        FormatKey("distributed_type: others", "", "", "the script clips; no key sets it", "rejected"),
    )

    def recognises(self, document: Document) -> bool:
        own = ("compute_environment", "distributed_type", "deepspeed_config", "megatron_lm_config", "fsdp_config")
        return any(has_key(document, key) for key in own) and not has_key(document, "per_device_train_batch_size")

    def read(self, document: Document, version: Version | None) -> Imported:
        kind = document.get("distributed_type", default="DEEPSPEED" if has_key(document, DEEPSPEED[0]) else "NO")
        if kind == "MEGATRON_LM":
            return self._megatron(document)
        if kind != "DEEPSPEED":
            raise ConfigError(
                f"{document.name}: with distributed_type {kind!r}, Accelerate has no clip key. The script calls "
                "accelerator.clip_grad_norm_(parameters, max_norm). Write a clip configuration with this max_norm as "
                "the threshold."
            )
        if file := document.get(DEEPSPEED[0], "deepspeed_config_file"):
            raise document.wrong(
                [DEEPSPEED[0], "deepspeed_config_file"],
                f"DeepSpeed reads its clip keys in {file}. Import that file with --from deepspeed.",
            )
        return self._deepspeed(document)

    def _megatron(self, document: Document) -> Imported:
        notes = []
        if not has_key(document, *MEGATRON):
            notes.append(f"The file does not set {MEGATRON[1]}. By default, Accelerate sets 1.0 for Megatron-LM.")
        limit = read_threshold(document, MEGATRON, 1.0, zero="off", negative="off", null="error")
        return Imported(global_norm_settings(limit, "pytorch"), notes)

    def _deepspeed(self, document: Document) -> Imported:
        notes = []
        if document.get(*DEEPSPEED) in (None, "auto"):
            limit: float | None = 1.0
            notes.append(
                "The file does not set gradient_clipping, or sets auto. Accelerate then uses 1.0. Under HF's Trainer, "
                "max_grad_norm applies: import that instead."
            )
        elif document.get(*DEEPSPEED) == 0:
            raise document.wrong(
                DEEPSPEED,
                "Accelerate does not pass 0 on. DeepSpeed then clips nothing before 0.19.3, and at 1.0 since. Set "
                ".inf to clip nothing.",
            )
        else:
            limit = read_threshold(document, DEEPSPEED, None, zero="off", negative="off")
        notes.append("Under DeepSpeed, accelerator.clip_grad_norm_ ignores max_norm and does not clip.")
        return Imported(global_norm_settings(limit, "pytorch"), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        limit = exported_threshold(settings, self, rules=["global_norm"], family="pytorch", zero="off")
        return {
            "distributed_type": "DEEPSPEED",
            DEEPSPEED[0]: {DEEPSPEED[1]: math.inf if limit is None else limit},
        }
