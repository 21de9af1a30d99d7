"""The formats of Megatron-LM, with `--clip-grad` in a shell script or `clip_grad` in YAML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packaging.version import Version

from .....errors import ConfigError
from ....documents import Document, Key
from ....documents.script_options import script_options
from ...base import Imported, OwnFormat, paths, words

TRAINING = ("clip-grad", "lr", "train-iters", "train-samples", "train-epochs")
"""A script that generates text or converts a checkpoint has none of these options."""


class Megatron(OwnFormat):
    name, title = "megatron", "Megatron-LM"
    kinds = ("args", "yaml")
    source = "megatron/training/arguments.py, megatron/core/optimizer/clip_grads.py"
    newest = "0.16.1"
    not_finite = "With fp16, Megatron-LM skips steps whose gradients are not finite."
    own_keys = paths("clip-grad micro-batch-size tensor-model-parallel-size use-distributed-optimizer")
    clip_keys = paths("clip-grad clip_grad")
    vocabulary = words("""
        num-layers hidden-size num-attention-heads seq-length global-batch-size train-iters train-samples lr
        pipeline-model-parallel-size bf16 fp16 tokenizer-type lr-decay-style weight-decay
        micro_batch_size language_model model_parallel
    """)

    def places(self, document: Document) -> Sequence[tuple[Key, ...]]:
        return self.clip_keys[:1] if document.kind == "args" else self.clip_keys[1:]

    def recognises(self, document: Document) -> bool:
        if document.kind == "args":  # --clip-mode is an option of timm, which also has --clip-grad
            is_training = any(map(document.has, TRAINING)) and not document.has("clip-mode")
            return is_training and super().recognises(document)
        return document.shows("clip_grad") and document.shows("micro_batch_size")

    def parse(self, text: str, name: str) -> Document:
        """Return the value of each `--option` of a script. An option with several values becomes a list."""
        options: dict[str, list[Any]] = {}
        places: dict[tuple[Key, ...], int] = {}
        for line, option, value in script_options(text):
            if "." in option:
                continue
            options.setdefault(option, []).append(value)
            places[option,] = line
        data = {option: values[0] if len(set(values)) == 1 else values for option, values in options.items()}
        return Document(name, text, "args", data, places)

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
        return Imported(self.settings("global_norm", threshold), notes, self.not_finite if is_fp16 else "")

    def dump(self, data: Any) -> str:
        return f"--clip-grad {data['clip-grad']!r}\n"
