"""Accelerate's YAML, where DeepSpeed or Megatron-LM clips; else the training script does."""

from __future__ import annotations

import math
from typing import Any

from packaging.version import Version

from ...errors import ConfigError
from ..documents import Document
from ..schema import Settings
from .base import Format, Imported, Key, global_norm, holds, plain_threshold, threshold

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
        Key(
            "deepspeed_config.gradient_clipping",
            "",
            "auto",
            "the global norm, PyTorch's rule; auto: 1.0, or max_grad_norm under HF's Trainer; below 0: off",
        ),
        Key("deepspeed_config.gradient_clipping: 0", "", "", "is not handed on: DeepSpeed's default holds", "refused"),
        Key("deepspeed_config.deepspeed_config_file", "", "", "that file says it: import that", "refused"),
        Key(
            "megatron_lm_config.megatron_lm_gradient_clipping",
            "",
            "1.0",
            "the global norm, PyTorch's rule; 0 or less: off",
            "imported",
        ),
        Key("distributed_type: others", "", "", "the script clips, and no key says how", "refused"),
    )

    def recognises(self, document: Document) -> bool:
        own = ("compute_environment", "distributed_type", "deepspeed_config", "megatron_lm_config", "fsdp_config")
        return any(holds(document, key) for key in own) and not holds(document, "per_device_train_batch_size")

    def read(self, document: Document, version: Version | None) -> Imported:
        kind = document.get("distributed_type", default="DEEPSPEED" if holds(document, DEEPSPEED[0]) else "NO")
        if kind == "MEGATRON_LM":
            return self._megatron(document)
        if kind != "DEEPSPEED":
            raise ConfigError(
                f"{document.name}: distributed_type is {kind!r}, where Accelerate has no key for clipping and the "
                "script calls accelerator.clip_grad_norm_(parameters, max_norm); write a configuration with its "
                "max_norm as the threshold"
            )
        if file := document.get(DEEPSPEED[0], "deepspeed_config_file"):
            raise document.wrong(
                [DEEPSPEED[0], "deepspeed_config_file"],
                f"{file} says how DeepSpeed clips; import that, --from deepspeed",
            )
        return self._deepspeed(document)

    def _megatron(self, document: Document) -> Imported:
        notes = []
        if not holds(document, *MEGATRON):
            notes.append(f"{MEGATRON[1]} is not there, and Accelerate tells Megatron-LM to clip at 1.0 by default")
        limit = threshold(document, MEGATRON, 1.0, zero="off", negative="off", null="error")
        return Imported(global_norm(limit, "pytorch"), notes)

    def _deepspeed(self, document: Document) -> Imported:
        notes = []
        if document.get(*DEEPSPEED) in (None, "auto"):
            limit: float | None = 1.0
            notes.append(
                "gradient_clipping is not there or auto, and Accelerate makes 1.0 of it; under HF's Trainer it is "
                "max_grad_norm: import that instead"
            )
        elif document.get(*DEEPSPEED) == 0:
            raise document.wrong(
                DEEPSPEED,
                "it is 0, which Accelerate does not hand on: DeepSpeed then clips nothing before 0.19.3 and at 1.0 "
                "from then on; write .inf for off",
            )
        else:
            limit = threshold(document, DEEPSPEED, None, zero="off", negative="off")
        notes.append("accelerator.clip_grad_norm_ does not clip under DeepSpeed, whatever max_norm it is given")
        return Imported(global_norm(limit, "pytorch"), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        limit = plain_threshold(settings, self, rules=["global_norm"], family="pytorch", zero="off")
        return {
            "distributed_type": "DEEPSPEED",
            DEEPSPEED[0]: {DEEPSPEED[1]: math.inf if limit is None else limit},
        }
