"""The YAML format of FunASR, with the keys `grad_clip` and `grad_clip_type` in `train_conf`."""

from __future__ import annotations

from packaging.version import Version

from ....documents import Document
from ...base import Format, Imported, default_note, read_norm_type, words

KEY, NORM_TYPE = ("train_conf", "grad_clip"), ("train_conf", "grad_clip_type")


class FunASR(Format):
    name, title = "funasr", "FunASR"
    kinds = ("yaml",)
    source = "funasr/train_utils/trainer.py, funasr/train_utils/trainer_ds.py"
    newest = "1.4.3"
    clip_keys = (KEY, NORM_TYPE)
    mode_keys = words("grad_clip_type")
    vocabulary = words("""
        model model_conf encoder encoder_conf decoder decoder_conf predictor frontend frontend_conf train_conf optim
        optim_conf scheduler dataset dataset_conf tokenizer specaug specaug_conf
    """)
    norm_types = True
    norm_type_key = NORM_TYPE

    def recognises(self, document: Document) -> bool:
        return document.shows("train_conf") and (document.shows("dataset_conf") or document.shows("frontend_conf"))

    def read(self, document: Document, version: Version | None) -> Imported:
        threshold = self.read_threshold(document, KEY, 10.0, null="error")
        notes = default_note(document, KEY, "FunASR clips at 10")
        return Imported(self.settings("global_norm", threshold, read_norm_type(document, NORM_TYPE)), notes)
