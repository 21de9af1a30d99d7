"""The format of Hugging Face's TrainingArguments, with the key `max_grad_norm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from packaging.version import Version

from ....documents import Document
from ....documents.inheritance.named_file import NamedFile
from ...base import FP16, Format, Imported, default_note, paths, words
from ...naming import name_format
from ..torch import deepspeed

TRAINING_ARGUMENTS = words("""
    output_dir per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps num_train_epochs
    lr_scheduler_type warmup_ratio warmup_steps logging_steps logging_dir save_steps save_strategy save_total_limit
    evaluation_strategy eval_steps weight_decay adam_beta1 adam_epsilon report_to optim do_train do_eval
    remove_unused_columns fp16 bf16
""")
"""Fields of TrainingArguments that Hugging Face and PaddleNLP share."""

NO_TRAINER = ("checkpointing_steps", "with_tracking")
"""Scripts with these arguments call Accelerate instead of Trainer, and have a different default of max_grad_norm."""

NULL_FAILS = Version("5.0.0.dev0")
"""Before this version, a max_grad_norm of null switches clipping off. Since then, training fails."""

NULL = "null switches clipping off in transformers 4, and makes training fail in 5. Set 0 to clip nothing."
WITHOUT_CLIPPING = 'Write a clip configuration with rule = "none".'

DEEPSPEED = ("deepspeed", "gradient_clipping")
AUTO = 'Set max_grad_norm to your threshold, and set "gradient_clipping": "auto".'
NO_CLIP = (
    "DeepSpeed's configuration does not set gradient_clipping. DeepSpeed then ignores max_grad_norm. DeepSpeed clips "
    "nothing before 0.19.3, and clips at 1.0 since 0.19.3."
)

UNDER_DEEPSPEED = "With DeepSpeed, the settings of DeepSpeed decide what happens if a norm is not finite."
PRIVATE = ("noise_multiplier", "target_epsilon")


class HuggingFace(Format):
    name, title = "hf", "Hugging Face's TrainingArguments"
    kinds: ClassVar[tuple[str, ...]] = ("yaml", "json")
    source = (
        "transformers: src/transformers/training_args.py, src/transformers/trainer.py, "
        "src/transformers/integrations/deepspeed.py"
    )
    newest = "5.23.0"
    instead = (
        "pass `ClipCallback(clip)` of `unified_clip.integrations.transformers_callback` to the Trainer, and set "
        "max_grad_norm to 0"
    )
    own_keys = paths("""
        accelerator_config dataloader_pin_memory ddp_find_unused_parameters deepspeed
        eval_strategy fsdp_transformer_layer_cls_to_wrap gradient_checkpointing push_to_hub tf32 torch_compile
    """)
    inheritance = NamedFile(
        ("deepspeed",),
        "Put DeepSpeed's configuration file at this path, or replace the path by the content of that file.",
    )
    is_yaml_11 = True
    clip_keys = paths("max_grad_norm")
    foreign_keys = paths("deepspeed.gradient_clipping")
    vocabulary = TRAINING_ARGUMENTS
    optimizer_key: ClassVar[str] = "optim"
    fp16: ClassVar[Mapping[str, Sequence[Any]]] = {"fp16": (True,)}
    not_finite = f"{FP16} {UNDER_DEEPSPEED}"

    def recognises(self, document: Document) -> bool:
        """Require a second key, because a model's configuration can have keys such as `gradient_checkpointing`."""
        if any(document.shows(key) for key in NO_TRAINER):
            return False
        return super().recognises(document) and not (self.vocabulary | {"max_grad_norm"}).isdisjoint(document.data)

    def read(self, document: Document, version: Version | None) -> Imported:
        for name in PRIVATE:
            if document.shows(name) and document.get(name) is not None:
                raise document.wrong(
                    [name],
                    "opacus clips the gradient of each example. This is not supported. Continue to clip with opacus.",
                )
        max_norm = document.get("max_grad_norm", default=1.0)
        if max_norm is None and version is None:
            advice = f"Or, if you use transformers 4.57.0, {name_format(f'{self.name}@4.57.0')}."
            raise document.wrong(["max_grad_norm"], f"{NULL} {advice}", "UC103")
        if max_norm is None and version is not None and version >= NULL_FAILS:
            raise document.wrong(
                ["max_grad_norm"], "since transformers 5, null makes training fail. Set 0 to clip nothing."
            )
        notes = default_note(document, ["max_grad_norm"], "Trainer clips at 1.0")
        threshold = self.read_threshold(document, ["max_grad_norm"], 1.0)
        if document.get("deepspeed"):
            notes.append(self._check_deepspeed(document, max_norm))
        optimizer = str(document.get(self.optimizer_key))
        if optimizer in ("lomo", "adalomo") or optimizer.endswith("_layerwise"):
            problem = f"{optimizer} updates parameters in the backward pass, before Trainer clips. {WITHOUT_CLIPPING}"
            raise document.wrong([self.optimizer_key], problem)
        if optimizer == "adafactor":
            notes.append("adafactor also clips its update by root mean square. This clip is not imported.")
        by_deepspeed = deepspeed.not_finite(document, threshold, "deepspeed") if document.get("deepspeed") else {}
        return Imported(self.settings("global_norm", threshold), notes, **by_deepspeed)

    def _check_deepspeed(self, document: Document, max_norm: Any) -> str:
        clip = document.get(*DEEPSPEED)
        if not document.has(*DEEPSPEED):
            raise document.wrong(DEEPSPEED[:1], f'{NO_CLIP} To clip at max_grad_norm, set "gradient_clipping": "auto".')
        if clip == "auto":
            return "DeepSpeed clips, and takes gradient_clipping from max_grad_norm."
        if clip != max_norm or isinstance(clip, bool):
            place = document.place(["max_grad_norm"]) if document.has("max_grad_norm") else "default"
            problem = f"Trainer rejects {clip!r:.60}, because max_grad_norm is {max_norm!r:.60} ({place})."
            raise document.wrong(DEEPSPEED, f"{problem} {AUTO}")
        return "DeepSpeed clips at gradient_clipping, which equals max_grad_norm."
