"""The JSON and YAML format of PaddleNLP and PaddleFormers, with the key `max_grad_norm`."""

from __future__ import annotations

from packaging.version import Version

from ....documents import Document
from ...base import AS_PADDLE, Format, Imported, default_note, paths
from ..huggingface.training_arguments import TRAINING_ARGUMENTS


class PaddleNLP(Format):
    name, title = "paddlenlp", "PaddleNLP, PaddleFormers"
    kinds = ("json", "yaml")
    source = "paddlenlp/trainer/trainer.py, paddleformers/trainer/trainer.py"
    newest = "2.8.1"
    instead = AS_PADDLE
    own_keys = paths("""
        tensor_parallel_degree pipeline_parallel_degree pipeline_parallel_config sep_parallel_degree sharding
        sharding_parallel_degree sharding_parallel_config unified_checkpoint
    """)
    clip_keys = paths("max_grad_norm")
    vocabulary = TRAINING_ARGUMENTS
    family = "paddle"

    def recognises(self, document: Document) -> bool:
        """Require a second key, because files of other trainers can also have a key such as `sharding`."""
        return super().recognises(document) and not (self.vocabulary | {"max_grad_norm"}).isdisjoint(document.data)

    def read(self, document: Document, version: Version | None) -> Imported:
        notes = default_note(document, ["max_grad_norm"], "PaddleNLP clips at 1.0")
        threshold = self.read_threshold(document, ["max_grad_norm"], 1.0, null="error", infinite="error")
        if threshold is None:
            notes.append("In PaddleNLP's prompt_trainer, a max_grad_norm of 0 makes all gradients 0.")
        return Imported(self.settings("global_norm", threshold), notes)
