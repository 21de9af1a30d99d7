"""Megatron-LM's `--clip-grad` in a shell script, or `clip_grad` in its YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from packaging.version import Version

from ...errors import ConfigError
from ..documents import Document, Key
from ..schema import Settings
from .base import FormatKey, Imported, OwnFormat, exported_threshold, global_norm_settings, has_key, read_threshold

COMMENT = re.compile(r"(^|\s)#.*")
OPTION = re.compile(r"--([a-zA-Z][\w-]*)(?:=(.*))?", re.DOTALL)
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?inf", re.IGNORECASE)


class Megatron(OwnFormat):
    name = "megatron"
    title = "Megatron-LM"
    kinds = ("args", "yaml")
    source = "megatron/training/arguments.py, megatron/core/optimizer/clip_grads.py"
    newest = "0.16.1"
    clip_keys = (("clip-grad",), ("clip_grad",))
    vocabulary = frozenset(
        {
            "num-layers",
            "hidden-size",
            "num-attention-heads",
            "seq-length",
            "global-batch-size",
            "train-iters",
            "train-samples",
            "lr",
            "pipeline-model-parallel-size",
            "bf16",
            "fp16",
            "tokenizer-type",
            "lr-decay-style",
            "weight-decay",
            "micro_batch_size",
            "language_model",
            "model_parallel",
        }
    )
    keys = (
        FormatKey("--clip-grad", "", "1.0", "the global norm over all ranks, PyTorch's rule; 0 or less: off"),
        FormatKey("clip_grad, in YAML", "", "none: training fails without it", "the same", "imported"),
    )

    def places(self, document: Document) -> Sequence[tuple[Key, ...]]:
        return self.clip_keys[:1] if document.kind == "args" else self.clip_keys[1:]

    def recognises(self, document: Document) -> bool:
        own = ("clip_grad", "micro_batch_size", "tensor_model_parallel_size", "use_distributed_optimizer")
        if document.kind == "args":
            return any(has_key(document, key.replace("_", "-")) for key in own)
        return has_key(document, "clip_grad") and has_key(document, "micro_batch_size")

    def parse(self, text: str, name: str) -> Document:
        """Read the value of each `--option`; a list if it occurs several times."""
        options: dict[str, list[Any]] = {}
        places: dict[tuple[str | int, ...], int] = {}
        values: list[Any] = []
        for line, word in _words(text):
            if match := OPTION.fullmatch(word):
                values = options.setdefault(match[1], [])
                values.append(_number(match[2]))
                places[match[1],] = line
            elif word and values and values[-1] is None:
                values[-1] = _number(word)
        data = {option: values[0] if len(values) == 1 else values for option, values in options.items()}
        return Document(name, text, "args", data, places)

    def read(self, document: Document, version: Version | None) -> Imported:
        notes = []
        key = "clip-grad" if document.kind == "args" else "clip_grad"
        if not has_key(document, key):
            if document.kind != "args":
                raise ConfigError(
                    f"{document.name}: clip_grad is missing. With a YAML file, Megatron-LM has no defaults. Set "
                    "clip_grad, such as clip_grad: 1.0."
                )
            notes.append("The file does not set --clip-grad. By default, Megatron-LM clips at 1.0.")
        limit = read_threshold(document, [key], 1.0, zero="off", negative="off", null="error")
        fp16 = has_key(document, "fp16") if document.kind == "args" else document.get("model_parallel", "fp16")
        if fp16:
            notes.append("With fp16, Megatron-LM skips steps whose gradients are not finite.")
        return Imported(global_norm_settings(limit, "pytorch"), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        return exported_threshold(settings, self, rules=["global_norm"], family="pytorch", zero="off") or 0.0

    def dump(self, data: Any) -> str:
        return f"--clip-grad {data!r}\n"


def _words(text: str) -> Iterator[tuple[int, str]]:
    """Yield the words of a script with their lines, without quotes, brackets and semicolons."""
    for line, code in enumerate(text.splitlines(), 1):
        for word in re.split(r"[\s()\"';\\]+", COMMENT.sub("", code)):
            yield line, word


def _number(word: str | None) -> Any:
    """Convert a word to a number if it is one."""
    return float(word) if word is not None and NUMBER.fullmatch(word) else word
