"""Hugging Face's `TrainingArguments`: `max_grad_norm`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ..documents import Document
from ..schema import Settings
from .base import TRAINING_ARGUMENTS, Format, Imported, Key, global_norm, holds, plain_threshold, threshold

NULL_FAILS = Version("5.0.0.dev0")
"""From then on null is compared with 0, which is an error; before it switched clipping off."""

ITS_OWN = (
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
"""Keys that no trainer has that took its names over, PaddleNLP's above all."""

PRIVATE = ("noise_multiplier", "target_epsilon")

STEPS_EARLY = "optim: lomo, adalomo, ..._layerwise"


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
    needs_version = "max_grad_norm is null, which switches clipping off in transformers 4 and is an error in 5"
    keys = (
        Key("max_grad_norm", "", "1.0", "the global norm, PyTorch's rule; 0 or less: off"),
        Key("max_grad_norm: null", "below 5", "", "off", "imported"),
        Key("max_grad_norm: null", "5 and later", "", "training fails: null is compared with 0", "refused"),
        Key(", ".join(PRIVATE), "", "", "of opacus: max_grad_norm is then for each example (privacy)", "refused"),
        Key("deepspeed", "", "", "DeepSpeed clips, by its own configuration: import that", "refused"),
        Key("deepspeed: {gradient_clipping: auto}", "", "", "DeepSpeed clips at max_grad_norm", "imported"),
        Key(
            STEPS_EARLY,
            "",
            "",
            "makes its steps during backward, before Trainer clips, which then does nothing",
            "refused",
        ),
        Key("optim: adafactor", "", "", "clips its update by its RMS too; that is not imported, but said", "imported"),
    )

    def recognises(self, document: Document) -> bool:
        return any(holds(document, key) for key in ITS_OWN)

    def read(self, document: Document, version: Version | None) -> Imported:
        notes = []
        for name in PRIVATE:
            if document.get(name) is not None:
                raise document.wrong(
                    [name],
                    "it is of opacus, whose max_grad_norm bounds the gradient of each example; that is no rule here",
                )
        given = document.get("max_grad_norm", default=1.0)
        if given is None and self.version(version, document) >= NULL_FAILS:
            raise document.wrong(["max_grad_norm"], "it is null, with which training fails since 5; write 0 for off")
        if not holds(document, "max_grad_norm"):
            notes.append("The file does not set max_grad_norm. By default, Trainer clips at 1.0.")
        limit = threshold(document, ["max_grad_norm"], 1.0, zero="off", negative="off")
        if deepspeed := document.get("deepspeed"):
            if not isinstance(deepspeed, dict) or deepspeed.get("gradient_clipping") != "auto":
                raise document.wrong(
                    ["deepspeed"],
                    "DeepSpeed clips by its own configuration, and max_grad_norm counts only where that says "
                    'gradient_clipping = "auto"; import DeepSpeed\'s configuration',
                )
            notes.append("DeepSpeed clips, and its gradient_clipping is filled in from max_grad_norm")
        optimizer = str(document.get("optim"))
        if optimizer in ("lomo", "adalomo") or optimizer.endswith("_layerwise"):
            raise document.wrong(
                ["optim"],
                f"{optimizer} makes its steps during backward, before Trainer clips, so max_grad_norm does nothing; "
                'write a configuration with rule = "none"',
            )
        if optimizer == "adafactor":
            notes.append(
                "optim is adafactor, which clips its update by its RMS too; that is no clipping of gradients, and was "
                "not imported"
            )
        return Imported(global_norm(limit, "pytorch"), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        limit = plain_threshold(settings, self, rules=["global_norm"], family="pytorch", zero="off")
        return {"max_grad_norm": limit or 0.0}
