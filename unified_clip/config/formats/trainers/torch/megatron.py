"""The formats of Megatron-LM, with `--clip-grad` in a shell script or `clip_grad` in YAML."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import Version

from .....errors import ConfigError
from ....documents import Document, Key, script_options
from ...base import Imported, OwnFormat, paths, words

TRAINING = ("clip-grad", "lr", "train-iters", "train-samples", "train-epochs")
"""A script that generates text or converts a checkpoint has none of these options."""

OPTIONS = words("""
    num-layers hidden-size num-attention-heads seq-length global-batch-size train-iters train-samples
    pipeline-model-parallel-size lr-decay-style lr-decay-iters lr-warmup-iters lr-warmup-fraction init-method-std
    adam-beta1 adam-beta2
""")


class Megatron(OwnFormat):
    name, title = "megatron", "Megatron-LM"
    kinds = ("args", "yaml")
    source = "megatron/training/arguments.py, megatron/core/optimizer/clip_grads.py"
    newest = "0.16.1"
    not_finite = "With fp16, Megatron-LM skips a step if the gradients are not finite."
    own_keys = paths("micro-batch-size tensor-model-parallel-size use-distributed-optimizer")
    clip_keys = paths("clip-grad clip_grad")
    vocabulary = words("""
        num-layers hidden-size num-attention-heads seq-length global-batch-size train-iters train-samples lr
        pipeline-model-parallel-size bf16 fp16 tokenizer-type lr-decay-style weight-decay
        micro_batch_size language_model model_parallel
    """)

    def places(self, document: Document) -> Sequence[tuple[Key, ...]]:
        return self.clip_keys[:1] if document.kind == "args" else self.clip_keys[1:]

    def recognises(self, document: Document) -> bool:
        if document.kind == "args":  # timm also has the options --clip-grad and --lr
            is_own = super().recognises(document) or (document.has("clip-grad") and any(map(document.has, OPTIONS)))
            return is_own and any(map(document.has, TRAINING))
        return document.shows("clip_grad") and document.shows("micro_batch_size")

    def parse(self, text: str, name: str) -> Document:
        return script_options.parse(text, name)

    def read(self, document: Document, version: Version | None) -> Imported:
        is_script = document.kind == "args"
        key = "clip-grad" if is_script else "clip_grad"
        notes = []
        if not document.has(key):
            if not is_script:
                raise ConfigError(f"{document.name}: clip_grad has no default in YAML. Add clip_grad: 1.0.")
            notes.append("The file does not set --clip-grad. By default, Megatron-LM clips at 1.0.")
        threshold = self.read_threshold(document, [key], 1.0, null="error")
        is_fp16 = document.has("fp16") if is_script else document.get("model_parallel", "fp16")
        not_finite = (self.not_finite, "skip") if is_fp16 else ()
        return Imported(self.settings("global_norm", threshold), notes, *not_finite)
