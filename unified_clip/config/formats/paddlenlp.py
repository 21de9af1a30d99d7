"""PaddleNLP's and PaddleFormers' TrainingArguments, as JSON or YAML: `max_grad_norm`."""

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
    require_finite,
)

KEY = "max_grad_norm"
UNIQUE_KEYS = {
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "pipeline_parallel_config",
    "sep_parallel_degree",
    "sharding",
    "sharding_parallel_degree",
    "sharding_parallel_config",
    "unified_checkpoint",
}
"""Keys that HF's TrainingArguments do not have. They have `max_grad_norm` too."""

PROMPT = f"PaddleNLP's prompt_trainer does not check that {KEY} is above 0. With 0, it makes all gradients 0."


class PaddleNLP(Format):
    name = "paddlenlp"
    title = "PaddleNLP, PaddleFormers"
    kinds = ("json", "yaml")
    source = "paddlenlp/trainer/trainer.py, paddleformers/trainer/trainer.py"
    newest = "2.8.1"
    clip_keys = ((KEY,),)
    vocabulary = TRAINING_ARGUMENTS
    keys = (FormatKey(KEY, "", "1.0", "the global norm, Paddle's rule; 0 or less: off, but not in prompt_trainer"),)

    def recognises(self, document: Document) -> bool:
        return isinstance(document.data, dict) and not UNIQUE_KEYS.isdisjoint(document.data)

    def read(self, document: Document, version: Version | None) -> Imported:
        notes = []
        if not has_key(document, KEY):
            notes.append(f"The file does not set {KEY}. By default, PaddleNLP clips at 1.0.")
        limit = require_finite(
            document, [KEY], read_threshold(document, [KEY], 1.0, zero="off", negative="off", null="error")
        )
        if limit is None:
            notes.append(PROMPT)
        return Imported(global_norm_settings(limit, "paddle"), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        limit = exported_threshold(settings, self, rules=["global_norm"], family="paddle", zero="off")
        return {KEY: limit or 0.0}
