"""The YAML format of LitGPT, with the key `train.max_norm` of `litgpt pretrain`."""

from __future__ import annotations

from packaging.version import Version

from ....documents import Document
from ...base import ATTACH, Format, Imported, paths, words

KEYS = ("train", "max_norm")


class LitGPT(Format):
    name, title = "litgpt", "LitGPT"
    kinds = ("yaml",)
    source = "litgpt/args.py, litgpt/pretrain.py, litgpt/finetune; lightning: src/lightning/fabric/fabric.py"
    newest = "0.5.13"
    instead = ATTACH
    own_keys = paths("train.lr_warmup_fraction train.tie_embeddings")
    clip_keys = (KEYS,)
    vocabulary = words("""
        model_name model_config initial_checkpoint_dir checkpoint_dir out_dir resume train eval tokenizer_dir
        logger_name lora_r lora_alpha
    """)
    zero = "zeros"
    not_finite = "If a norm is not finite, litgpt pretrain stops with an error."
    off = float("inf")

    def read(self, document: Document, version: Version | None) -> Imported:
        threshold = self.read_threshold(document, KEYS)
        if document.get(*KEYS) is None:
            note = "By default, litgpt finetune clips nothing. litgpt pretrain fails without max_norm."
            return Imported(self.settings("global_norm", threshold), [note])
        return Imported(self.settings("global_norm", threshold), not_finite=self.not_finite)
