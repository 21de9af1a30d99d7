"""The format of Hugging Face's TrainingArguments: `max_grad_norm`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from packaging.version import Version

from ....documents import Document
from ...base import Format, FormatKey, Imported, default_note, imported_key, paths, rejected_key, words

TRAINING_ARGUMENTS = words("""
    output_dir per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps num_train_epochs
    lr_scheduler_type warmup_ratio warmup_steps logging_steps logging_dir save_steps save_strategy save_total_limit
    evaluation_strategy eval_steps weight_decay adam_beta1 adam_epsilon report_to optim do_train do_eval
    remove_unused_columns fp16 bf16
""")
"""Fields of TrainingArguments that Hugging Face and PaddleNLP share."""

NULL_FAILS = Version("5.0.0.dev0")
"""From this version on, training fails with null. In earlier versions, null switches clipping off."""

WITHOUT_CLIPPING = 'Write a clip configuration with rule = "none".'
PRIVATE = ("noise_multiplier", "target_epsilon")


class HuggingFace(Format):
    name, title = "hf", "Hugging Face's TrainingArguments"
    kinds: ClassVar[tuple[str, ...]] = ("yaml", "json")
    source = "transformers: src/transformers/training_args.py, src/transformers/trainer.py"
    newest = "5.23.0"
    instead = (
        "pass `ClipCallback(clip)` of `unified_clip.integrations.transformers_callback` to the Trainer, with "
        "max_grad_norm: 0"
    )
    own_keys = paths("""
        accelerator_config activation_checkpointing dataloader_pin_memory ddp_find_unused_parameters deepspeed
        eval_strategy fsdp_transformer_layer_cls_to_wrap gradient_checkpointing push_to_hub tf32 torch_compile
    """)
    clip_keys = paths("max_grad_norm")
    foreign_keys = paths("deepspeed.gradient_clipping")
    vocabulary = TRAINING_ARGUMENTS
    optimizer_key: ClassVar[str] = "optim"
    needs_version = "max_grad_norm = null switches clipping off in transformers 4, and fails in 5"
    keys: ClassVar[Sequence[FormatKey]] = (
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
        optimizer = str(document.get(self.optimizer_key))
        if optimizer in ("lomo", "adalomo") or optimizer.endswith("_layerwise"):
            problem = f"{optimizer} steps during backward, before Trainer clips. {WITHOUT_CLIPPING}"
            raise document.wrong([self.optimizer_key], problem)
        if optimizer == "adafactor":
            notes.append("adafactor also clips its update by root mean square. That is not imported.")
        return Imported(self.settings("global_norm", threshold), notes)
