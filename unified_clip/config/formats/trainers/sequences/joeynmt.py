"""The YAML format of JoeyNMT, with the keys `training.clip_grad_norm` and `training.clip_grad_val`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ....documents import Document
from ....schema import Settings
from ...base import Format, Imported, paths, words

NORM, VALUE = ("training", "clip_grad_norm"), ("training", "clip_grad_val")


class JoeyNMT(Format):
    name, title = "joeynmt", "JoeyNMT"
    kinds = ("yaml",)
    source = "joeynmt/builders.py, joeynmt/training.py"
    newest = "2.3.0"
    own_keys = paths("joeynmt_version training.early_stopping_metric training.validation_freq training.model_dir")
    clip_keys = (NORM, VALUE)
    vocabulary = words("name joeynmt_version data testing training model")
    rules = ("global_norm", "value")
    zero = "zeros"
    off = None

    def read(self, document: Document, version: Version | None) -> Imported:
        names = [keys for keys in self.clip_keys if document.get(*keys) is not None]
        if len(names) > 1:
            raise document.wrong(VALUE, f"JoeyNMT rejects this key together with {NORM[1]}. Remove one of them.")
        if not names:
            unset = [keys[1] for keys in self.clip_keys if not document.has(*keys)]
            note = f"The file does not set {' or '.join(unset)}. By default, JoeyNMT clips nothing."
            return Imported({"rule": "none"}, [note] if len(unset) == 2 else [])
        threshold = self.read_threshold(document, names[0])
        return Imported(self.settings("value" if names == [VALUE] else "global_norm", threshold))

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        return {NORM[0]: {VALUE[1] if settings.rule == "value" else NORM[1]: threshold}}
