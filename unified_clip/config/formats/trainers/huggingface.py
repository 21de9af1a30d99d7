"""Hugging Face's formats: `max_grad_norm` of TrainingArguments, Accelerate's YAML for DeepSpeed and Megatron-LM."""

from __future__ import annotations

import math
from typing import Any

from packaging.version import Version

from ....errors import ConfigError
from ...documents import Document
from ...schema import Settings
from ..base import Format, FormatKey, Imported, default_note, imported_key, paths, rejected_key, words

TRAINING_ARGUMENTS = words("""
    output_dir per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps num_train_epochs
    lr_scheduler_type warmup_ratio warmup_steps logging_steps logging_dir save_steps save_strategy save_total_limit
    evaluation_strategy eval_steps weight_decay adam_beta1 adam_epsilon report_to optim do_train do_eval
    remove_unused_columns fp16 bf16
""")
"""Fields of TrainingArguments that Hugging Face and PaddleNLP share."""

NULL_FAILS = Version("5.0.0.dev0")
"""From this version on, training fails with null. In earlier versions, null switches clipping off."""

PRIVATE = ("noise_multiplier", "target_epsilon")


class HuggingFace(Format):
    name, title = "hf", "Hugging Face's TrainingArguments"
    kinds = ("yaml", "json")
    source = "transformers: src/transformers/training_args.py, src/transformers/trainer.py"
    newest = "5.23.0"
    instead = "`ClipCallback`"
    own_keys = paths("""
        accelerator_config activation_checkpointing dataloader_pin_memory ddp_find_unused_parameters deepspeed
        eval_strategy fsdp gradient_checkpointing push_to_hub tf32 torch_compile
    """)
    clip_keys = paths("max_grad_norm")
    foreign_keys = paths("deepspeed.gradient_clipping")
    vocabulary = TRAINING_ARGUMENTS
    needs_version = "max_grad_norm = null switches clipping off in transformers 4, and fails in 5"
    keys = (
        FormatKey("max_grad_norm", "the global norm, PyTorch's rule; 0 or less: off", "1.0"),
        imported_key("max_grad_norm: null", "off", versions="below 5"),
        rejected_key("max_grad_norm: null", "training fails: null is compared with 0", versions="5 and later"),
        rejected_key(", ".join(PRIVATE), "of opacus: max_grad_norm is then per example (privacy)"),
        rejected_key("deepspeed", "DeepSpeed clips, by its own configuration: import that"),
        imported_key("deepspeed: {gradient_clipping: auto}", "DeepSpeed clips at max_grad_norm"),
        rejected_key("optim: lomo, adalomo, ..._layerwise", "steps in backward; Trainer clips later, without effect"),
        imported_key("optim: adafactor", "clips its update by its RMS too; not imported, with a note"),
    )

    def read(self, document: Document, version: Version | None) -> Imported:
        for name in PRIVATE:
            if document.get(name) is not None:
                raise document.wrong(
                    [name],
                    "opacus clips the gradient of each example, which is not supported. Leave the clipping to opacus.",
                )
        max_norm = document.get("max_grad_norm", default=1.0)
        if max_norm is None and self.require_version(version, document) >= NULL_FAILS:
            raise document.wrong(
                ["max_grad_norm"], "training fails with null since transformers 5. Set 0 to clip nothing."
            )
        notes = default_note(document, ["max_grad_norm"], "Trainer clips at 1.0")
        threshold = self.read_threshold(document, ["max_grad_norm"], 1.0)
        if deepspeed := document.get("deepspeed"):
            if not isinstance(deepspeed, dict) or deepspeed.get("gradient_clipping") != "auto":
                advice = 'Import that configuration, or set gradient_clipping = "auto" in it.'
                raise document.wrong(["deepspeed"], f"DeepSpeed clips by its own configuration. {advice}")
            notes.append("DeepSpeed clips, and takes gradient_clipping from max_grad_norm.")
        optimizer = str(document.get("optim"))
        if optimizer in ("lomo", "adalomo") or optimizer.endswith("_layerwise"):
            advice = 'Write a clip configuration with rule = "none".'
            raise document.wrong(["optim"], f"{optimizer} steps during backward, before Trainer clips. {advice}")
        if optimizer == "adafactor":
            notes.append("adafactor also clips its update by root mean square. That is not imported.")
        return Imported(self.settings("global_norm", threshold), notes)


DEEPSPEED = ("deepspeed_config", "gradient_clipping")
MEGATRON = ("megatron_lm_config", "megatron_lm_gradient_clipping")
FILE = ("deepspeed_config", "deepspeed_config_file")


class Accelerate(Format):
    """Accelerate's YAML. It sets a clip for DeepSpeed and Megatron-LM only; otherwise the script clips."""

    name, title = "accelerate", "Accelerate"
    kinds = ("yaml", "json")
    source = "accelerate: src/accelerate/utils/dataclasses.py, src/accelerate/accelerator.py"
    newest = "1.15.0"
    instead = "`clip_` of `unified_clip.integrations.accelerate_clip`"
    own_keys = paths("compute_environment distributed_type deepspeed_config megatron_lm_config fsdp_config")
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
            raise ConfigError(
                f"{document.name}: with distributed_type {kind!r}, the script calls accelerator.clip_grad_norm_. Write "
                "a clip configuration with its max_norm as the threshold."
            )
        if file := document.get(*FILE):
            raise document.wrong(FILE, f"DeepSpeed reads {file} instead. Import that file with --from deepspeed.")
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
