"""The YAML format of WeNet, with the key `grad_clip`."""

from __future__ import annotations

from packaging.version import Version

from ....documents import Document
from ...base import Format, Imported, default_note, paths, words

KEY = "grad_clip"
WITH_DEEPSPEED = "With DeepSpeed, set gradient_clipping to this threshold in DeepSpeed's file."


class WeNet(Format):
    name, title = "wenet", "WeNet"
    kinds = ("yaml",)
    source = "wenet/utils/train_utils.py"
    newest = "3.1.0"
    not_finite = "WeNet skips a step if the norm is not finite."
    clip_keys = paths(KEY)
    vocabulary = words("""
        encoder encoder_conf decoder decoder_conf tokenizer tokenizer_conf ctc_conf cmvn model model_conf dataset
        dataset_conf accum_grad max_epoch log_interval optim optim_conf scheduler scheduler_conf input_dim output_dim
    """)
    zero = "zeros"
    off = float("inf")

    def recognises(self, document: Document) -> bool:
        return document.shows("dataset_conf") and document.shows("encoder_conf") and not document.shows("train_conf")

    def read(self, document: Document, version: Version | None) -> Imported:
        threshold = self.read_threshold(document, [KEY], 50.0, null="error")
        notes = default_note(document, [KEY], "WeNet clips at 50")
        return Imported(self.settings("global_norm", threshold), [*notes, WITH_DEEPSPEED], self.not_finite)
