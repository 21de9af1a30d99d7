"""The YAML and JSON format of GPT-NeoX, with the key `gradient_clipping`. DeepSpeed reads this key."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ....documents import Document, Key
from ....schema import Settings
from ...base import Format, Imported, default_note, paths, words
from . import deepspeed

NAMES = ("gradient_clipping", "gradient-clipping")
EXTRA = ("deepspeed_extra_args", "gradient_clipping")
IGNORED = ("clip_grad", "clip-grad")
ARGUMENT = ("optimizer", "params", "max_grad_norm")
DEFAULT = 1.0

NOT_PASSED = (
    "GPT-NeoX does not pass its own default, 1.0, to DeepSpeed. DeepSpeed's default applies instead. By default, "
    "DeepSpeed before 0.19.3 and its fork DeeperSpeed clip nothing."
)


class GPTNeoX(Format):
    name, title = "gpt_neox", "GPT-NeoX"
    kinds = ("yaml", "json")
    extends = "deepspeed"
    source = "gpt-neox: megatron/neox_arguments/arguments.py, megatron/neox_arguments/deepspeed_args.py"
    newest = "2.0"
    own_keys = paths("""
        pipe_parallel_size pipe-parallel-size model_parallel_size model-parallel-size output_layer_init_method
        checkpoint_activations deepspeed_extra_args
    """)
    clip_keys = (*((name,) for name in NAMES), EXTRA)
    foreign_keys = (*((name,) for name in IGNORED), ARGUMENT)
    vocabulary = words("""
        num_layers hidden_size num_attention_heads seq_length optimizer zero_optimization train_micro_batch_size_per_gpu
        fp16 precision train_iters lr_decay_iters data_path vocab_file tokenizer_type attention_config launcher hostfile
    """)
    not_finite = deepspeed.UNSET
    needs_version = (
        "if gradient_clipping is 1.0, the default, GPT-NeoX does not pass it to DeepSpeed. DeepSpeed's default applies"
    )

    def read(self, document: Document, version: Version | None) -> Imported:
        if document.get(*ARGUMENT) is not None:
            raise document.wrong(ARGUMENT, "no optimizer of GPT-NeoX has this argument. Set gradient_clipping instead.")
        place = self._place(document)
        for name in IGNORED:
            if document.has(name) and document.get(name) != document.get(*place, default=DEFAULT):
                raise document.wrong(
                    [name],
                    "GPT-NeoX replaces this value by gradient_clipping, which is 1.0 by default. Remove this key, and "
                    "set gradient_clipping to the threshold.",
                )
        notes = default_note(
            document, place, "it is 1.0. GPT-NeoX merges several files, and another file might set this key"
        )
        threshold = self.read_threshold(document, place, DEFAULT, null="error")
        if place == EXTRA and (overridden := [name for name in NAMES if document.has(name)]):
            value = document.get(overridden[0])
            notes.append(f"deepspeed_extra_args overrides {overridden[0]}, which is {value!r:.60}.")
        if place != EXTRA and threshold == DEFAULT:
            self.require_version(version, document)
            return Imported({"rule": "none"}, [*notes, NOT_PASSED])
        return Imported(self.settings("global_norm", threshold), notes, **deepspeed.not_finite(document, threshold))

    def _place(self, document: Document) -> tuple[Key, ...]:
        if document.has(*EXTRA):
            return EXTRA
        names = [name for name in NAMES if document.has(name)]
        if len(names) > 1:
            raise document.wrong(
                [names[1]], f"the file sets {names[0]} too. Remove the key that your training does not use."
            )
        return (names[0] if names else NAMES[0],)

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        if threshold == DEFAULT:  # only this place reaches DeepSpeed
            return {EXTRA[0]: {EXTRA[1]: threshold}}
        return {NAMES[0]: 0.0 if threshold is None else threshold}
