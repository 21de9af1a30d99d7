"""DeepSpeed's JSON: `gradient_clipping`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ..documents import Document
from ..schema import Settings
from .base import Format, FormatKey, Imported, exported_threshold, global_norm_settings, read_threshold

CLIPS_BY_DEFAULT = Version("0.19.3")
"""Earlier versions clip only if the file sets the key."""

FP16 = "With fp16, DeepSpeed skips steps whose norm is not finite."
BF16_CHECKED = "With bf16.check_grad_overflow, DeepSpeed skips steps whose norm is not finite."
BF16 = (
    "With bf16, DeepSpeed skips steps whose norm is not finite only if bf16.check_grad_overflow is true. It is false "
    "by default, and some versions do not have it. Otherwise, such a norm leaves gradients unchanged."
)


class DeepSpeed(Format):
    name = "deepspeed"
    title = "DeepSpeed"
    kinds = ("json",)
    source = "deepspeed/runtime/constants.py, deepspeed/runtime/zero/stage_1_and_2.py"
    newest = "0.19.6"
    clip_keys = (("gradient_clipping",),)
    foreign_keys = (("optimizer", "params", "max_grad_norm"),)
    vocabulary = frozenset(
        {
            "train_batch_size",
            "optimizer",
            "scheduler",
            "fp16",
            "bf16",
            "bfloat16",
            "amp",
            "steps_per_print",
            "wall_clock_breakdown",
            "activation_checkpointing",
        }
    )
    needs_version = "without gradient_clipping, DeepSpeed clips nothing before 0.19.3, and at 1.0 since"
    keys = (
        FormatKey("gradient_clipping", "below 0.19.3", "0.0", "the global norm, PyTorch's rule; 0 or less: off"),
        FormatKey("gradient_clipping", "0.19.3 and later", "1.0", "the same"),
        FormatKey("gradient_clipping: auto", "", "", "HF's max_grad_norm applies: import that", "rejected"),
        FormatKey("gradient_clipping: null", "", "", "training fails: null is compared with 0", "rejected"),
        FormatKey("optimizer.params.max_grad_norm", "", "", "DeepSpeed rejects it", "rejected"),
    )

    def recognises(self, document: Document) -> bool:
        known = {"gradient_clipping", "zero_optimization", "train_micro_batch_size_per_gpu"}
        return document.kind == "json" and isinstance(document.data, dict) and bool(known & document.data.keys())

    def read(self, document: Document, version: Version | None) -> Imported:
        notes = []
        if document.get("gradient_clipping") == "auto":
            raise document.wrong(
                ["gradient_clipping"], "'auto' stands for max_grad_norm of HF's TrainingArguments. Import those."
            )
        if document.get("optimizer", "params", "max_grad_norm") is not None:
            raise document.wrong(
                ["optimizer", "params", "max_grad_norm"], "DeepSpeed rejects this key. Set gradient_clipping instead."
            )
        if document.get("gradient_clipping", default=0.0) is None:
            raise document.wrong(["gradient_clipping"], "training fails with null. Set 0 to clip nothing.")
        default = 0.0
        if "gradient_clipping" not in document.data and self.version(version, document) >= CLIPS_BY_DEFAULT:
            default = 1.0
            notes.append("The file does not set gradient_clipping. By default, DeepSpeed clips at 1.0 since 0.19.3.")
        limit = read_threshold(document, ["gradient_clipping"], default, zero="off", negative="off")
        if limit is not None:
            notes += _skips(document)
        return Imported(global_norm_settings(limit, "pytorch"), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        limit = exported_threshold(settings, self, rules=["global_norm"], family="pytorch", zero="off")
        return {"gradient_clipping": limit or 0.0}


def _skips(document: Document) -> list[str]:
    """Return notes on steps whose norm is not finite, for the precision in the file, or for both precisions."""
    if document.get("fp16", "enabled") is True:
        return [FP16]
    for name in ("bf16", "bfloat16"):
        if document.get(name, "enabled") is True:
            return [BF16_CHECKED if document.get(name, "check_grad_overflow") is True else BF16]
    return [FP16, BF16]
