"""PaddleNLP's and PaddleFormers' TrainingArguments, as JSON or YAML: `max_grad_norm`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ..documents import Document
from ..schema import Settings
from .base import TRAINING_ARGUMENTS, Format, Imported, Key, finite, global_norm, holds, plain_threshold, threshold

KEY = "max_grad_norm"
OWN = {
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "pipeline_parallel_config",
    "sep_parallel_degree",
    "sharding",
    "sharding_parallel_degree",
    "sharding_parallel_config",
    "unified_checkpoint",
}
"""Keys that HF's TrainingArguments, which have `max_grad_norm` too, do not have."""

PROMPT = f"PaddleNLP's prompt_trainer does not test whether {KEY} is above 0: with 0 it makes all gradients 0"


class PaddleNLP(Format):
    name = "paddlenlp"
    title = "PaddleNLP, PaddleFormers"
    kinds = ("json", "yaml")
    source = "paddlenlp/trainer/trainer.py, paddleformers/trainer/trainer.py"
    newest = "2.8.1"
    clip_keys = ((KEY,),)
    vocabulary = TRAINING_ARGUMENTS
    keys = (Key(KEY, "", "1.0", "the global norm, Paddle's rule; 0 or less: off, but not in prompt_trainer"),)

    def recognises(self, document: Document) -> bool:
        return isinstance(document.data, dict) and not OWN.isdisjoint(document.data)

    def read(self, document: Document, version: Version | None) -> Imported:
        notes = []
        if not holds(document, KEY):
            notes.append(f"The file does not set {KEY}. By default, PaddleNLP clips at 1.0.")
        limit = finite(document, [KEY], threshold(document, [KEY], 1.0, zero="off", negative="off", null="error"))
        if limit is None:
            notes.append(PROMPT)
        return Imported(global_norm(limit, "paddle"), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        limit = plain_threshold(settings, self, rules=["global_norm"], family="paddle", zero="off")
        return {KEY: limit or 0.0}
