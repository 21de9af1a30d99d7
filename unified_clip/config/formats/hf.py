"""Hugging Face's `TrainingArguments`: `max_grad_norm`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ..documents import Document
from ..schema import Settings
from .base import (
    TRAINING_ARGUMENTS,
    Format,
    FormatKey,
    Imported,
    exported_threshold,
    global_norm_settings,
    has_key,
    read_threshold,
)

NULL_FAILS = Version("5.0.0.dev0")
"""Since this version training fails with null. Earlier, null switched clipping off."""

UNIQUE_KEYS = (
    "accelerator_config",
    "activation_checkpointing",
    "dataloader_pin_memory",
    "ddp_find_unused_parameters",
    "deepspeed",
    "eval_strategy",
    "fsdp",
    "gradient_checkpointing",
    "push_to_hub",
    "tf32",
    "torch_compile",
)
"""Keys that PaddleNLP and other trainers did not copy from TrainingArguments."""

PRIVATE = ("noise_multiplier", "target_epsilon")

LAYERWISE = "optim: lomo, adalomo, ..._layerwise"


class HuggingFace(Format):
    name = "hf"
    title = "Hugging Face's TrainingArguments"
    kinds = ("yaml", "json")
    source = "transformers: src/transformers/training_args.py, src/transformers/trainer.py"
    newest = "5.23.0"
    instead = "`ClipCallback`"
    clip_keys = (("max_grad_norm",),)
    foreign_keys = (("deepspeed", "gradient_clipping"),)
    vocabulary = TRAINING_ARGUMENTS
    needs_version = "max_grad_norm = null switches clipping off in transformers 4, and fails in 5"
    keys = (
        FormatKey("max_grad_norm", "", "1.0", "the global norm, PyTorch's rule; 0 or less: off"),
        FormatKey("max_grad_norm: null", "below 5", "", "off", "imported"),
        FormatKey("max_grad_norm: null", "5 and later", "", "training fails: null is compared with 0", "rejected"),
        FormatKey(", ".join(PRIVATE), "", "", "of opacus: max_grad_norm is then per example (privacy)", "rejected"),
        FormatKey("deepspeed", "", "", "DeepSpeed clips, by its own configuration: import that", "rejected"),
        FormatKey("deepspeed: {gradient_clipping: auto}", "", "", "DeepSpeed clips at max_grad_norm", "imported"),
        FormatKey(
            LAYERWISE,
            "",
            "",
            "steps during backward, before Trainer clips; clipping has no effect",
            "rejected",
        ),
        FormatKey("optim: adafactor", "", "", "clips its update by its RMS too; not imported, with a note", "imported"),
    )

    def recognises(self, document: Document) -> bool:
        return any(has_key(document, key) for key in UNIQUE_KEYS)

    def read(self, document: Document, version: Version | None) -> Imported:
        notes = []
        for name in PRIVATE:
            if document.get(name) is not None:
                raise document.wrong(
                    [name],
                    "this is a key of opacus. Its max_grad_norm clips the gradient of each example, which is not "
                    "supported.",
                )
        max_norm = document.get("max_grad_norm", default=1.0)
        if max_norm is None and self.version(version, document) >= NULL_FAILS:
            raise document.wrong(["max_grad_norm"], "training fails with null since 5. Set 0 to clip nothing.")
        if not has_key(document, "max_grad_norm"):
            notes.append("The file does not set max_grad_norm. By default, Trainer clips at 1.0.")
        limit = read_threshold(document, ["max_grad_norm"], 1.0, zero="off", negative="off")
        if deepspeed := document.get("deepspeed"):
            if not isinstance(deepspeed, dict) or deepspeed.get("gradient_clipping") != "auto":
                raise document.wrong(
                    ["deepspeed"],
                    "DeepSpeed clips by its own configuration. It uses max_grad_norm only with "
                    'gradient_clipping = "auto". Import DeepSpeed\'s configuration.',
                )
            notes.append("DeepSpeed clips, and takes gradient_clipping from max_grad_norm.")
        optimizer = str(document.get("optim"))
        if optimizer in ("lomo", "adalomo") or optimizer.endswith("_layerwise"):
            raise document.wrong(
                ["optim"],
                f"{optimizer} steps during backward, before Trainer clips. max_grad_norm has no effect. Write a "
                'clip configuration with rule = "none".',
            )
        if optimizer == "adafactor":
            notes.append(
                "adafactor also clips its update by its RMS. That does not clip gradients. It is not imported."
            )
        return Imported(global_norm_settings(limit, "pytorch"), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        limit = exported_threshold(settings, self, rules=["global_norm"], family="pytorch", zero="off")
        return {"max_grad_norm": limit or 0.0}
