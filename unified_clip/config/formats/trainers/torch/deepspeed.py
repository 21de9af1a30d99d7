"""The JSON format of DeepSpeed, with the key `gradient_clipping`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ....documents import Document
from ...base import Format, Imported, SetElsewhereError, paths, words

KEY = "gradient_clipping"
ARGUMENT = ("optimizer", "params", "max_grad_norm")

CLIPS_BY_DEFAULT = Version("0.19.3")

FP16 = "With fp16, DeepSpeed skips a step if the norm is not finite."
BF16_CHECKED = "With bf16.check_grad_overflow, DeepSpeed skips a step if the norm is not finite."
BF16 = (
    "With bf16 and without bf16.check_grad_overflow, DeepSpeed makes a step without a clip if the norm is not finite."
)
UNSET = (
    f"{FP16} With bf16, DeepSpeed skips the step only if bf16.check_grad_overflow is true. In all other cases, "
    "DeepSpeed makes the step without a clip."
)


class DeepSpeed(Format):
    name, title = "deepspeed", "DeepSpeed"
    kinds = ("json",)
    source = "deepspeed/runtime/constants.py, deepspeed/runtime/zero/stage_1_and_2.py"
    newest = "0.19.6"
    own_keys = paths("gradient_clipping zero_optimization train_micro_batch_size_per_gpu")
    clip_keys = paths(KEY)
    foreign_keys = (ARGUMENT,)
    vocabulary = words("""
        train_batch_size optimizer scheduler fp16 bf16 bfloat16 amp steps_per_print wall_clock_breakdown
        activation_checkpointing
    """)
    not_finite = UNSET
    needs_version = (
        "if a file does not set gradient_clipping, DeepSpeed clips nothing before 0.19.3, and at 1.0 since 0.19.3"
    )

    def read(self, document: Document, version: Version | None) -> Imported:
        default, notes = 0.0, []
        if document.get(KEY) == "auto":
            problem = "with 'auto', the threshold is max_grad_norm of Hugging Face's TrainingArguments."
            advice = (
                "If the training script sets max_grad_norm, write a clip configuration with this value. If a file "
                "sets max_grad_norm, import that file: unified-clip config import FILE --from hf"
            )
            raise SetElsewhereError(str(document.wrong([KEY], problem)), advice)
        if document.get(*ARGUMENT) is not None:
            raise document.wrong(ARGUMENT, "DeepSpeed rejects this key. Set gradient_clipping instead.")
        if document.get(KEY, default=0.0) is None:
            raise document.wrong([KEY], "training fails with null. Set 0 to clip nothing.")
        if not document.has(KEY) and self.require_version(version, document, KEY) >= CLIPS_BY_DEFAULT:
            default = 1.0
            notes.append("The file does not set gradient_clipping. By default, DeepSpeed clips at 1.0 since 0.19.3.")
        threshold = self.read_threshold(document, [KEY], default)
        return Imported(self.settings("global_norm", threshold), notes, **not_finite(document, threshold))


def not_finite(document: Document, threshold: float | None, *table: str) -> dict[str, Any]:
    """Return the fields `not_finite` and `acts_as` of `Imported`.

    table: The path of DeepSpeed's settings in the document.
    """
    if threshold is None:
        return {}
    if document.get(*table, "fp16", "enabled") is True:
        return {"not_finite": FP16, "acts_as": "skip"}
    for name in ("bf16", "bfloat16"):
        if document.get(*table, name, "enabled") is True:
            is_checked = document.get(*table, name, "check_grad_overflow") is True
            return {"not_finite": BF16_CHECKED, "acts_as": "skip"} if is_checked else {"not_finite": BF16}
    return {"not_finite": UNSET}
